"""A channel as a way out: rows are sent by an event loop in another thread, and end one by one."""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ferryman.channels.model import Post
from ferryman.channels.sending import Finished, Item, Sending
from ferryman.relay.described.rows import Claimed
from ferryman.relay.described.way_out import Room, SentRow
from ferryman.runtime.errors import FerrymanError, Unreachable
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings_outbox import Outbox

# A settle waits so long for company: rows that end together are settled in one statement.
_LINGER_SECONDS = 0.002
# With a bound on sends a second, so much of a second may be sent at once.
_BURST_SECONDS = 0.02


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


@dataclass(slots=True)
class ChannelWay:
    """The rows under way by one channel. It is opened by the first look at it."""

    outbox: Outbox
    sending: Sending
    bucket: "TokenBucket | None" = None
    """The bound of `per_second`."""
    many_lost: bool = True
    _rows: dict[Hashable, tuple[Claimed, str | None]] = field(default_factory=dict)
    """The rows under way, each with a hash of what is sent."""
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
        most = min(self.sending.room(), self.outbox.batch_rows)
        if self.bucket is not None:
            most = min(most, self.bucket.tokens())
        return Room(most, each=each, busy=self.sending.busy())

    def label_of(self, _destination: str) -> str:
        return self.outbox.channel

    def begin(self, rows: Sequence[Claimed], items: Sequence[Any]) -> None:
        self._rows |= {row.id: (row, _hash(item)) for row, item in zip(rows, items, strict=True)}
        if self.bucket is not None:
            self.bucket.take(len(rows))
        own = self.outbox.url is None
        self.sending.begin([
            Item(row.id, item, row.destination or None if own else None) for row, item in zip(rows, items, strict=True)
        ])  # fmt: skip

    def ended(self, seconds: float) -> list[SentRow]:
        found = self.sending.ended(seconds)
        if found and self.under_way > len(found):
            time.sleep(_LINGER_SECONDS)
            found += self.sending.ended(0)
        return [self._sent(each) for each in found]

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
    """Return 16 hexadecimal digits of the body's SHA-256: the same for each attempt that sent the same."""
    return sha256(item.body).hexdigest()[:16] if isinstance(item, Post) and isinstance(item.body, bytes) else None
