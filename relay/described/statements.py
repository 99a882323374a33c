"""The statements of one described outbox, made once from validated identifiers and from words that do not change."""

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from ferryman.relay.described.model import Layout
from ferryman.relay.described.policy import retries_of
from ferryman.runtime.settings_outbox import Outbox

IN_DOUBT = "claimed, and never settled: its relay ended, or took too long"
"""What a row says while it is being sent, so that it still says so when nobody settles it."""
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
RETURNING due.id::text, {topic}, t.{key}::text, {type}, {payload}, {headers}, {content_type}, {created_us}::bigint,
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

# What ended its relay as often as it may be tried.
_BURY = """\
-- outbox.bury
UPDATE {table} t SET {status} = {given_up}, {error} = {words}
WHERE {lost} AND NOT {left}
RETURNING {topic}
"""

_BACKLOG = """\
-- outbox.described_backlog
SELECT {topic}, count(*) FILTER (WHERE {alive} AND coalesce(t.{attempts}, 0) = 0),
       extract(epoch FROM clock_timestamp() - min({created}) FILTER (WHERE {alive}))::float8,
       count(*) FILTER (WHERE {alive} AND t.{attempts} > 0), 0, count(*) FILTER (WHERE NOT {alive})
FROM {table} t WHERE t.{status} IN ({unfinished}) GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class Statements:
    """`claim_lost` takes over what another relay claimed and did not settle."""

    claim: Composed
    claim_lost: Composed
    settle: Composed
    bury: Composed
    backlog: Composed


def compiled(outbox: Outbox, layout: Layout) -> Statements:
    parts = _parts(outbox, layout)
    return Statements(
        claim=_put(_CLAIM, parts, which=_put("{is_pending} AND {is_due}", parts)),
        claim_lost=_put(_CLAIM, parts | {"turn": SQL("")}, which=parts["lost"]),
        settle=_put(_SETTLE, parts),
        bury=_put(_BURY, parts),
        backlog=_put(_BACKLOG, parts),
    )


def _parts(outbox: Outbox, layout: Layout) -> dict[str, Composable]:
    """Everything that stands in braces; what comes later is made of what came before."""
    words, error = outbox.words, SQL(layout.types["error"])
    parts: dict[str, Composable] = {role: Identifier(name) for role, name in layout.columns.items()}
    parts |= {f"{role}_type": SQL(kind) for role, kind in layout.types.items()}
    parts |= {
        "table": Identifier(*layout.table),
        "limit": Literal(outbox.retry.limit),
        "lease_seconds": Literal(outbox.lease.seconds),
        "in_doubt": SQL("{}::{}").format(Literal(IN_DOUBT), error),  # which cuts it off where there is little room
        "words": SQL("{}::{}").format(Literal(GIVEN_UP), error),
        "given_up": Literal(words.dead or words.pending[-1]),
        "claimed": Literal(words.claimed),
        "pending": _words(words.pending),
        "terminal": _words([words.done, words.dead]),
        "unfinished": _words([*words.pending, words.claimed, words.dead]),
    }
    parts |= _standing(words.claimed, parts)
    parts["set_claimed"] = _put("{status} = {claimed}, ", parts) if words.claimed else SQL("")
    parts["lost"] = _put(
        "{in_flight} AND (t.{lease} IS NULL OR t.{lease} + make_interval(secs => {lease_seconds}) <= now())", parts
    )
    parts |= _content(outbox, layout, parts)
    parts["is_due"] = _due(outbox, layout, parts)
    parts["turn"] = _turn(words.claimed, parts) if outbox.order == "key" else SQL("")
    return parts


def _standing(claimed: str | None, parts: dict[str, Composable], row: str = "t") -> dict[str, Composable]:
    """How a row stands. That it is being sent is said by a word of its own, or by its error."""
    said = {**parts, "row": Identifier(row)}
    said["left"] = _put("coalesce({row}.{attempts}, 0) < {limit}", said)
    if claimed is not None:
        said["is_pending"] = _put("{row}.{status} IN ({pending})", said)
        said["in_flight"] = _put("{row}.{status} = {claimed}", said)
    else:
        said["is_pending"] = _put("{row}.{status} IN ({pending}) AND {row}.{error} IS DISTINCT FROM {in_doubt}", said)
        said["in_flight"] = _put(
            "({row}.{status} IN ({pending}) AND {row}.{error} IS NOT DISTINCT FROM {in_doubt})", said
        )  # fmt: skip
    said["alive"] = _put("({row}.{status} NOT IN ({terminal}) AND ({left} OR {in_flight}))", said)
    return said


def _content(outbox: Outbox, layout: Layout, parts: dict[str, Composable]) -> dict[str, Composable]:
    """What the message is made of, and when it was written; what is written when it is over."""
    kind = layout.types["payload"]
    of_bytes = kind == "bytea"
    media = "application/json" if kind.startswith("json") else None if of_bytes else "text/plain; charset=utf-8"
    made: dict[str, Composable] = {
        "topic": _put("t.{topic}::text", parts) if layout.has("topic") else Literal(outbox.topic),
        "type": _put("t.{type}::text", parts) if layout.has("type") else Literal(outbox.type),
        "payload": _put("t.{payload}" if of_bytes else "convert_to(t.{payload}::text, 'UTF8')", parts),
        "headers": _put("t.{headers}::text", parts) if layout.has("headers") else SQL("NULL"),
        "content_type": _put("t.{content_type}::text", parts) if layout.has("content_type") else Literal(media),
        "avoided": _put(" AND t.{topic} <> ALL (%(avoided)s::text[])", parts) if layout.has("topic") else SQL(""),
        "created": _put("t.{created_at}" if layout.has("created_at") else "t.{lease}", parts),
        "order": _put("t.{created_at}, t.{id}" if layout.has("created_at") else "t.{id}", parts),
        "set_done": SQL(""),
        "set_next": SQL(""),
    }
    made["created_us"] = _put("(extract(epoch FROM {created}::timestamptz) * 1000000)", made)
    if layout.has("done_at"):
        made["set_done"] = _put(
            "{done_at} = CASE WHEN n.done THEN clock_timestamp() ELSE t.{done_at} END,\n    ", parts
        )
    if layout.has("next_attempt_at"):
        made["set_next"] = _put(
            "{next_attempt_at} = CASE WHEN n.wait_seconds IS NULL THEN t.{next_attempt_at} "
            "ELSE clock_timestamp() + make_interval(secs => n.wait_seconds) END,\n    ", parts,
        )  # fmt: skip
    return made


def _due(outbox: Outbox, layout: Layout, parts: dict[str, Composable]) -> Composed:
    """By the time that stands in the row, else by the lease and the waits between attempts."""
    if layout.has("next_attempt_at"):
        return _put("(t.{next_attempt_at} IS NULL OR t.{next_attempt_at} <= now())", parts)
    retries = retries_of(outbox)
    waits = [retries.backoff.delay_seconds(attempts) for attempts in range(1, retries.limit + 1)]
    return _put(
        "(t.{lease} IS NULL OR coalesce(t.{attempts}, 0) < 1 "
        "OR t.{lease} + make_interval(secs => ({waits}::float8[])[t.{attempts}]) <= now())",
        parts, waits=Literal(waits),
    )  # fmt: skip


def _turn(claimed: str | None, parts: dict[str, Composable]) -> Composed:
    """No earlier row of its key is to be sent, or being sent: each relay sees that of the others' rows."""
    return _put(
        " AND NOT EXISTS (SELECT FROM {table} e WHERE e.{key} = t.{key} AND {alive} "
        "AND (e.{created_at}, e.{id}) < (t.{created_at}, t.{id}))",
        _standing(claimed, parts, "e"),
    )  # fmt: skip


def _words(words: Iterable[str | None]) -> Composed:
    return SQL(", ").join(Literal(word) for word in words if word is not None)


def _put(template: str, parts: dict[str, Composable], **more: Composable) -> Composed:
    return SQL(template).format(**parts, **more)
