"""Acts by hand: one connection in short transactions, what an act selects, pauses, and an audit of what was done."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, LiteralString

from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from psycopg.types.json import Jsonb

from ferryman.runtime import postgres
from ferryman.runtime.settings import Database

Connection = postgres.Connection
Row = dict[str, Any]

_AUDIT = """\
-- desk.write_audit
INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries)
VALUES (%(who)s, %(act)s, %(reason)s, %(filter)s, %(entries)s)
"""

_NOW = """\
-- desk.now
SELECT clock_timestamp()
"""

_BY_INDEX = """\
-- desk.by_index
SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true)
"""

# Every role can see the application name of every connection.
_RELAYS = """\
-- desk.relays
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'ferryman relay%'
"""

_PAUSED_TOPICS = """\
-- desk.paused_topics
SELECT CASE topic WHEN '' THEN 'outbox' ELSE topic END AS name, topic, since, who, reason
FROM ferryman.outbox_paused ORDER BY topic
"""

_PAUSED_CONSUMERS = """\
-- desk.paused_consumers
SELECT consumer AS name, consumer, since, who, reason FROM ferryman.inbox_paused ORDER BY consumer
"""

_PAUSE = """\
-- desk.pause
INSERT INTO {table} ({kind}, who, reason) VALUES (%(name)s, %(who)s, %(reason)s) ON CONFLICT DO NOTHING
"""

_RESUME = """\
-- desk.resume
DELETE FROM {table} WHERE {kind} = %(name)s
"""

Verb = Literal["pause", "resume"]
Kind = Literal["topic", "consumer"]
"""The kinds of things that can be paused."""

_PAUSED_IN: dict[Kind, str] = {"topic": "outbox_paused", "consumer": "inbox_paused"}

WHOLE_OUTBOX = ""
"""The topic that stands for the whole outbox in the table of pauses."""


@dataclass(frozen=True, slots=True)
class Act:
    """The person who does something by hand, and the reason."""

    who: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The messages that meet all of these conditions: from `since` on, and before `until`."""

    topic: str | None = None
    type: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the conditions as the statements name them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the conditions that were given, and no others, as the audit keeps them."""
        given = {name: value for name, value in Selection.parameters(self).items() if value is not None}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items()}


def selected(table: LiteralString, at: LiteralString) -> LiteralString:
    """Return the conditions of a `Selection` in SQL, on a table and its column for the time."""
    return f"""\
(%(topic)s::text IS NULL OR {table}.topic = %(topic)s) AND (%(type)s::text IS NULL OR {table}.type = %(type)s)
AND (%(since)s::timestamptz IS NULL OR {at} >= %(since)s) AND (%(until)s::timestamptz IS NULL OR {at} < %(until)s)"""


@dataclass(frozen=True, slots=True)
class Story:
    """The reason why a message is where it is, and the command to run next, if there is one."""

    reason: str
    next: str | None


@dataclass(frozen=True, slots=True)
class Desk:
    """A connection in autocommit mode, with the limits of each transaction on it."""

    connection: Connection
    limits: Database

    @contextmanager
    def acting(self) -> Iterator[Connection]:
        """Open a short transaction."""
        with postgres.transaction(self.connection, self.limits):
            yield self.connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a short transaction that goes by the indexes, whatever the statistics say."""
        with self.acting() as connection:
            connection.execute(_BY_INDEX)
            yield connection

    def now(self) -> datetime:
        """Return the time by the database's clock, which is the truth."""
        with self.acting() as connection:
            moment: datetime = postgres.value(connection.execute(_NOW))
            return moment


def audit(connection: Connection, what: str, act: Act, *, said: Mapping[str, Any], entries: int = 0) -> None:
    """Record an act in the transaction that does it; `said` is its filter, as it was asked for."""
    values = {"act": what, "who": act.who, "reason": act.reason, "filter": Jsonb(dict(said)), "entries": entries}
    connection.execute(_AUDIT, values)


def change_pause(desk: Desk, verb: Verb, kind: Kind, name: str, act: Act) -> bool:
    """Pause or resume, with an audit. Return False if that changed nothing: the first pause keeps its reason."""
    statement = SQL(_PAUSE if verb == "pause" else _RESUME)
    composed = statement.format(table=Identifier("ferryman", _PAUSED_IN[kind]), kind=Identifier(kind))
    with desk.acting() as connection:
        done = connection.execute(composed, {"name": name, "who": act.who, "reason": act.reason})
        if done.rowcount:
            audit(connection, verb, act, said={kind: name})
    return bool(done.rowcount)


def read_paused(connection: Connection, kind: Kind) -> list[Row]:
    """Return what is paused: each with its name, since when, by whom and why."""
    return dict_rows(connection, _PAUSED_TOPICS if kind == "topic" else _PAUSED_CONSUMERS)


def count_relays(connection: Connection) -> int:
    """Return how many connections of relays there are in this database."""
    return int(postgres.value(connection.execute(_RELAYS)))


def dict_rows(connection: Connection, statement: LiteralString, values: Mapping[str, Any] | None = None) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, values).fetchall()
