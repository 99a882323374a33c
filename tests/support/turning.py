"""A described outbox without a database: its table and its way out are in memory, and follow a script."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from psycopg.pq import TransactionStatus

from ferryman.channels.outcome import Delivered, Outcome
from ferryman.relay.described.hooks import Hooks
from ferryman.relay.described.rows import Claimed, Settling
from ferryman.relay.described.service import DescribedOutbox
from ferryman.relay.described.table import Table
from ferryman.relay.described.way_out import Room, SentRow
from ferryman.relay.source import SourceDatabase
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime.errors import FerrymanError, Unreachable
from ferryman.runtime.life import no_hook
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings

AT = datetime(2026, 1, 2, tzinfo=UTC)


def row(identity: str, **more: Any) -> Claimed:
    """Return a row that was claimed for the first time."""
    usual = Claimed(identity, "http://here", "k", "kind", b"{}", None, None, 0, 1, AT, None, "PENDING", lost=False)
    return usual._replace(**more)


@dataclass
class TableInMemory:
    """A table whose claims return what the test wants, and which remembers what was settled."""

    due: list[Claimed] = field(default_factory=list)
    lost: list[Claimed] = field(default_factory=list)
    lost_twice: list[Claimed] = field(default_factory=list)
    too_often: list[Claimed] = field(default_factory=list)
    as_claimed: Callable[[], object] = lambda: None
    settled: list[Settling] = field(default_factory=list)
    left: list[Backlog] = field(default_factory=list)
    statements: Collection[str] = ()
    limits: Any = None
    connection: Any = field(
        default_factory=lambda: SimpleNamespace(
            broken=False, transaction=nullcontext, info=SimpleNamespace(transaction_status=TransactionStatus.IDLE)
        )
    )

    def claim(self, _most: int, _avoided: Collection[str] = (), begun: Collection[str] = ()) -> list[Claimed]:
        rows = [each for each in self.due if each.id not in begun]
        self.due = []
        self.as_claimed()
        return rows

    def claim_lost(self, _most: int, _room: Room, *, twice: bool = False) -> list[Claimed]:
        if twice:
            rows, self.lost_twice = self.lost_twice, []
        else:
            rows, self.lost = self.lost, []
        return rows

    def settle(self, what: Sequence[Settling], also: Callable[[Collection[str]], object] = lambda _: None) -> set[str]:
        ids = {each.row.id for each in what}
        also(ids)
        self.settled += what
        return ids

    def bury(self, also: Callable[[Sequence[Claimed]], object], _begun: Collection[str] = ()) -> list[Claimed]:
        rows, self.too_often = self.too_often, []
        also(rows)
        return rows

    def forget_attempts(self, _name: str, _seconds: float, *, mails: bool) -> int:
        return 0

    def backlog(self) -> list[Backlog]:
        return self.left


@dataclass
class WayInMemory:
    """A way out on which rows stay under way until the test ends them."""

    away: str | None = None
    many_lost: bool = True
    rows: dict[str, Claimed] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    ends: list[tuple[str, Outcome]] = field(default_factory=list)
    as_asked: Callable[[], object] = lambda: None

    def why_not(self) -> str | None:
        return self.away

    def error(self) -> FerrymanError:
        return Unreachable(str(self.away))

    def meet(self, connection: Connection) -> None: ...

    def room(self) -> Room:
        return Room(8, each=8, begun=list(self.rows))

    def label_of(self, _destination: str) -> str:
        return "in memory"

    def begin(self, rows: Sequence[Claimed], _items: Sequence[Any]) -> None:
        self.begun += [each.id for each in rows]
        self.rows |= {each.id: each for each in rows}

    def ended(self, _seconds: float) -> list[SentRow]:
        self.as_asked()
        ends, self.ends = self.ends, []
        return [SentRow(self.rows.pop(identity), outcome, 0.0) for identity, outcome in ends]

    def deliver(self, *ids: str) -> None:
        self.ends += [(identity, Delivered()) for identity in ids]

    def recall(self) -> list[Claimed]:
        return []

    @property
    def under_way(self) -> int:
        return len(self.rows)

    def close(self) -> None: ...


class OutboxInMemory(DescribedOutbox):
    """A described outbox whose connections are its table in memory."""

    kept: TableInMemory

    @contextmanager
    def opened(self, process: str | None = None) -> Iterator[Table]:
        yield cast(Table, self.kept)


@dataclass
class TurnsInMemory:
    """A described outbox in memory, and the turns that a test takes with it."""

    hooks: Hooks = field(default_factory=Hooks)
    table: TableInMemory = field(default_factory=TableInMemory)
    way: WayInMemory = field(default_factory=WayInMemory)
    stopping: threading.Event = field(default_factory=threading.Event)
    service: OutboxInMemory = field(init=False)

    def __post_init__(self) -> None:
        words = {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT", "dead": "DEAD"}
        settings = Settings.model_validate(
            {"outbox": {"mine": {"table": "shop.mine", "channel": "http", "words": words}}}
        )
        self.service = OutboxInMemory(
            "mine", settings.outbox["mine"], SourceDatabase("mine", "here", settings), self.way, no_hook, "mine",
            self.hooks,
        )  # fmt: skip
        self.service.held.next_at = float("inf")
        self.service.kept = self.table

    @property
    def opened(self) -> AbstractContextManager[Table]:
        return self.service.opened()

    def run_once(self) -> Any:
        return self.service.run_once(cast(Table, self.table), self.stopping)

    def finish(self) -> None:
        self.service._finish(cast(Table, self.table), lambda _: None)

    def ends(self) -> list[tuple[str, str]]:
        """Return (id, end) of each row that was settled."""
        return [(each.row.id, each.end.value) for each in self.table.settled]
