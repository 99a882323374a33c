"""The databases that answer: where one does not, what is known from the other is told, and what is missing is said."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from ferryman.evidence.databases import Connection, connect_wallet
from ferryman.evidence.messages import LITERAL_LIMIT, literal_limit
from ferryman.evidence.trace import store
from ferryman.evidence.trace.model import ORCHESTRATOR, WALLET, Times, Where
from ferryman.relay.operator.desk import Desk
from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Desks:
    """One for each database that answers. `one` says that both are the same."""

    orchestrator: Desk | None
    wallet: Desk | None
    missing: list[str] = field(default_factory=list)
    one: bool = False
    literal_limit: int = LITERAL_LIMIT
    """Of attempts, in the literal mode."""
    times: Times = field(default_factory=lambda: Times.of(Settings()))

    @property
    def all(self) -> list[tuple[Where, Desk]]:
        """Each database once."""
        found: list[tuple[Where, Desk | None]] = [(ORCHESTRATOR, self.orchestrator), (WALLET, self.wallet)]
        return [(where, desk) for where, desk in found[: 1 if self.one else 2] if desk is not None]


@contextmanager
def open_desks(settings: Settings) -> Iterator[Desks]:
    """Raises what was wrong with the first when neither answers."""
    missing: list[str] = []
    errors: list[FerrymanError] = []
    with ExitStack() as closing:

        def opened(connection: Connection) -> Desk:
            connection.prepare_threshold = None  # behind a pooler the next transaction may be in another session
            return Desk(closing.enter_context(connection), settings.database)

        try:
            orchestrator = opened(postgres.connect(settings, "trace", autocommit=True))
        except FerrymanError as error:
            orchestrator = None
            errors.append(error)
            missing.append(f"the orchestrator's database: {error}")
        try:
            wallet = opened(connect_wallet(settings, "trace"))
        except FerrymanError as error:
            wallet = None
            errors.append(error)
            missing.append(f"the wallet's database: {error}")
        if orchestrator is None and wallet is None:
            raise errors[0]
        yield Desks(
            orchestrator, wallet, missing, _same(orchestrator, wallet), literal_limit(settings), Times.of(settings)
        )


def _same(one: Desk | None, other: Desk | None) -> bool:
    if one is None or other is None:
        return False
    with one.acting() as ours, other.acting() as theirs:
        return bool(store.identity(ours) == store.identity(theirs))
