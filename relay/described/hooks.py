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
        """Return what is sent of each row. A bug costs its own row an attempt, and no other."""
        if self.prepare is as_they_are:
            return rows
        connection = table.connection
        try:
            with postgres.transaction(connection, table.limits) if self.reads else nullcontext():
                made = list(self.prepare(connection, rows))
            if len(made) == len(rows):
                return made
            problem: Exception = ValueError(f"prepare returned {len(made)} items for {len(rows)} rows")
        except Exception as error:  # whatever the user's function raises
            if isinstance(error, Transient) or connection.broken:
                raise
            problem = error
        if len(rows) > 1:
            return [item for row in rows for item in self.prepared(table, outbox_name, [row])]
        log.error("prepare failed", outbox=outbox_name, row=rows[0].id, error=type(problem).__name__,
                  where=frames(problem))  # fmt: skip
        return [Retry(stored_error(f"prepare: {type(problem).__name__}"))]

    def tell(self, table: Table, settlings: Sequence[Settling]) -> None:
        """Call `settled` with rows that are settled in the open transaction."""
        if self.settled is None:
            return
        try:
            self.settled(table.connection, settlings)
            if table.connection.info.transaction_status is TransactionStatus.INERROR:
                raise InFailedSqlTransaction  # it swallowed an error: COMMIT would undo the settling and say nothing
        except Exception as error:  # whatever the user's function raises
            if isinstance(error, Transient) or table.connection.broken:
                raise
            raise SettledFailed(type(error).__name__, frames(error)) from error
