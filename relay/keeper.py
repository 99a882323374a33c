"""Looks after one source beside its workers: the ring turns, and the metrics say how the backlog stands."""

import threading
import time
from dataclasses import dataclass, field

import structlog

from ferryman.relay import metrics
from ferryman.relay.ring import Kept, RingKeeper
from ferryman.relay.source import Source, translated
from ferryman.relay.store import backlog
from ferryman.relay.store.lanes import Connection

log = structlog.get_logger(__name__)

_ROUND_SECONDS = 1.0
_AFTER_ERROR_SECONDS = 5.0
# Of a large backlog the sums take long: they take at most this share of the time.
_SHARE_OF_TIME = 20


@dataclass(slots=True)
class Keeper:
    """One thread's work. What goes wrong here is tried again later; the workers say what is wrong with the source."""

    source: Source
    ring: RingKeeper
    backlog_seconds: float
    stopping: threading.Event
    _look_at: float = 0.0
    _alarms: dict[int, tuple[str, float]] = field(default_factory=dict)

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with self.source.connect() as connection:
                    while not self.stopping.wait(_ROUND_SECONDS):
                        self.run_once(connection)
            except Exception as error:
                log.debug("keeping failed", source=self.source.name, error=str(translated(error)))
                self.stopping.wait(_AFTER_ERROR_SECONDS)

    def run_once(self, connection: Connection) -> None:
        self._say(self.ring.run_once(connection))
        began = time.monotonic()
        if began >= self._look_at:
            metrics.backlog(self.source.name, backlog.read(connection))
            metrics.WINDOW_AGE.labels(self.source.name).set(backlog.window_age_seconds(connection))
            metrics.SEGMENTS.labels(self.source.name).set(backlog.segments_in_use(connection))
            now = time.monotonic()
            self._look_at = now + max(self.backlog_seconds, _SHARE_OF_TIME * (now - began))

    def _say(self, kept: Kept) -> None:
        name = self.source.name
        if kept.rotated:
            log.info("ring rotated", source=name, segment=kept.rotated[1])
        if kept.truncated:
            log.info("segment truncated", source=name, segment=kept.truncated.segment,
                     entries=kept.truncated.entries, moved=kept.truncated.moved)  # fmt: skip
            self._alarms.pop(kept.truncated.segment, None)
        if alarm := kept.alarm:
            if self._alarms.get(alarm.segment, ("", 0.0))[0] != alarm.message:
                log.error("segment kept", source=name, problem=alarm.message, remedy=alarm.remedy)
            self._alarms[alarm.segment] = (alarm.message, time.monotonic())
        self._forget_alarms()
        metrics.RING_ALARMS.labels(name).set(len(self._alarms))

    def _forget_alarms(self) -> None:
        """One that is not raised again is over: another replica emptied the segment."""
        oldest = time.monotonic() - 2 * self.ring.space.alarm_seconds
        self._alarms = {segment: each for segment, each in self._alarms.items() if each[1] > oldest}
