"""The functions that a user gives a described outbox, and what a bug in one costs: its own row, and no other."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import structlog
from psycopg.pq import TransactionStatus

from ferryman.channels.outcome import Retry
from ferryman.relay.described.rows import Claimed, Settling
from ferryman.relay.described.table import Table
from ferryman.runtime import postgres, user_code
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.logs import frames
from ferryman.runtime.postgres import Connection
from ferryman.runtime.redaction import stored_error
from ferryman.runtime.user_functions import WrongAnswer, named

log = structlog.get_logger(__name__)


MOST_PASSING = 2
"""The most rows of a batch that are tried alone although errors that may pass, such as timeouts, come with each."""

_MAY_APPEND = """\
-- outbox.may_append
SELECT current_user::text, has_schema_privilege(n.oid, 'USAGE') AND bool_and(has_function_privilege(p.oid, 'EXECUTE'))
FROM pg_namespace n JOIN pg_proc p ON p.pronamespace = n.oid
WHERE n.nspname = 'ferryman' AND p.proname IN ('outbox_append', 'outbox_append_many') GROUP BY n.oid
"""


class NotTried:
    """A row that was claimed and is released: nothing was made of it."""


NOT_TRIED = NotTried()


class SwallowedError(Exception):
    """The hook caught an error of the database and went on: nothing of the transaction can be kept."""


class SettledFailed(Exception):
    """The hook `settled` failed. `passing` is the error to retry for, or None if it is a bug."""

    def __init__(self, problem: Exception, settlings: Sequence[Settling]) -> None:
        super().__init__(user_code.told(problem))
        self.row = settlings[0].row.id
        self.kind = type(user_code.raised(problem)).__name__
        self.where = frames(user_code.raised(problem))
        self.passing = passing_error("settled", problem, self.row)


def as_they_are(_: Connection, rows: Sequence[Claimed]) -> Sequence[Any]:
    return rows


def always(_: Sequence[Claimed]) -> bool:
    return True


def never(_: Sequence[Claimed]) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Hooks:
    """The parts of a service that differ by what is sent. Each is called inside a short transaction."""

    prepare: Callable[[Connection, Sequence[Claimed]], Sequence[Any]] = as_they_are
    """Return what is sent of each row, in order; or an outcome, if the row is not to be sent."""
    reads: Callable[[Sequence[Claimed]], bool] = always
    """Return False if `prepare` does not need the database for these rows: then there is no transaction."""
    settled: Callable[[Connection, Sequence[Settling]], object] | None = None
    """Called with the settled rows, in the transaction that settles them."""
    held: Callable[[Connection], Collection[Any] | None] | None = None
    """Return the destinations that are not to be tried, once a second."""
    appends: bool = False
    """True if `settled` returns messages, which the login must be allowed to append."""

    def check(self, connection: Connection) -> None:
        """Refuse a login that could not append what `settled` returns."""
        if not self.appends:
            return
        login, may = connection.execute(_MAY_APPEND).fetchone() or (connection.info.user, False)
        if not may:
            raise Misconfigured(
                f"the courier has a function `settled`, and its login {login} may append no messages",
                remedy=f"GRANT ferryman_writer TO {login}; or annotate the function with `-> None` if it returns none",
            )

    def prepared(self, table: Table, outbox_name: str, rows: Sequence[Claimed]) -> Sequence[Any]:
        """Return what is sent of each row. An error costs its own row an attempt, and no other.

        A timeout may be the database's, and come with every row. So after some of them the other rows are NOT_TRIED.
        Raise Misconfigured if nothing is made of any row because a table or a privilege is missing: no row is to blame.
        """
        if self.prepare is as_they_are:
            return rows
        made, problem = self._made(table, rows)
        return made if problem is None else self._each_made(table, outbox_name, rows, problem)

    def _each_made(self, table: Table, outbox_name: str, rows: Sequence[Claimed], first: Exception) -> Sequence[Any]:
        """Return what is made of each row alone, as there was a problem with them together."""
        found: list[Any] = []
        problems: list[tuple[Claimed, Exception]] = []
        passing: list[FerrymanError] = []
        for row in rows:
            if len(passing) == MOST_PASSING:
                found.append(NOT_TRIED)
                continue
            made, problem = self._made(table, [row]) if len(rows) > 1 else ((), first)
            if problem is None:
                found += made
                continue
            problems.append((row, problem))
            found.append(_retry(problem))
            if error := passing_error("prepare", problem, row.id):
                passing.append(error)
        if _shared(passing, problems) and not [each for each in found if not isinstance(each, Retry | NotTried)]:
            raise passing[0]
        for row, problem in problems:
            _log_failed(outbox_name, row, problem)
        return found

    def _made(self, table: Table, rows: Sequence[Claimed]) -> tuple[Sequence[Any], Exception | None]:
        """Return what is made of the rows, or why nothing is. Raise if the connection is lost."""
        connection = table.connection
        try:
            with postgres.transaction(connection, table.limits) if self.reads(rows) else nullcontext():
                made = list(self.prepare(connection, rows))
        except Exception as error:  # whatever the user's function raises
            if connection.broken:
                raise
            return (), error
        return made, None

    def held_now(self, table: Table) -> frozenset[str]:
        """Return the destinations that the hook holds. Raise what it raises, or a TypeError for its answer."""
        if self.held is None:
            return frozenset()
        with postgres.transaction(table.connection, table.limits):
            found = self.held(table.connection)
            return frozenset(_destinations(self.held, () if found is None else found))

    def tell(self, table: Table, settlings: Sequence[Settling]) -> None:
        """Call `settled` with rows that are settled in the open transaction."""
        if self.settled is None:
            return
        try:
            self.settled(table.connection, settlings)
            if table.connection.info.transaction_status is TransactionStatus.INERROR:
                # COMMIT would undo the settling and say nothing.
                raise SwallowedError("settled caught an error of the database, and went on")
        except Exception as error:  # whatever the user's function raises
            if table.connection.broken:
                raise
            raise SettledFailed(error, settlings) from error


def listed(hook: str, function: Callable[..., Any], made: Any, rows: Sequence[Claimed], what: str) -> list[Any]:
    """Return the items that a hook made of rows, or raise the error that says what is wrong with its answer."""
    if not isinstance(made, Iterable) or isinstance(made, str | bytes | Mapping):
        words = f"{hook} returned {named(made)}: return a list with {what} for each row, in their order"
        raise WrongAnswer(words, function)
    items = list(made)
    if len(items) != len(rows):
        count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
        words = f"{hook} returned {len(items)} items for {count}: return {what} for each, in their order"
        raise WrongAnswer(words, function)
    return items


def passing_error(hook: str, error: Exception, row: str) -> FerrymanError | None:
    """Return the error to retry for if the hook's error may pass, or a person has to set something right. Else None."""
    return user_code.passing(f"{hook} of row {row}", error)


def _destinations(function: Callable[..., Any], found: Any) -> Iterable[str]:
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        raise WrongAnswer(f"held returned {named(found)}: return a list of destinations", function)
    for each in found:
        if isinstance(each, tuple | list | Mapping | bytes):
            words = f"held returned {named(each)} in its list: return texts, as in [url for (url,) in rows]"
            raise WrongAnswer(words, function)
        if each is not None:  # a query may give NULLs, and numbers
            yield str(each)


def _shared(passing: Sequence[FerrymanError], problems: Sequence[object]) -> bool:
    """Return True if each row failed because something is missing in the database."""
    return len(passing) == len(problems) and all(isinstance(each, Misconfigured) for each in passing)


def _log_failed(outbox_name: str, row: Claimed, problem: Exception) -> None:
    raised = user_code.raised(problem)
    log.error("prepare failed", outbox=outbox_name, row=row.id, error=user_code.told(problem), where=frames(raised))


def _retry(problem: Exception) -> Retry:
    """Return the outcome of a row of which nothing was made."""
    return Retry(stored_error(f"prepare: {user_code.told(problem)}"))
