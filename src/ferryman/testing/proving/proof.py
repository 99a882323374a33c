"""The judgment of a run: the invariant, and what the runtime itself promises, of what the run left."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from ferryman.consumer.store.receipts import HANDLED, RECEIVED, REJECTED, Connection
from ferryman.consumer.wire import restored_reports

_RECEIPTS = """\
-- prove.receipts
SELECT id, status, reason, error, results FROM ferryman.inbox WHERE consumer = %(consumer)s
"""
_REPORTED = """\
-- prove.reported
SELECT id, topic, key, type, payload FROM ferryman.outbox WHERE id = ANY (%(ids)s)
"""
_UNFINISHED = """\
-- prove.unfinished
SELECT count(*) FROM ferryman.inbox_open
"""
_OPEN = """\
-- prove.open
SELECT pid, left(regexp_replace(query, '\\s+', ' ', 'g'), 100) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND xact_start IS NOT NULL
  AND pid <> pg_backend_pid() AND pid <> ALL (%(spared)s)
"""
_END = """\
-- prove.end
SELECT pg_terminate_backend(%(pid)s, 5000)
"""
_GOING_SECONDS = 1.0

Faulty = list[tuple[frozenset[UUID], str]]
Invariant = Callable[[Any], Any]


class NotProven(AssertionError):
    """The run that failed, with what was done in it, and how to repeat just that one."""

    __module__ = "ferryman.testing"


class LeftReceipt(NamedTuple):
    """The receipt of one message."""

    status: str
    reason: str | None
    error: str | None
    results: str | None

    @property
    def reports(self) -> set[tuple[Any, ...]]:
        """The reports as (id, topic, key, type, payload)."""
        return {(each.id, each.topic, each.key, each.type, each.payload) for each in restored_reports(self.results)}


@dataclass(slots=True)
class Left:
    """The state that one run left."""

    receipts: Mapping[UUID, LeftReceipt]
    reported: list[tuple[Any, ...]]
    """Each copy of a report in the outbox."""
    unfinished: int
    open: list[str]
    faulty: Faulty

    @property
    def rejected(self) -> dict[UUID, str]:
        return {
            identity: f"{each.reason}: {each.error}"
            for identity, each in self.receipts.items()
            if each.status == REJECTED
        }


def seen(connection: Connection, consumer: str, spared: Collection[int], faulty: Faulty) -> Left:
    """Return what the run left in the database."""
    still_open = _open(connection, spared)
    rows = connection.execute(_RECEIPTS, {"consumer": consumer}).fetchall()
    receipts = {row[0]: LeftReceipt(*row[1:]) for row in rows}
    ids = [report[0] for each in receipts.values() for report in each.reports]
    reported = connection.execute(_REPORTED, {"ids": ids}, binary=True).fetchall()
    [(unfinished,)] = connection.execute(_UNFINISHED).fetchall()
    return Left(receipts, reported, unfinished, still_open, faulty)


def _open(connection: Connection, spared: Collection[int]) -> list[str]:
    """Return the transactions that nobody will end. Those of a connection that was cut end within a moment."""
    until = time.monotonic() + _GOING_SECONDS
    while rows := connection.execute(_OPEN, {"spared": list(spared)}).fetchall():
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    for pid, _ in rows:
        connection.execute(_END, {"pid": pid})
    return [query for _, query in rows]


def broken(
    left: Left, plain: Left, expected: Collection[UUID], *, at_most_once: bool, compare: bool, again: bool
) -> str | None:
    """Return which promise of the runtime does not hold, or None.

    `again`: each message came once more after its verdict, so it must be reported once more.
    """
    final = {HANDLED, REJECTED, RECEIVED} if at_most_once else {HANDLED, REJECTED}
    if without := [each for each in expected if each not in left.receipts or left.receipts[each].status not in final]:
        return f"no verdict on {_named(without)}"
    if left.open:
        return f"a connection of the handler's still has a transaction open, after: {left.open[0]}"
    if left.unfinished:
        return "a batch was committed without its verdicts"
    if rejected := {each: why for each, why in left.rejected.items() if each not in plain.rejected}:
        return "rejected, which it is not in the plain run: " + "; ".join(rejected.values())
    for ids, why in left.faulty:
        if ids and ids.isdisjoint(plain.rejected):
            of = f" (in a batch of {len(ids)})" if len(ids) > 1 else ""
            return f"the handler failed{of}, though what it was given can be handled: {why}"
    return _reports(left, plain, compare=compare and not at_most_once, again=again)


def _reports(left: Left, plain: Left, *, compare: bool, again: bool) -> str | None:
    times, reported = Counter(each[0] for each in left.reported), set(left.reported)
    if again and (once := [each for each, many in times.items() if many < 2]):
        return f"its message came again, and it was not reported again: {_named(once)}"
    for identity, receipt in left.receipts.items():
        if missing := receipt.reports - reported:
            return f"{identity}: its receipt has a report that is not so in the outbox: {_first(missing)}"
        before = plain.receipts.get(identity)
        if compare and before is not None and before.reports != receipt.reports:
            return (
                f"{identity} is reported differently from try to try: {_first(before.reports)} in the plain run, here "
                f"{_first(receipt.reports)}. If that is meant (a time, a number that is drawn), say repeatable=False"
            )
    return None if len(times) == len(reported) else "two reports have the same id and other bytes"


def asked(invariant: Invariant, db: "psycopg.Connection[Any]") -> str | None:
    """Return why the invariant does not hold, or None. One that returns nothing holds unless it raises."""
    try:
        answer = invariant(db)
    except Exception as error:
        return f"the invariant raised {type(error).__name__}: {error}"
    finally:
        if not db.closed and not db.autocommit:
            db.rollback()
    return None if answer is None or answer else f"the invariant does not hold: it answered {answer!r}"


def _named(ids: Collection[UUID]) -> str:
    return ", ".join(map(str, ids))


def _first(reports: set[tuple[Any, ...]]) -> str:
    if not reports:
        return "nothing"
    identity, topic, _, kind, payload = min(reports)
    return f"{kind} {identity} to {topic}: {payload[:80]!r}"
