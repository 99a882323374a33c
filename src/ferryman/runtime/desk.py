"""Acts by hand: one connection in short transactions, what an act selects, pauses, and an audit of what was done."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, LiteralString

from psycopg.rows import dict_row
from psycopg.sql import SQL, Composed, Identifier, Placeholder
from psycopg.types.json import Jsonb

from ferryman.runtime import postgres
from ferryman.runtime.settings import Database
from ferryman.runtime.times import moment

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

_PAUSED_OUTBOXES = """\
-- desk.paused_outboxes
SELECT outbox AS name, outbox, destination, since, who, reason FROM ferryman.described_paused
ORDER BY outbox, destination
"""

# A user's table may be in a database that Ferryman has no schema in.
_CAN_PAUSE_OUTBOXES = """\
-- desk.can_pause_outboxes
SELECT to_regclass('ferryman.described_paused') IS NOT NULL
"""

_PAUSE = """\
-- desk.pause
INSERT INTO {table} ({named}, who, reason) VALUES ({values}, %(who)s, %(reason)s) ON CONFLICT DO NOTHING
"""

_RESUME = """\
-- desk.resume
DELETE FROM {table} WHERE ({named}) = ({values})
"""

Verb = Literal["pause", "resume"]
Kind = Literal["topic", "consumer", "outbox"]
"""The kinds of things that can be paused. An outbox is a described one, or a destination of it."""

_PAUSED_IN: dict[Kind, str] = {"topic": "outbox_paused", "consumer": "inbox_paused", "outbox": "described_paused"}
_PAUSED: dict[Kind, LiteralString] = {
    "topic": _PAUSED_TOPICS, "consumer": _PAUSED_CONSUMERS, "outbox": _PAUSED_OUTBOXES,
}  # fmt: skip

WHOLE_OUTBOX = ""
"""The topic or destination that stands for the whole outbox in the tables of pauses."""


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
            now: datetime = postgres.value(connection.execute(_NOW))
            return now


def audit(connection: Connection, what: str, act: Act, *, said: Mapping[str, Any], entries: int = 0) -> None:
    """Record an act in the transaction that does it; `said` is its filter, as it was asked for."""
    values = {"act": what, "who": act.who, "reason": act.reason, "filter": Jsonb(dict(said)), "entries": entries}
    connection.execute(_AUDIT, values)


def change_pause(desk: Desk, verb: Verb, kind: Kind, name: str, act: Act, **also: str) -> bool:
    """Pause or resume, with an audit. Return False if that changed nothing: the first pause keeps its reason.

    A described outbox has one more name: the `destination`, or `WHOLE_OUTBOX`.
    """
    named = {kind: name, **also}
    composed = SQL(_PAUSE if verb == "pause" else _RESUME).format(
        table=Identifier("ferryman", _PAUSED_IN[kind]),
        named=SQL(", ").join(map(Identifier, named)),
        values=SQL(", ").join(map(Placeholder, named)),
    )
    with desk.acting() as connection:
        done = connection.execute(composed, {**named, "who": act.who, "reason": act.reason})
        if done.rowcount:
            audit(connection, verb, act, said=named)
    return bool(done.rowcount)


def read_paused(connection: Connection, kind: Kind) -> list[Row]:
    """Return what is paused: each with its name, since when, by whom and why."""
    return dict_rows(connection, _PAUSED[kind])


def paused_by(pause: Row) -> str:
    """Return by whom something is paused, since when and why."""
    return f"{pause['who']} since {moment(pause['since'])} ({pause['reason']})"


def read_paused_in(connection: Connection, outbox: str) -> list[Row]:
    """Return the pauses of a described outbox and of its destinations."""
    known = postgres.value(connection.execute(_CAN_PAUSE_OUTBOXES))
    return [each for each in read_paused(connection, "outbox") if each["outbox"] == outbox] if known else []


def count_relays(connection: Connection) -> int:
    """Return how many connections of relays there are in this database."""
    return int(postgres.value(connection.execute(_RELAYS)))


def dict_rows(
    connection: Connection, statement: LiteralString | Composed, values: Mapping[str, Any] | None = None
) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, values).fetchall()
