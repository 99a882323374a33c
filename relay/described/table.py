"""A described table: inspected when the relay connects, then claimed from and settled with statements made for it."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, TypeAlias

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from ferryman.migrations import chains
from ferryman.relay.described.layout import Layout, check_words, fit, look
from ferryman.relay.described.rows import ClaimedRow, RowEnd, Settling
from ferryman.relay.model import Entry
from ferryman.relay.policy import retries_of
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime import postgres
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Database
from ferryman.runtime.settings_outbox import Outbox

IN_DOUBT = "claimed, and never settled: its relay ended, or took too long"
"""The error of a row while it is being sent, so that it stays there when nobody settles the row."""
GIVEN_UP = "given up: each time it was claimed its relay ended, or took too long"

_CLAIM = """\
-- outbox.claim
WITH due AS (
    SELECT t.{id} AS id, t.{error}::text AS error, t.{status}::text AS status
    FROM {table} t
    WHERE {which} AND {left}{turn}{avoided}
    ORDER BY {order}
    LIMIT %(most)s
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE {table} t
SET {set_claimed}{attempts} = coalesce(t.{attempts}, 0) + 1, {lease} = clock_timestamp(), {error} = {in_doubt}
FROM due
WHERE t.{id} = due.id
RETURNING due.id::text, {row_topic}, t.{key}::text, {row_type}, {row_payload}, {row_headers}, {row_content_type},
          greatest(least(extract(epoch FROM {created}::timestamptz) * 1000000, 9e18), -9e18)::bigint,
          t.{attempts}, t.{lease}, due.error, due.status
"""

_SETTLE = """\
-- outbox.settle
UPDATE {table} t
SET {set_next}{set_done}{status} = n.status::{status_type}, {attempts} = greatest(t.{attempts} - n.back, 0),
    {error} = n.error::{error_type}
FROM unnest(%(ids)s::text[]::{id_type}[], %(claimed_ats)s::{lease_type}[], %(statuses)s::text[], %(backs)s::integer[],
            %(errors)s::text[], %(dones)s::boolean[], %(waits)s::float8[])
     n (id, claimed_at, status, back, error, done, wait_seconds)
WHERE t.{id} = n.id AND t.{status} NOT IN ({terminal}) AND (n.done OR t.{lease} = n.claimed_at)
RETURNING t.{id}::text
"""

# Rows that ended their relay as often as a row may be tried.
_BURY = """\
-- outbox.bury
UPDATE {table} t SET {status} = {given_up}, {error} = {words}
WHERE {lost} AND NOT {left}
RETURNING {row_topic}
"""

_BACKLOG = """\
-- outbox.described_backlog
SELECT {row_topic}, count(*) FILTER (WHERE {alive} AND coalesce(t.{attempts}, 0) = 0),
       extract(epoch FROM clock_timestamp() - min({created}) FILTER (WHERE {alive}))::float8,
       count(*) FILTER (WHERE {alive} AND t.{attempts} > 0), 0, count(*) FILTER (WHERE NOT {alive})
FROM {table} t WHERE t.{status} IN ({unfinished}) GROUP BY 1
"""


# No earlier row of the key waits or is being sent, by this relay or another.
_EARLIER = """ AND NOT EXISTS (SELECT FROM {table} e WHERE e.{key} = t.{key} AND {alive}
                    AND (e.{created_at}, e.{id}) < (t.{created_at}, t.{id}))"""

Parts: TypeAlias = dict[str, str | Composable]
"""Parts of the statements by name. A text is a template itself, which names other parts in braces."""


@dataclass(frozen=True, slots=True)
class Table:
    """One described outbox on a connection to its database. Each call is one short transaction."""

    connection: Connection
    statements: Mapping[str, Composed]
    limits: Database

    def claim(self, most: int, avoided: Collection[str] = (), *, lost: bool = False) -> list[ClaimedRow]:
        """Claim rows that are due, the oldest first; with `lost`, rows that another relay left behind."""
        statement = self.statements["claim_lost" if lost else "claim"]
        found = self._run(statement, {"most": most, "avoided": list(avoided)})
        return sorted((_row(columns, alone=lost) for columns in found), key=lambda row: (row.entry.created_us, row.id))

    def settle(self, what: Sequence[Settling]) -> set[str]:
        """Settle all in one statement. Return the ids of those that were still ours."""
        wanted = {
            "ids": [each.row.id for each in what],
            "claimed_ats": [each.row.claimed_at for each in what],
            "statuses": [each.status for each in what],
            "backs": [0 if each.counts else 1 for each in what],
            "errors": [each.error for each in what],
            "dones": [each.end is RowEnd.DONE for each in what],
            "waits": [each.wait_seconds for each in what],
        }
        return {identity for (identity,) in self._run(self.statements["settle"], wanted)}

    def bury(self) -> list[str]:
        """Give up rows that ended their relay each time. Return their topics."""
        return [topic for (topic,) in self._run(self.statements["bury"])]

    def backlog(self) -> list[Backlog]:
        return [Backlog(*row) for row in self._run(self.statements["backlog"])]

    def _run(self, statement: Composed, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with postgres.transaction(self.connection, self.limits) as cursor:
            return cursor.execute(statement, values).fetchall()


def open_table(connection: Connection, name: str, outbox: Outbox, limits: Database) -> Table:
    """Return the table; raise Misconfigured, with the DDL that mends it, if it does not fit its description."""
    with postgres.translated():
        live, owner = look(connection, outbox), outbox.table.partition(".")[0]
        if live is None and owner in chains.owners():
            chains.check(connection, (owner,))  # one of ours: its migrations make it
        layout = fit(name, outbox, live)
        check_words(connection, name, outbox, layout.types["status"])
    return Table(connection, compiled(outbox, layout), limits)


def _row(columns: Sequence[Any], *, alone: bool) -> ClaimedRow:
    """Return the row, with an empty key or payload where it has none: a null would be a tombstone."""
    ce_id, topic, key, kind, payload, headers, content_type, created_us, attempts, claimed_at, error, status = columns
    body, created = bytes(payload or b""), created_us or 0
    entry = Entry(0, ce_id, topic or "", key or "", kind or "", body, _headers(headers), content_type, created, 0)
    return ClaimedRow(entry, attempts, claimed_at, error, status, alone)


def _headers(text: str | None) -> str | None:
    """Return the headers as an object of strings. Other values are JSON-encoded; anything but an object is ignored."""
    given = json.loads(text) if text else None
    if not isinstance(given, dict):
        return None
    return json.dumps({
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items() if value is not None
    })  # fmt: skip


def compiled(outbox: Outbox, layout: Layout) -> dict[str, Composed]:
    """Return the statements; `claim_lost` takes over rows that another relay claimed and did not settle."""
    parts = _parts(outbox, layout)
    lost: Parts = {**parts, "which": "{lost}", "turn": ""}
    templates = {"claim": _CLAIM, "settle": _SETTLE, "bury": _BURY, "backlog": _BACKLOG}
    return {name: _put(each, parts) for name, each in templates.items()} | {"claim_lost": _put(_CLAIM, lost)}


def _parts(outbox: Outbox, layout: Layout) -> Parts:
    """Return everything that the templates name in braces: a text is a template itself."""
    words, retries = outbox.words, retries_of(outbox.retry)
    columns = {role: Identifier(name) for role, name in layout.columns.items()}
    types = {f"{role}_type": SQL(kind) for role, kind in layout.types.items()}
    literals = {
        "row": Identifier("t"),
        "table": Identifier(*layout.table),
        "limit": Literal(outbox.retry.limit),
        "lease_seconds": Literal(outbox.lease.seconds),
        "in_doubt_words": Literal(IN_DOUBT),
        "given_up_words": Literal(GIVEN_UP),
        "waits": Literal([retries.backoff.delay_seconds(attempts) for attempts in range(1, retries.limit + 1)]),
        "given_up": Literal(words.dead or words.pending[-1]),
        "claimed": Literal(words.claimed),
        "pending": _words(words.pending),
        "terminal": _words([words.done, words.dead]),
        "unfinished": _words([*words.pending, words.claimed, words.dead]),
    }
    conditions = {
        "in_doubt": "{in_doubt_words}::{error_type}",  # which cuts it off where there is little room
        "words": "{given_up_words}::{error_type}",
        "which": "{is_pending} AND {is_due}",
        "left": "coalesce({row}.{attempts}, 0) < {limit}",
        "alive": "({row}.{status} NOT IN ({terminal}) AND ({left} OR {in_flight}))",
        "lost": "{in_flight} AND (t.{lease} IS NULL OR t.{lease} + make_interval(secs => {lease_seconds}) <= now())",
    }
    parts: Parts = {**columns, **types, **literals, **conditions, **_states(words.claimed), **_content(outbox, layout)}
    earlier = _put(_EARLIER, parts | {"row": Identifier("e")}) if outbox.order == "key" else ""
    return parts | {"turn": earlier}


def _states(claimed: str | None) -> Parts:
    """Return the conditions on a row's state. A row being sent has a status word of its own, or else an error."""
    if claimed is not None:
        return {
            "is_pending": "{row}.{status} IN ({pending})",
            "in_flight": "{row}.{status} = {claimed}",
            "set_claimed": "{status} = {claimed}, ",
        }
    return {
        "is_pending": "{row}.{status} IN ({pending}) AND {row}.{error} IS DISTINCT FROM {in_doubt}",
        "in_flight": "({row}.{status} IN ({pending}) AND {row}.{error} IS NOT DISTINCT FROM {in_doubt})",
        "set_claimed": "",
    }


def _content(outbox: Outbox, layout: Layout) -> Parts:
    """Return what depends on the table's columns: a message's parts, when a row is due, what settling sets."""
    has, kind = layout.has, layout.types["payload"]
    by_time = "(t.{next_attempt_at} IS NULL OR t.{next_attempt_at} <= now())"
    by_lease = (
        "(t.{lease} IS NULL OR coalesce(t.{attempts}, 0) < 1 "
        "OR t.{lease} + make_interval(secs => ({waits}::float8[])[t.{attempts}]) <= now())"
    )
    media = "application/json" if kind.startswith("json") else None if kind == "bytea" else "text/plain; charset=utf-8"
    done = "{done_at} = CASE WHEN n.done THEN clock_timestamp() ELSE t.{done_at} END,\n    "
    next_attempt = (
        "{next_attempt_at} = CASE WHEN n.wait_seconds IS NULL THEN t.{next_attempt_at} "
        "ELSE clock_timestamp() + make_interval(secs => n.wait_seconds) END,\n    "
    )
    return {
        "row_topic": "t.{topic}::text" if has("topic") else Literal(outbox.topic),
        "row_type": "t.{type}::text" if has("type") else Literal(outbox.type),
        "row_payload": "t.{payload}" if kind == "bytea" else "convert_to(t.{payload}::text, 'UTF8')",
        "row_headers": "t.{headers}::text" if has("headers") else "NULL",
        "row_content_type": "t.{content_type}::text" if has("content_type") else Literal(media),
        "is_due": by_time if has("next_attempt_at") else by_lease,
        "avoided": " AND t.{topic} <> ALL (%(avoided)s::text[])" if has("topic") else "",
        "created": "t.{created_at}" if has("created_at") else "t.{lease}",
        "order": "t.{created_at}, t.{id}" if has("created_at") else "t.{id}",
        "set_done": done if has("done_at") else "",
        "set_next": next_attempt if has("next_attempt_at") else "",
    }


def _words(words: Iterable[str | None]) -> Composed:
    return SQL(", ").join(Literal(word) for word in words if word is not None)


def _put(template: str, parts: Parts) -> Composed:
    """Put the parts that a template names into it, and the parts that they name into them."""
    named = {name: parts[name] for _, name, _, _ in Formatter().parse(template) if name}
    return SQL(template).format(
        **{name: _put(part, parts) if isinstance(part, str) else part for name, part in named.items()}
    )
