"""The destinations that are not to be tried now: paused by hand, or held by the courier's function `held`."""

import time
from collections.abc import Collection
from dataclasses import dataclass

import structlog

from ferryman.relay import metrics
from ferryman.relay.described.hooks import Hooks
from ferryman.relay.described.table import Table
from ferryman.runtime import postgres, user_code
from ferryman.runtime.desk import WHOLE_OUTBOX, read_paused_in
from ferryman.runtime.logs import frames

log = structlog.get_logger(__name__)

_SECONDS = 1.0
_MOST_SHOWN = 5


@dataclass(slots=True)
class HeldDestinations:
    """The destinations that are paused or held, as they were at the last look. Each change is logged once."""

    outbox_name: str
    label: str
    """The label of the outbox in metrics."""
    hooks: Hooks
    next_at: float = 0.0
    """The time of the next look."""
    paused: bool = False
    """True while the whole outbox is paused by hand."""
    avoided: Collection[str] = ()
    _by_hook: frozenset[str] = frozenset()
    _failed: str | None = None

    def look(self, table: Table) -> None:
        """Look, once a second. Rows under way end as they would."""
        if time.monotonic() < self.next_at:
            return
        self._ask_hook(table)
        with postgres.transaction(table.connection, table.limits):
            paused = {each["destination"] for each in read_paused_in(table.connection, self.outbox_name)}
        if self.paused != (WHOLE_OUTBOX in paused):
            log.info("resumed" if self.paused else "paused", outbox=self.outbox_name)
        self.paused, self.avoided = WHOLE_OUTBOX in paused, [*self._by_hook, *paused - {WHOLE_OUTBOX}]
        self.next_at = time.monotonic() + _SECONDS

    def _ask_hook(self, table: Table) -> None:
        """Ask the hook what it holds; keep its former answer if it fails."""
        if self.hooks.held is None:
            return
        try:
            found = self.hooks.held_now(table)
        except Exception as error:  # whatever the user's function raises
            if table.connection.broken:
                raise
            words = user_code.told(error)
            if words != self._failed:
                where = frames(user_code.raised(error))
                log.error("held failed: its former answer is kept", outbox=self.outbox_name, error=words, where=where)  # noqa: TRY400
            self._failed = words
            return
        if self._failed:
            log.info("held works again", outbox=self.outbox_name)
        self._failed = None
        if found != self._by_hook:
            log.info(
                "held by the courier", outbox=self.outbox_name, destinations=len(found),
                more=sorted(found - self._by_hook)[:_MOST_SHOWN], released=sorted(self._by_hook - found)[:_MOST_SHOWN],
            )  # fmt: skip
        metrics.HELD_DESTINATIONS.labels(self.label).set(len(found))
        self._by_hook = found
