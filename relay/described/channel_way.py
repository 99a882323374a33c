"""A channel as a way out: rows are sent by an event loop in another thread, and end one by one."""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferryman.channels.sending import Item, Sending
from ferryman.relay.described.rows import Claimed
from ferryman.relay.described.way_out import Room, SentRow
from ferryman.runtime.errors import FerrymanError, Unreachable
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_outbox import Outbox

# A settle waits so long for company: rows that end together are settled in one statement.
_LINGER_SECONDS = 0.002


@dataclass(slots=True)
class ChannelWay:
    """The rows under way by one channel. It is opened by the first look at it."""

    outbox: Outbox
    sending: Sending
    many_lost: bool = True
    _rows: dict[Hashable, Claimed] = field(default_factory=dict)
    _opened: bool = False

    def why_not(self) -> str | None:
        if not self._opened:
            self.sending.open()
            self._opened = True
        return self.sending.why_not()

    def error(self) -> FerrymanError:
        return Unreachable(f"nothing can be sent: {self.sending.why_not()}")

    def meet(self, connection: Connection) -> None: ...

    def room(self) -> Room:
        each = self.outbox.slots_per_destination
        return Room(min(self.sending.room(), self.outbox.batch_rows), each=each, busy=self.sending.busy())

    def label_of(self, _destination: str) -> str:
        return self.outbox.channel

    def begin(self, rows: Sequence[Claimed], items: Sequence[Any]) -> None:
        self._rows |= {row.id: row for row in rows}
        own = self.outbox.url is None
        self.sending.begin([
            Item(row.id, item, row.destination or None if own else None) for row, item in zip(rows, items, strict=True)
        ])  # fmt: skip

    def ended(self, seconds: float) -> list[SentRow]:
        found = self.sending.ended(seconds)
        if found and self.under_way > len(found):
            time.sleep(_LINGER_SECONDS)
            found += self.sending.ended(0)
        return [SentRow(self._rows.pop(each.key), each.outcome, each.seconds) for each in found]

    def recall(self) -> list[Claimed]:
        return [self._rows.pop(item.key) for item in self.sending.recall()]

    @property
    def under_way(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        if self._opened:
            self.sending.close()
