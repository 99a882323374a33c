"""Where an audit reads: both databases, in short transactions that change nothing."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from psycopg import IsolationLevel

from ferryman.evidence.audit import store
from ferryman.evidence.databases import Connection, Databases
from ferryman.runtime.desk import Desk
from ferryman.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Reading:
    """Both databases."""

    databases: Databases
    settings: Settings

    def orchestrator(self) -> AbstractContextManager[Connection]:
        return self._reading(self.databases.orchestrator)

    def wallet(self) -> AbstractContextManager[Connection]:
        return self._reading(self.databases.wallet)

    @contextmanager
    def wallet_as_it_is(self) -> Iterator[Connection]:
        """All that is read inside is of one snapshot: for what one statement cannot read in its time."""
        connection = self.databases.wallet
        usual, connection.isolation_level = connection.isolation_level, IsolationLevel.REPEATABLE_READ
        try:
            with self.wallet() as db:
                yield db
        finally:
            connection.isolation_level = usual

    @contextmanager
    def _reading(self, connection: Connection) -> Iterator[Connection]:
        with Desk(connection, self.settings.database).acting() as db:
            store.read_only(db)
            yield db
