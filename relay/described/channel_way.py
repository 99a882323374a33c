"""A channel as a way out: rows are sent by an event loop in another thread, and end one by one."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import structlog

from ferryman.channels.model import Mail, Post
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unavailable, Unknown
from ferryman.channels.sending import Finished, Item, Sending
from ferryman.relay.described.rows import Claimed
from ferryman.relay.described.way_out import Room, SentRow
from ferryman.runtime.breaker import Breaker, BreakerState
from ferryman.runtime.errors import FerrymanError, Unreachable
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_outbox import Outbox

log = structlog.get_logger(__name__)

# A settle waits so long for company: rows that end together are settled in one statement.
_LINGER_SECONDS = 0.002
# With a bound on sends a second, so much of a second may be sent at once.
_BURST_SECONDS = 0.02
# Outcomes of destinations that use up the time of their slots.
_NOBODY_THERE = frozenset({
    Code.NAME_NOT_RESOLVED, Code.CONNECTION_FAILED, Code.CONNECTION_TIMED_OUT, Code.TIMED_OUT, Code.DEADLINE_PASSED,
})  # fmt: skip
_MOST_SILENT = 1024


class TokenBucket:
    """A bound on how often something begins: never more than `per_second` times within any second.

    The bucket holds what may begin at once: more than one only at high rates, where single claims would cost too much.
    It fills so much slower that a full one exceeds no second's bound.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = max(1.0, per_second * _BURST_SECONDS)
        self._per_second = per_second - (self._most - 1.0)
        self._clock = clock
        self._level = self._most
        self._at = clock()

    def tokens(self) -> int:
        """Return how many may begin now."""
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._at) * self._per_second)
        self._at = now
        return int(self._level)

    def take(self, count: int) -> None:
        """Note that so many begin."""
        self._level -= count


class Silences:
    """The number of sends in a row that found nobody, for each destination whose last send did."""

    def __init__(self, most: int = _MOST_SILENT) -> None:
        self._most = most
        self._times: dict[str, int] = {}

    def note(self, finished: Finished) -> None:
        """Count the end of a send. Any answer ends the silence of its destination."""
        if (destination := finished.destination) is None:
            return
        times = self._times.pop(destination, 0)
        if isinstance(finished.outcome, Retry | Unknown) and finished.outcome.code in _NOBODY_THERE:
            self._times[destination] = times + 1
            if len(self._times) > self._most:
                del self._times[next(iter(self._times))]

    def of(self, times: int) -> list[str]:
        """Return the destinations of which so many sends in a row found nobody."""
        return [destination for destination, silent in self._times.items() if silent >= times]


@dataclass(slots=True)
class ChannelWay:
    """The rows under way by one channel. It is opened by the first look at it."""

    outbox: Outbox
    sending: Sending
    bucket: "TokenBucket | None" = None
    """The bound of `per_second`."""
    many_lost: bool = True
    _rows: dict[Any, tuple[Claimed, str | None]] = field(default_factory=dict)
    """The rows under way, each with a hash of what is sent."""
    _breaker: Breaker = field(default_factory=Breaker)
    """That of a destination which all rows share; it stays closed where each row has its own."""
    _probes: int = 0
    """The rows that find out whether an outage is over: more each time, as the oldest of them may be its reason."""
    _silences: Silences = field(default_factory=Silences)
    _opened: bool = False

    def why_not(self) -> str | None:
        if not self._opened:
            self.sending.open()
            self._opened = True
        if self._rows or self._breaker.allows(time.monotonic()):
            return self.sending.why_not()
        return self.sending.why_not() or self._breaker.reason

    def error(self) -> FerrymanError:
        return Unreachable(f"nothing can be sent: {self.why_not()}")

    def meet(self, connection: Connection) -> None: ...

    def room(self) -> Room:
        each = self.outbox.slots_per_destination
        most = min(self.sending.room(), self.outbox.batch_rows)
        if self.bucket is not None:
            most = min(most, self.bucket.tokens())
        if self._breaker.state is not BreakerState.CLOSED:
            most = min(most, max(self._probes, 1)) if self._breaker.allows(time.monotonic()) else 0
        busy = self.sending.busy()
        for destination in self._silences.of(each):  # one slot finds out whether it is there again
            busy[destination] = busy.get(destination, 0) + each - 1
        return Room(most, each=each, busy=busy, begun=list(self._rows))

    def label_of(self, _destination: str) -> str:
        return self.outbox.channel

    def begin(self, rows: Sequence[Claimed], items: Sequence[Any]) -> None:
        self._breaker = self._breaker.started()
        self._rows |= {row.id: (row, _hash(item)) for row, item in zip(rows, items, strict=True)}
        if self.bucket is not None:
            self.bucket.take(len(rows))
        own = self.outbox.url is None and self.outbox.channel != "email"
        self.sending.begin([
            Item(row.id, item, row.destination or None if own else None) for row, item in zip(rows, items, strict=True)
        ])  # fmt: skip

    def ended(self, seconds: float) -> list[SentRow]:
        found = self.sending.ended(seconds)
        if found and self.under_way > len(found):
            time.sleep(_LINGER_SECONDS)
            found += self.sending.ended(0)
        for each in found:
            self._silences.note(each)
            if self.outbox.channel == "email":
                self._notice(each.outcome)
        return [self._sent(each) for each in found]

    def _notice(self, outcome: Outcome) -> None:
        """Open the breaker when the shared destination fails, and close it when it answers."""
        if isinstance(outcome, Delivered | Retry | Rejected) or outcome.code is Code.KEY_TAKEN:
            self._breaker, self._probes = Breaker(), 0
            return
        if isinstance(outcome, Held) and outcome.code is Code.NOT_LOOKED_UP:  # nobody was asked
            if self._breaker.state is BreakerState.HALF_OPEN:
                self._breaker = replace(self._breaker, state=BreakerState.OPEN)
            return
        now, asked = time.monotonic(), getattr(outcome, "after_seconds", None) or 0.0
        if self._breaker.state is not BreakerState.OPEN:  # sends that began together fail together
            self._probes += isinstance(outcome, Unavailable)  # its row is the oldest again
            failed = self._breaker.failed(now, outcome.error)
            self._breaker = replace(failed, probe_at=max(failed.probe_at, now + asked))
            log.warning("nothing is sent for now", outbox=self.outbox.table, error=outcome.error,
                        seconds=round(self._breaker.probe_at - now, 1))  # fmt: skip

    def recall(self) -> list[Claimed]:
        return [self._rows.pop(item.key)[0] for item in self.sending.recall()]

    def _sent(self, finished: Finished) -> SentRow:
        row, content = self._rows.pop(finished.key)
        return SentRow(row, finished.outcome, finished.seconds, content)

    @property
    def under_way(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        if self._opened:
            self.sending.close()


def _hash(item: Any) -> str | None:
    """Return a hash that is the same for each attempt that sent the same."""
    if isinstance(item, Mail):
        return item.edition
    return sha256(item.body).hexdigest()[:16] if isinstance(item, Post) and isinstance(item.body, bytes) else None
