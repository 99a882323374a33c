"""The statements of one described table: templates, with the table's columns and words put into them."""

from collections.abc import Iterable
from string import Formatter
from typing import TypeAlias

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from ferryman.relay.described import mails
from ferryman.relay.described.layout import Layout
from ferryman.relay.described.rows import BY_HAND, IN_DOUBT_BEGINS
from ferryman.relay.policy import retries_of
from ferryman.runtime.settings_outbox import Outbox

IN_DOUBT = "claimed, and not settled yet: it is being sent, or its process ended"
"""The error of a row while it is being sent; it stays there when nobody settles the row."""
IN_DOUBT_AGAIN = "claimed again, and not settled yet: it is being sent, or its process ended again"
"""The error of a row that was lost once, while it is being sent again."""
GIVEN_UP = "given up: each time it was claimed its process ended, or took too long"
HELD = IN_DOUBT_BEGINS + "each time it was claimed its process ended, or took too long"
"""The same of a row that must not be sent twice."""

_LARGEST = {"smallint": 2**15 - 1, "integer": 2**31 - 1, "bigint": 2**63 - 1}
# The longest list of waits that a statement holds: by then a wait has long reached its cap.
_MOST_WAITS = 80

_FOUND = """t.{id} AS id, t.{error}::text AS error, t.{status}::text AS status, t.{lease} AS lease
    FROM {table} t"""

_CHANGED = """claimed AS (
    UPDATE {table} t SET {set_claimed}
    FROM due
    WHERE t.{id} = due.id
    RETURNING {claimed_row}
)"""

_CLAIM = """\
-- outbox.claim
WITH due AS (
    SELECT {found}
    WHERE {which} AND {left}{turn}{not_begun}{avoided}{each}
    ORDER BY {order}
    LIMIT %(most)s
    FOR UPDATE OF t SKIP LOCKED
){logged}, {changed}{begun}
SELECT {read_row}
"""

# Each destination gives at most its room, however many rows wait behind it. PostgreSQL walks from one destination to
# the next by an index on (destination, order), and reads none of the rows that it passes over. Where it begins is two
# conditions, of which one is false: with OR between them, a generic plan reads each row before `after`.
_CLAIM_FAIR = """\
-- outbox.claim_fair
WITH RECURSIVE places (place, number) AS (
    (SELECT t.{destination}, 1 FROM {table} t
     WHERE {is_pending} AND %(after)s::text IS NULL ORDER BY t.{destination} LIMIT 1)
    UNION ALL
    (SELECT t.{destination}, 1 FROM {table} t
     WHERE {is_pending} AND t.{destination} > %(after)s::text::{destination_type} ORDER BY t.{destination} LIMIT 1)
    UNION ALL
    SELECT (SELECT t.{destination} FROM {table} t WHERE {is_pending} AND t.{destination} > p.place
            ORDER BY t.{destination} LIMIT 1), p.number + 1
    FROM places p WHERE p.place IS NOT NULL AND p.number < %(places)s
), due AS (
    SELECT head.*, p.number FROM places p
    LEFT JOIN unnest(%(busy)s::text[]::{destination_type}[], %(in_flight)s::integer[]) b (place, rows)
        ON b.place = p.place
    CROSS JOIN LATERAL (
        SELECT {found}
        WHERE t.{destination} = p.place AND {which} AND {left}{turn}{not_begun}
        ORDER BY {order}
        LIMIT greatest(%(each)s - coalesce(b.rows, 0), 0)
        FOR UPDATE OF t SKIP LOCKED
    ) head
    WHERE p.place IS NOT NULL AND p.place::text <> ALL (%(avoided)s::text[])
    LIMIT %(most)s
), {changed}
SELECT p.place::text, walk.many, found.*
FROM (SELECT count(place) FROM places) walk (many)
JOIN places p ON p.number = CASE WHEN (SELECT count(*) FROM due) < %(most)s THEN walk.many
                                 ELSE (SELECT max(number) FROM due) END
LEFT JOIN (SELECT {read_row}) found ON true
"""

# Of the rows that were lost, each destination gives at most its room too: the others would wait behind their leases.
_EACH = """
      AND t.{id} IN (
        SELECT lost.id FROM (
            SELECT t.{id} AS id, t.{destination} AS place,
                   row_number() OVER (PARTITION BY t.{destination} ORDER BY {order}) AS number
            FROM {table} t WHERE {which} AND {left}{turn}{not_begun}{avoided}
        ) lost
        LEFT JOIN unnest(%(busy)s::text[]::{destination_type}[], %(in_flight)s::integer[]) b (place, rows)
            ON b.place = lost.place
        WHERE lost.number <= %(each)s - coalesce(b.rows, 0))"""

# At the largest number that its type holds, the count stands still: one row must not fail the claims of all.
_SET_CLAIMED = """\
{set_status}{set_touched}{attempts} = least(coalesce(t.{attempts}, 0), {most_attempts} - 1) + 1,
    {lease} = clock_timestamp(), {error} = {mark}"""

_SET_BURIED = "{set_touched}{status} = {given_up}, {error} = {words}"

_CLAIMED_ROW = """due.id::text AS id, {row_destination} AS destination, {row_key} AS key, {row_type} AS type,
              {row_headers} AS headers, {row_content_type} AS content_type,
              greatest(least(extract(epoch FROM {created}::timestamptz) * 1000000, 9e18), -9e18)::bigint AS created_us,
              t.{attempts} AS attempts, t.{lease} AS lease, due.error AS error, due.status AS status,
              {row_reference} AS reference, {row_payload} AS content"""

_READ_ROW = """\
c.id, c.destination, c.key, c.type, {sent_content}, c.headers, c.content_type, c.created_us, c.attempts, c.lease,
       c.error, c.status, c.reference, {sent_bytes}, {edition}, {doubt}
FROM {read} c"""

# The attempt that was lost began with its lease.
_LOGGED_LOSSES = """, logged AS (
    INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome)
    SELECT {name}, due.id::text, due.lease, 'lost' FROM due WHERE due.lease IS NOT NULL
    ON CONFLICT DO NOTHING
)"""

_SETTLE = """\
-- outbox.settle
WITH n AS (
    SELECT * FROM unnest(
        %(ids)s::text[]::{id_type}[], %(claimed_ats)s::text[]::{lease_type}[], %(ends)s::text[], %(statuses)s::text[],
        %(errors)s::text[], %(waits)s::text[]::float8[], %(references)s::text[]{logged_columns})
    n (id, claimed_at, ending, status, error, wait_seconds, reference{logged_names})
){logged}
UPDATE {table} t
SET {set_next}{set_done}{set_reference}{set_touched}{set_lease}{status} = {next_status}::{status_type},
    {attempts} = greatest(t.{attempts} - (n.ending IN ('done', 'released', 'returned'))::integer, 0),
    {error} = n.error::{error_type}
FROM n
WHERE t.{id} = n.id AND t.{status} NOT IN ({terminal})
  AND (t.{lease} = n.claimed_at AND {in_flight} OR n.ending = 'done'{same_content})
RETURNING t.{id}::text
"""

# A row that was not tried leaves nothing in the log.
_ATTEMPTS = """, logged AS (
    INSERT INTO ferryman.outbox_attempt AS a
        (outbox, row_id, began_at, outcome, code, error, reference, excerpt, content, provider)
    SELECT {name}, n.id::text, {began_at}, n.outcome, n.code, n.error, n.reference, n.excerpt, n.content, {provider}
    FROM n WHERE n.outcome <> 'released'{if_logged}
)"""
# A row that was lost, taken over and not tried has its former lease again: it waits for no other one, and the attempt
# that was lost is not lost twice.
_SET_LEASE = """{lease} = CASE WHEN n.ending = 'returned' THEN coalesce((
        SELECT a.began_at FROM ferryman.outbox_attempt a
        WHERE a.outbox = {name} AND a.row_id = n.id::text AND a.outcome = 'lost' ORDER BY a.number DESC LIMIT 1
    )::{lease_type}, t.{lease}) ELSE t.{lease} END,
    """
_LOGGED = {
    "logged": _ATTEMPTS,
    "logged_columns": ",\n        %(outcomes)s::text[], %(codes)s::text[], %(excerpts)s::text[], %(contents)s::text[]",
    "logged_names": ", outcome, code, excerpt, content",
    "set_lease": _SET_LEASE,
}
_NOT_LOGGED = {"logged": "", "logged_columns": "", "logged_names": "", "set_lease": ""}

# Rows that ended their relay as often as a row may be tried.
_BURY = """\
-- outbox.bury
WITH due AS (
    SELECT {found}
    WHERE {lost} AND NOT {left}{not_begun}
    LIMIT %(most)s
    FOR UPDATE OF t SKIP LOCKED
){logged}, {changed}
SELECT {read_row}
"""

# The state of a row, whatever words its table has for it. The process of a lost row is gone, or takes too long.
_STATE = """\
CASE WHEN t.{status} = {done_word} THEN 'delivered'
     WHEN t.{status} = {dead_word} AND starts_with(t.{error}::text, {by_hand}) THEN 'discarded'
     WHEN t.{status} = {dead_word} AND starts_with(t.{error}::text, {in_doubt_begins}) THEN 'held'
     WHEN t.{status} = {dead_word} THEN 'failed'
     WHEN {lost} OR {in_flight} AND t.{lease} > now() + make_interval(secs => {lease_seconds}) THEN 'lost'
     WHEN {in_flight} THEN 'sending'
     WHEN t.{status} NOT IN ({pending}) THEN 'other'
     WHEN NOT {left} THEN 'failed'
     WHEN coalesce(t.{attempts}, 0) > 0 THEN 'retrying'
     ELSE 'pending' END"""

_BACKLOG = """\
-- outbox.described_backlog
SELECT label, count(*) FILTER (WHERE state = 'pending'),
       extract(epoch FROM clock_timestamp() - min(created) FILTER (WHERE alive AND isfinite(created)))::float8,
       count(*) FILTER (WHERE state = 'retrying'), 0, count(*) FILTER (WHERE state = 'failed'),
       count(*) FILTER (WHERE state IN ('sending', 'lost')), count(*) FILTER (WHERE state = 'held')
FROM (
    SELECT r.*, r.state IN ('pending', 'retrying', 'sending', 'lost') AS alive
    FROM (SELECT {row_label} AS label, {state} AS state, {created}::timestamptz AS created
          FROM {table} t WHERE t.{status} IN ({unfinished})) r
) r
GROUP BY 1
"""

# No earlier row of the key waits or is being sent, by this relay or another.
_EARLIER = """ AND NOT EXISTS (SELECT FROM {table} e WHERE e.{key} = t.{key} AND {alive}
                    AND (e.{created_at}, e.{id}) < (t.{created_at}, t.{id}))"""

Parts: TypeAlias = dict[str, str | Composable]
"""Parts of the statements by name. A text is a template itself, which names other parts in braces."""


def compiled(
    name: str, outbox: Outbox, layout: Layout, most_content_bytes: int | None = None, provider: str | None = None
) -> dict[str, Composed]:
    """Return the statements by name. Claims read no content that is larger than this, but its size.

    `claim_lost` takes over rows that another process claimed and did not settle, and `claim_twice_lost` those that were
    lost twice running. There is no `claim_fair` without a destination in the row.
    """
    parts = parts_of(name, outbox, layout) | {"provider": Literal(provider if outbox.channel == "email" else None)}
    if most_content_bytes is not None:
        parts |= {
            "sent_content": f"CASE WHEN octet_length(c.content) <= {most_content_bytes} THEN c.content END",
            "sent_bytes": "octet_length(c.content)",
        }
    logs, mailing = outbox.channel != "kafka", outbox.channel == "email"
    logged, losses = _LOGGED if logs else _NOT_LOGGED, _LOGGED_LOSSES if logs else ""
    claim: Parts = {**parts, "logged": mails.NEVER_ENDED, "begun": mails.BEGUN} if mailing else parts
    lost: Parts = {**claim, "turn": "", "mark": "{in_doubt_again}"}
    lost |= {"was_lost": "true", "left": "{left_for_mails}"} if mailing else {"logged": losses}
    bury: Parts = {**lost, "set_claimed": _SET_BURIED, "read": "claimed", "edition": "NULL", "doubt": "NULL"}
    templates = {
        "claim": (_CLAIM, claim),
        "claim_lost": (_CLAIM, {**lost, "which": "{lost} AND {row}.{error} IS DISTINCT FROM {in_doubt_again}"}),
        "claim_twice_lost": (
            _CLAIM,
            {**lost, "which": "{lost} AND {row}.{error} IS NOT DISTINCT FROM {in_doubt_again}"},
        ),
        "settle": (_SETTLE, {**parts, **logged}),
        "bury": (_BURY, bury),
        "backlog": (_BACKLOG, parts),
    }
    if layout.has("destination") and not mailing:  # mails have one destination: their provider
        templates["claim_fair"] = (_CLAIM_FAIR, parts)
        templates["claim_lost"] = (_CLAIM, {**templates["claim_lost"][1], "each": _EACH})
    return {each: put(template, named) for each, (template, named) in templates.items()}


def given_up_words(outbox: Outbox) -> str:
    """Return the error of a row whose process ended each time."""
    return HELD if outbox.channel == "email" else GIVEN_UP


def parts_of(name: str, outbox: Outbox, layout: Layout) -> Parts:
    """Return everything that templates of this table's statements name in braces: a text is a template itself."""
    words, retries = outbox.words, retries_of(outbox.retry)
    most_waits = min(retries.limit or _MOST_WAITS, _MOST_WAITS)
    columns = {role: Identifier(column) for role, column in layout.columns.items()}
    types = {f"{role}_type": SQL(kind) for role, kind in layout.types.items()}
    literals = {
        "row": Identifier("t"),
        "table": Identifier(*layout.table),
        "name": Literal(name),
        "limit": Literal(outbox.retry.limit),
        "most_attempts": Literal(_LARGEST[layout.types["attempts"]]),
        "lease_seconds": Literal(outbox.lease.seconds),
        "in_doubt_words": Literal(IN_DOUBT),
        "in_doubt_again_words": Literal(IN_DOUBT_AGAIN),
        "given_up_words": Literal(given_up_words(outbox)),
        "waits": Literal([retries.backoff.delay_seconds(n + 1) for n in range(most_waits)]),
        "first_pending": Literal(words.pending[0]),
        "given_up": Literal(words.dead or words.pending[-1]),
        "claimed": Literal(words.claimed),
        "done_word": Literal(words.done),
        "dead_word": Literal(words.dead),
        "by_hand": Literal(BY_HAND),
        "in_doubt_begins": Literal(IN_DOUBT_BEGINS),
        "pending": _words(words.pending),
        "terminal": _words([words.done, words.dead]),
        "unfinished": _words([*words.pending, words.claimed, words.dead]),
    }
    conditions = {
        "in_doubt": "{in_doubt_words}::{error_type}",  # which cuts it off where there is little room
        "in_doubt_again": "{in_doubt_again_words}::{error_type}",
        "mark": "{in_doubt}",
        "words": "{given_up_words}::{error_type}",
        "which": "{is_pending} AND {is_due}",
        "state": _STATE,
        "left": "coalesce({row}.{attempts}, 0) < {limit}" if outbox.retry.limit else "true",
        # A mail that is lost on its last attempt is claimed once more: the provider may know what became of it.
        "left_for_mails": "coalesce({row}.{attempts}, 0) <= {limit}" if outbox.retry.limit else "true",
        "alive": "({row}.{status} NOT IN ({terminal}) AND ({left} OR {in_flight}))",
        "lost": "{in_flight} AND (t.{lease} IS NULL OR t.{lease} + make_interval(secs => {lease_seconds}) <= now())",
        "found": _FOUND,
        "changed": _CHANGED,
        "not_begun": " AND t.{id} <> ALL (%(begun)s::text[]::{id_type}[])",
        "claimed_row": _CLAIMED_ROW,
        "read_row": _READ_ROW,
        "set_claimed": _SET_CLAIMED,
        "set_touched": "{updated_at} = clock_timestamp(), " if layout.has("updated_at") else "",
        "logged": "",
        "begun": "",
        "each": "",
        "was_lost": "false",
        "is_attempt": mails.IS_ATTEMPT,
        "completed": mails.COMPLETED,
    }
    parts: Parts = {**columns, **types, **literals, **conditions, **_states(words.claimed), **_content(outbox, layout)}
    earlier = put(_EARLIER, parts | {"row": Identifier("e")}) if outbox.order == "key" else ""
    return parts | {"turn": earlier}


def _states(claimed: str | None) -> Parts:
    """Return the conditions on a row's state. A row being sent has a status word of its own, or else an error."""
    if claimed is not None:
        return {
            "is_pending": "{row}.{status} IN ({pending})",
            "in_flight": "{row}.{status} = {claimed}",
            "set_status": "{status} = {claimed}, ",
        }
    sent = "({row}.{error} IS NOT DISTINCT FROM {in_doubt} OR {row}.{error} IS NOT DISTINCT FROM {in_doubt_again})"
    return {
        "is_pending": f"{{row}}.{{status}} IN ({{pending}}) AND NOT {sent}",
        "in_flight": f"({{row}}.{{status}} IN ({{pending}}) AND {sent})",
        "set_status": "",
    }


def _content(outbox: Outbox, layout: Layout) -> Parts:
    """Return what depends on the table's columns: a message's parts, when a row is due, what settling sets."""
    has, kind = layout.has, layout.types.get("payload", "")
    destination, mailing = "topic" if outbox.channel == "kafka" else "destination", outbox.channel == "email"
    by_index = "next_attempt_at" in layout.never_null  # else a claim reads past every row that waits
    # Rows of one transaction may have the same times: by their ids too, each claim would sort all of them.
    order = [role for role in layout.order if role != "id"] or ["id"]
    by_time = (
        "t.{next_attempt_at} <= now()" if by_index else "(t.{next_attempt_at} IS NULL OR t.{next_attempt_at} <= now())"
    )
    by_lease = (
        "(t.{lease} IS NULL OR coalesce(t.{attempts}, 0) < 1 OR t.{lease} + make_interval(secs => "
        "({waits}::float8[])[least(t.{attempts}, cardinality({waits}::float8[]))]) <= now())"
    )
    media = "application/json" if kind.startswith("json") else None if kind == "bytea" else "text/plain; charset=utf-8"
    as_content = "{}" if kind in ("bytea", "") else "convert_to({}::text, 'UTF8')"
    done = "{done_at} = CASE WHEN n.ending = 'done'{same_content} THEN clock_timestamp() ELSE t.{done_at} END,\n    "
    next_attempt = (
        "{next_attempt_at} = CASE WHEN n.wait_seconds IS NULL THEN t.{next_attempt_at} "
        "ELSE clock_timestamp() + make_interval(secs => n.wait_seconds) END,\n    "
    )
    row_destination = f"t.{{{destination}}}::text" if has(destination) else Literal(outbox.topic or outbox.url)
    return {
        "row_destination": row_destination,
        "row_label": row_destination if destination == "topic" else Literal(outbox.channel),
        "row_key": "t.{key}::text" if has("key") else "NULL",
        "row_type": "t.{type}::text" if has("type") else Literal(outbox.type),
        "row_payload": as_content.format("t.{payload}" if has("payload") else "NULL::bytea"),
        "sent_content": "c.content",
        "sent_bytes": "NULL",
        "read": "read" if mailing else "claimed",
        "edition": "c.edition" if mailing else "NULL",
        "edition_of_c": mails.EDITION.format(destination="c.destination", content="c.content"),
        "edition_of_t": mails.EDITION.format(destination="{row_destination}", content="{row_payload}"),
        "doubt": mails.DOUBT if mailing else "NULL",
        "same_content": mails.SAME_CONTENT if mailing else "",
        "began_at": mails.BEGAN_AT if mailing else "n.claimed_at",
        "if_logged": mails.COMPLETES_CLAIM if mailing else "\n    ON CONFLICT DO NOTHING",
        "told_reference": mails.TOLD_REFERENCE if mailing else "n.reference",
        "row_reference": "t.{reference}::text" if has("reference") else "NULL",
        "row_headers": "t.{headers}::text" if has("headers") else "NULL",
        "row_content_type": "t.{content_type}::text" if has("content_type") else Literal(media),
        "is_due": by_time if has("next_attempt_at") else by_lease,
        "avoided": f" AND t.{{{destination}}}::text <> ALL (%(avoided)s::text[])" if has(destination) else "",
        "created": "t.{created_at}" if has("created_at") else "t.{lease}",
        "order": ", ".join(f"t.{{{role}}}" for role in order),
        "set_done": done if has("done_at") else "",
        "set_next": next_attempt if has("next_attempt_at") else "",
        "next_status": mails.NEXT_STATUS if mailing else "n.status",
        "set_reference": "{reference} = coalesce({told_reference}::{reference_type}, t.{reference}), "
        if has("reference") else "",
    }  # fmt: skip


def _words(words: Iterable[str | None]) -> Composed:
    return SQL(", ").join(Literal(word) for word in words if word is not None)


def put(template: str, parts: Parts) -> Composed:
    """Put the parts that a template names into it, and the parts that they name into them."""
    named = {name: parts[name] for _, name, _, _ in Formatter().parse(template) if name}
    return SQL(template).format(
        **{name: put(part, parts) if isinstance(part, str) else part for name, part in named.items()}
    )
