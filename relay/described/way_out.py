"""The seam between a described table and the way by which its rows leave: the relay's Kafka, or a channel."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ferryman.channels.outcome import Outcome
from ferryman.relay.described.rows import Claimed
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.postgres import Connection


@dataclass(frozen=True, slots=True)
class Room:
    """The most rows that may be begun now, and the destinations to leave out."""

    most: int
    avoided: Collection[str] = ()
    each: int = 0
    """The most rows of one destination, if rows name theirs; `busy` has how many of these it may not have now."""
    busy: Mapping[str, int] = field(default_factory=dict)
    begun: Collection[str] = ()
    """The ids of the rows under way. They are not claimed again: not as lost if their leases expired while the database
    was away, and not as due if somebody set their status back by SQL."""


class SentRow(NamedTuple):
    """A row whose send has ended, or that was not tried: then it has no outcome."""

    row: Claimed
    outcome: Outcome | None
    seconds: float
    content: str | None = None
    """A hash of what was sent."""


class WayOut(Protocol):
    """A way out. One thread calls it: it claims rows for the room there is, begins them, and collects what ended."""

    def why_not(self) -> str | None:
        """Return why no row should be claimed now. Ask whoever knows, but for a moment only."""

    def error(self) -> FerrymanError:
        """Return the error for the reason that `why_not` gave."""

    def meet(self, connection: Connection) -> None:
        """Refuse a database whose rows may not leave by this way. Called in each turn, so remember the answer."""

    def room(self) -> Room: ...

    many_lost: bool
    """True if rows that another process left behind may go out together, and with others."""

    def label_of(self, destination: str) -> str:
        """Return the label in metrics, which is never a destination that a row of a channel names."""

    def begin(self, rows: Sequence[Claimed], items: Sequence[Any]) -> None:
        """Begin to send the rows, each by its item. Never fail: an error is the outcome of its row."""

    def ended(self, seconds: float) -> list[SentRow]:
        """Return the rows that ended since the last call. Wait so long for the first, unless none is under way."""

    def recall(self) -> list[Claimed]:
        """Take back the rows that only wait, because the process stops."""

    @property
    def under_way(self) -> int:
        """The rows that were begun and did not end."""

    def close(self) -> None: ...
