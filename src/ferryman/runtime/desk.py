"""Where a person stands who does something by hand: one connection in short transactions, and an audit of the acts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from ferryman.runtime import postgres
from ferryman.runtime.settings import Database

Connection = psycopg.Connection[tuple[Any, ...]]

_AUDIT = """\
-- desk.write_audit
INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
VALUES (%(who)s, %(act)s, %(reason)s, %(filter)s, %(entries)s)
"""


@dataclass(frozen=True, slots=True)
class Act:
    """Who does something by hand, and why."""

    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Desk:
    """A connection in autocommit mode, with the limits of each transaction on it."""

    connection: Connection
    limits: Database

    @contextmanager
    def acting(self) -> Iterator[Connection]:
        with postgres.transaction(self.connection, self.limits):
            yield self.connection


def audit(connection: Connection, what: str, act: Act, *, said: Mapping[str, Any], entries: int = 0) -> None:
    """Writes an act down, in the transaction that does it; `said` is what it was about, as it was asked for."""
    values = {"act": what, "who": act.who, "reason": act.reason, "filter": Jsonb(dict(said)), "entries": entries}
    connection.execute(_AUDIT, values)


def change(desk: Desk, what: str, act: Act, how: Callable[[Connection], bool], *, said: Mapping[str, Any]) -> bool:
    """Does what may have been done before: whether it changed anything, and only then it is written down."""
    with desk.acting() as connection:
        changed = how(connection)
        if changed:
            audit(connection, what, act, said=said)
    return changed
