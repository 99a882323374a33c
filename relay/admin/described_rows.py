"""Rows of a described table for a person: listed, counted, shown with their attempts, sent again, or given up."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from ferryman.relay.described.layout import Layout, fit, look
from ferryman.relay.described.rows import BY_HAND
from ferryman.relay.described.statements import Parts, parts_of, put
from ferryman.relay.described.table import check_log
from ferryman.runtime import postgres
from ferryman.runtime.desk import Act, Connection, Desk, Row, Selection, audit, dict_rows
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings_outbox import Outbox

PENDING, RETRYING, SENDING, LOST, FAILED, HELD, DISCARDED, DELIVERED, OTHER = STATES = (
    "pending", "retrying", "sending", "lost", "failed", "held", "discarded", "delivered", "other",
)  # fmt: skip
"""The states of a row, as `state` in `statements.py` decides them."""
REPLAYABLE = (FAILED, RETRYING)
DISCARDABLE = (PENDING, RETRYING, LOST, FAILED)
CHUNK = 1_000
_MOST_OF_SUBJECT = 20

_SELECTED = """\
(%(ids)s::text[] IS NULL OR t.{id} = ANY (%(ids)s::text[]::{id_type}[]))
AND (%(statuses)s::text[] IS NULL OR t.{status} = ANY (%(statuses)s::text[]::{status_type}[]))
AND (%(destination)s::text IS NULL OR {row_destination} = %(destination)s::text)
AND (%(key)s::text IS NULL OR {row_key} = %(key)s::text) AND (%(type)s::text IS NULL OR {row_type} = %(type)s::text)
AND (%(since)s::timestamptz IS NULL OR {row_created} >= %(since)s::timestamptz)
AND (%(until)s::timestamptz IS NULL OR {row_created} < %(until)s::timestamptz)"""

# While a row is sent, its error only says what is true if nobody settles it.
_ROWS = """\
-- outbox.rows
SELECT t.{id}::text AS id, {row_destination} AS destination, {row_key} AS key, {row_type} AS type, {state} AS state,
       t.{status}::text AS status, coalesce(t.{attempts}, 0) AS attempts, {row_error} AS error,
       {row_created} AS created_at, t.{lease}::timestamptz AS claimed_at,
       (t.{lease} + make_interval(secs => {lease_seconds}))::timestamptz AS lease_until,
       {row_next} AS next_attempt_at, {row_done} AS done_at, {row_reference} AS reference,
       t.{error} IS NOT DISTINCT FROM {in_doubt_again} AS lost_before, clock_timestamp() AS now
FROM {table} t
WHERE {selected} AND (%(after)s::text IS NULL OR ({row_order}) > (
    SELECT {row_order} FROM {table} t WHERE t.{id} = %(after)s::text::{id_type}))
ORDER BY {row_order} LIMIT %(most)s
"""

_IDS = """\
-- outbox.row_ids
SELECT t.{id}::text FROM {table} t WHERE t.{role} = %(value)s::text::{role_type} ORDER BY {row_order} LIMIT %(most)s
"""

_COUNTS = """\
-- outbox.row_counts
SELECT {state}, count(*) FROM {table} t WHERE {selected} GROUP BY 1
"""

_PAYLOAD = """\
-- outbox.row_payload
SELECT {row_payload} FROM {table} t WHERE t.{id} = %(id)s::text::{id_type}
"""

_DESTINATION = """\
-- outbox.destination
SELECT %(destination)s::text::{place_type}::text
"""

# In the order of ids, each once: a row that fails again meanwhile is not taken again.
_CHOSEN = """\
chosen AS (
    SELECT t.{id} AS id FROM {table} t
    WHERE {selected} AND {state} = ANY (%(states)s::text[])
      AND (%(after)s::text IS NULL OR t.{id} > %(after)s::text::{id_type})
    ORDER BY t.{id} LIMIT %(most)s FOR UPDATE OF t
)"""
_REPLAY = """\
-- outbox.replay_rows
WITH {chosen}, changed AS (
    UPDATE {table} t SET {set_touched}{set_due}{status} = {first_pending}, {attempts} = 0, {error} = NULL
    FROM chosen WHERE t.{id} = chosen.id RETURNING t.{id} AS id
)
SELECT count(*), (SELECT c.id::text FROM changed c ORDER BY c.id DESC LIMIT 1) FROM changed
"""
_DISCARD = """\
-- outbox.discard_rows
WITH {chosen}, changed AS (
    UPDATE {table} t SET {set_touched}{status} = {given_up}, {error} = %(error)s::text::{error_type}
    FROM chosen WHERE t.{id} = chosen.id RETURNING t.{id} AS id
)
SELECT count(*), (SELECT c.id::text FROM changed c ORDER BY c.id DESC LIMIT 1) FROM changed
"""

# The act is in the attempt log too: what came before it is no doubt any more.
_RESOLVE = """\
-- outbox.resolve_rows
WITH {chosen}, changed AS (
    UPDATE {table} t SET {set_touched}{set_resolved} FROM chosen WHERE t.{id} = chosen.id RETURNING t.{id} AS id
), logged AS (
    INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome, error)
    SELECT {name}, c.id::text, clock_timestamp(), %(outcome)s, %(error)s FROM changed c
)
SELECT count(*), (SELECT c.id::text FROM changed c ORDER BY c.id DESC LIMIT 1) FROM changed
"""

_ACTS_OF: Mapping[str, tuple[str, Parts]] = {
    "replay": (_REPLAY, {}), "discard": (_DISCARD, {}),
    "resolve-sent": (_RESOLVE, {"set_resolved": "{set_sent}"}),
    "resolve-resend": (_RESOLVE, {"set_resolved": "{set_again}"}),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSelection(Selection):
    """The rows that meet all of these conditions; a status is a word of the table."""

    ids: tuple[str, ...] | None = None
    statuses: tuple[str, ...] | None = None
    destination: str | None = None
    key: str | None = None

    def as_json(self) -> Row:
        """Return the conditions that were given, and no others, as the audit keeps them."""
        given = self.parameters() | Selection.as_json(self)
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RowDesk:
    """A described outbox in the hands of a person."""

    desk: Desk
    called: str
    """The outbox as the person named it: its name, or the module:object of a courier that describes it."""
    name: str
    outbox: Outbox
    layout: Layout
    parts: Parts
    unread: frozenset[str] = frozenset()
    """The roles of columns that are left out, because this login may not read them."""
    archived: bool = False
    """True if these are the rows of its archive."""

    @property
    def names_destination(self) -> bool:
        """True if each row names its destination, which is its topic where rows go to Kafka."""
        return self.layout.has("topic" if self.by_kafka else "destination")

    @property
    def by_kafka(self) -> bool:
        return self.outbox.channel == "kafka"

    def fetch(self, connection: Connection, template: str, **values: Any) -> list[Row]:
        return dict_rows(connection, put(template, self.parts), values)


def open_rows(desk: Desk, called: str, name: str, outbox: Outbox, *, only_looks: bool = False) -> RowDesk:
    """Return the outbox; raise Misconfigured if its table does not fit its description.

    `only_looks`: leave out who a row is for, if this login may read the table without it.
    """
    with postgres.translated():
        live = look(desk.connection, outbox)
        layout = fit(name, outbox, live, by_relay=False)
    personal = ("destination",) if outbox.order == "key" else ("destination", "key")
    given = {role: layout.columns[role] for role in personal if only_looks and layout.has(role)}
    unread = frozenset(role for role, column in given.items() if live and not live.columns[column].readable)
    seen = replace(layout, columns={role: each for role, each in layout.columns.items() if role not in unread})
    return RowDesk(desk, called, name, outbox, seen, _parts(name, outbox, seen), unread)


def ids_of(rows: RowDesk, role: str, value: str) -> list[str]:
    """Return the ids of the oldest rows with this value in the column of a role."""
    named = {"role": "{%s}" % role, "role_type": "{%s_type}" % role}  # noqa: UP031 - braces
    with rows.desk.acting() as connection:
        found = connection.execute(put(_IDS, {**rows.parts, **named}), {"value": value, "most": _MOST_OF_SUBJECT})
        return [identity for (identity,) in found.fetchall()]


def archive_of(rows: RowDesk) -> RowDesk | None:
    """Return the archive of the outbox, whose rows are looked at in the same way."""
    if rows.outbox.archive is None:
        return None
    outbox = rows.outbox.model_copy(update={"table": rows.outbox.archive})
    layout = replace(rows.layout, table=tuple(outbox.table.split(".")))
    return replace(rows, outbox=outbox, layout=layout, parts=_parts(rows.name, outbox, layout), archived=True)


def holding(rows: RowDesk, identity: str) -> RowDesk:
    """Return the archive's desk, if the row has left for the archive."""
    with _known(rows):
        if rows.outbox.archive is None or ids_of(rows, "id", identity):
            return rows
        archive = archive_of(rows)
        return archive if archive and ids_of(archive, "id", identity) else rows


def _parts(name: str, outbox: Outbox, layout: Layout) -> Parts:
    """Return what the statements here name, beside what those of claims do."""
    has = layout.has
    waits = (
        "t.{next_attempt_at}"
        if has("next_attempt_at")
        else (
            "CASE WHEN t.{attempts} > 0 THEN t.{lease} + make_interval("
            "secs => ({waits}::float8[])[least(t.{attempts}, cardinality({waits}::float8[]))]) END"
        )
    )
    texts = {
        "selected": _SELECTED,
        "chosen": _CHOSEN,
        "row_order": "t.{created_at}, t.{id}" if has("created_at") else "t.{id}",
        "row_created": "t.{created_at}::timestamptz" if has("created_at") else "NULL::timestamptz",
        "row_error": "CASE WHEN {state} <> 'sending' THEN t.{error}::text END",
        "row_done": "t.{done_at}::timestamptz" if has("done_at") else "NULL::timestamptz",
        "row_reference": "t.{reference}::text" if has("reference") else "NULL::text",
        "row_next": f"CASE WHEN {{state}} IN ('{PENDING}', '{RETRYING}') THEN ({waits})::timestamptz END",
        "set_sent": "{status} = {done_word}, {error} = NULL" + (
            ", {done_at} = clock_timestamp()" if has("done_at") else ""
        ),
        "set_again": "{set_due}{status} = {first_pending}, {attempts} = 0, {error} = NULL" + (
            ", {reference} = NULL" if has("reference") else ""
        ),
        "place_type": "{topic_type}" if outbox.channel == "kafka" else "{destination_type}",
        "set_due": "{next_attempt_at} = clock_timestamp(), " if has("next_attempt_at") else "",
    }  # fmt: skip
    return {**parts_of(name, outbox, layout), **texts}


@contextmanager
def _known(rows: RowDesk) -> Iterator[None]:
    """Refuse an id that its column cannot hold."""
    try:
        yield
    except FerrymanError as error:
        if isinstance(error.__cause__, psycopg.DataError):
            kind = rows.layout.types["id"]
            raise FerrymanError(
                f"an id of {rows.outbox.table} is of the type {kind}", remedy="correct the id"
            ) from error
        raise


def page(rows: RowDesk, selection: RowSelection, *, after: str | None, limit: int) -> tuple[list[Row], str | None]:
    """Return the first selected rows after this one, and where to continue, if there are more."""
    if after is not None:
        at_ids(rows, (after,))
    with _known(rows), rows.desk.acting() as connection:
        found = rows.fetch(connection, _ROWS, **selection.parameters(), after=after, most=limit + 1)
    return found[:limit], found[limit - 1]["id"] if len(found) > limit else None


def at_ids(rows: RowDesk, ids: Sequence[str]) -> list[Row]:
    """Return the rows with these ids; refuse ids that do not exist."""
    given = RowSelection(ids=tuple(ids)).parameters()
    with _known(rows), rows.desk.acting() as connection:
        found = rows.fetch(connection, _ROWS, **given, after=None, most=len(ids))
    known = {row["id"].casefold() for row in found}  # a UUID may be given in capitals
    if missing := [each for each in ids if each.casefold() not in known]:
        raise FerrymanError(
            f"{rows.outbox.table} has no row {', '.join(missing)}",
            remedy="correct the id; its transaction may not have committed, or the row was deleted",
        )
    return found


def payload(rows: RowDesk, identity: str) -> bytes | None:
    with rows.desk.acting() as connection:
        content = postgres.value(connection.execute(put(_PAYLOAD, rows.parts), {"id": identity}))
    return None if content is None else bytes(content)


def check_destination(rows: RowDesk, destination: str) -> None:
    """Refuse a destination that no row can have, by the type of its column."""
    written = None
    try:
        with rows.desk.acting() as connection:
            written = postgres.value(connection.execute(put(_DESTINATION, rows.parts), {"destination": destination}))
    except FerrymanError as error:
        if not isinstance(error.__cause__, psycopg.DataError | psycopg.IntegrityError):
            raise
    if written != destination:
        kind = rows.layout.types["topic" if rows.by_kafka else "destination"]
        remedy = "name a destination of its rows" if written is None else f"say {written}, as its rows do"
        raise FerrymanError(f"a destination of {rows.outbox.table} is of the type {kind}", remedy=remedy)


def count(rows: RowDesk, selection: RowSelection) -> dict[str, int]:
    """Return the number of selected rows by state. Named rows must exist."""
    if selection.ids is not None:
        at_ids(rows, selection.ids)
    with _known(rows), rows.desk.acting() as connection:
        values: Any = selection.parameters()
        return dict(connection.execute(put(_COUNTS, rows.parts), values).fetchall())


def replay(rows: RowDesk, selection: RowSelection, act: Act) -> Iterator[int]:
    """Let rows be sent as if they had never failed: due at once, with all their attempts. Yield how many, by chunk."""
    return _changed(rows, "replay", selection, replayable(selection), act)


def discard(rows: RowDesk, selection: RowSelection, act: Act) -> Iterator[int]:
    """Give rows up, so that they are not sent. Yield how many, by chunk."""
    return _changed(rows, "discard", selection, DISCARDABLE, act)


def resolve(rows: RowDesk, selection: RowSelection, act: Act, *, sent: bool) -> Iterator[int]:
    """Settle held rows as delivered, or let them be sent again. Yield how many, by chunk."""
    return _changed(rows, "resolve-sent" if sent else "resolve-resend", selection, (HELD,), act)


def replayable(selection: RowSelection) -> tuple[str, ...]:
    """Return the states of rows that a replay takes; discarded ones only if they were named."""
    return (*REPLAYABLE, DISCARDED) if selection.ids is not None else REPLAYABLE


def _changed(rows: RowDesk, what: str, selection: RowSelection, states: Sequence[str], act: Act) -> Iterator[int]:
    """Change the selected rows, each chunk in a transaction with its audit."""
    with postgres.translated():
        check_log(rows.desk.connection, rows.name)
    template, extra = _ACTS_OF[what]
    statement = put(template, {**rows.parts, **extra})
    error = f"{BY_HAND}: {act.reason}" if what == "discard" else act.reason
    outcome = {"resolve-sent": "resolved", "resolve-resend": "reopened"}.get(what)
    what, _, how = what.partition("-")
    said, after = {"outbox": rows.name, **selection.as_json(), **({"as": how} if how else {})}, None
    while True:
        values = {**selection.parameters(), "states": list(states), "after": after, "most": CHUNK, "error": error,
                  "outcome": outcome}  # fmt: skip
        with rows.desk.acting() as connection:
            changed, after = postgres.row(connection.execute(statement, values))
            if changed:
                audit(connection, what, act, said=said, entries=changed)
        yield changed
        if changed < CHUNK:
            return
