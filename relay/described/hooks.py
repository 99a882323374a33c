"""The functions that a user gives a described outbox, and what a bug in one costs: its own row, and no other."""

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import structlog
from psycopg.errors import InFailedSqlTransaction
from psycopg.pq import TransactionStatus

from ferryman.channels.outcome import Retry
from ferryman.relay.described.rows import Claimed, Settling
from ferryman.relay.described.table import Table
from ferryman.runtime import postgres
from ferryman.runtime.errors import Transient
from ferryman.runtime.logs import frames
from ferryman.runtime.postgres import Connection
from ferryman.runtime.redaction import stored_error

log = structlog.get_logger(__name__)


_MOST_PASSING = 2
"""The most rows of a claim that are tried alone although errors that may pass, such as timeouts, come with each."""


class NotTried:
    """A row that was claimed and is released: nothing was made of it."""


NOT_TRIED = NotTried()


class SettledFailed(Exception):
    """The hook `settled` raised an error: its name, and where."""


def as_they_are(_: Connection, rows: Sequence[Claimed]) -> Sequence[Any]:
    return rows


@dataclass(frozen=True, slots=True)
class Hooks:
    """The parts of a service that differ by what is sent. Each is called inside a short transaction."""

    prepare: Callable[[Connection, Sequence[Claimed]], Sequence[Any]] = as_they_are
    """Return what is sent of each row, in order; or an outcome, if the row is not to be sent."""
    reads: bool = True
    """False if `prepare` does not need the database: then it is called without a transaction."""
    settled: Callable[[Connection, Sequence[Settling]], object] | None = None
    """Called with the settled rows, in the transaction that settles them."""
    held: Callable[[Connection], Collection[str]] | None = None
    """Return the destinations that are not to be tried, once a second."""

    def prepared(self, table: Table, outbox_name: str, rows: Sequence[Claimed]) -> Sequence[Any]:
        """Return what is sent of each row. An error costs its own row an attempt, and no other.

        A timeout may be the database's, and come with every row. So after some of them the other rows are NOT_TRIED.
        """
        if self.prepare is as_they_are:
            return rows
        made, problem = self._made(table, rows)
        if problem is None:
            return made
        if len(rows) == 1:
            return [_failed(outbox_name, rows[0], problem)]
        found: list[Any] = []
        passing = 0
        for row in rows:
            if passing == _MOST_PASSING:
                found.append(NOT_TRIED)
                continue
            made, problem = self._made(table, [row])
            passing += isinstance(problem, Transient)
            found += made if problem is None else [_failed(outbox_name, row, problem)]
        return found

    def _made(self, table: Table, rows: Sequence[Claimed]) -> tuple[Sequence[Any], Exception | None]:
        """Return what is made of the rows, or why nothing is. Raise if the connection is lost."""
        connection = table.connection
        try:
            with postgres.transaction(connection, table.limits) if self.reads else nullcontext():
                made = list(self.prepare(connection, rows))
        except Exception as error:  # whatever the user's function raises
            if connection.broken:
                raise
            return (), error
        if len(made) == len(rows):
            return made, None
        return (), ValueError(f"prepare returned {len(made)} items for {len(rows)} rows")

    def held_now(self, table: Table, outbox_name: str, before: Collection[str]) -> Collection[str]:
        """Return the destinations that are held; those held before if the hook fails."""
        if self.held is None:
            return ()
        try:
            with postgres.transaction(table.connection, table.limits):
                found: Collection[Any] = self.held(table.connection) or ()  # a query may give NULLs, and numbers
                return [str(each) for each in found if each is not None]
        except Exception as error:  # whatever the user's function raises
            if table.connection.broken:
                raise
            log.error("held failed", outbox=outbox_name, error=type(error).__name__, where=frames(error))  # noqa: TRY400
            return before

    def tell(self, table: Table, settlings: Sequence[Settling]) -> None:
        """Call `settled` with rows that are settled in the open transaction."""
        if self.settled is None:
            return
        try:
            self.settled(table.connection, settlings)
            if table.connection.info.transaction_status is TransactionStatus.INERROR:
                raise InFailedSqlTransaction  # it swallowed an error: COMMIT would undo the settling and say nothing
        except Exception as error:  # whatever the user's function raises
            if table.connection.broken:
                raise
            raise SettledFailed(type(error).__name__, frames(error)) from error


def _failed(outbox_name: str, row: Claimed, problem: Exception) -> Retry:
    """Log why nothing was made of a row, and return its outcome."""
    kind = type(problem).__name__
    log.error("prepare failed", outbox=outbox_name, row=row.id, error=kind, where=frames(problem))
    return Retry(stored_error(f"prepare: {kind}"))
