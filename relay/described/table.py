"""A described table: inspected when the relay connects, then claimed from and settled with statements made for it."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ferryman.channels.outcome import WORDS, Outcome
from ferryman.migrations import chains, rights
from ferryman.relay.described.layout import Layout, fit, look
from ferryman.relay.described.rows import Claimed, Settling
from ferryman.relay.described.statements import compiled
from ferryman.relay.described.status_words import check_words
from ferryman.relay.described.way_out import Room
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime import postgres, roles
from ferryman.runtime.columns import Texts
from ferryman.runtime.errors import Permanent, Transient
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Database
from ferryman.runtime.settings_outbox import Outbox

_MOST_PLACES = 256
"""The most destinations that one claim walks over."""

_MOST_GIVEN_UP = 500
MOST_FORGOTTEN = 5000
"""The most attempts that are deleted at once, so that no turn waits for long."""

_FORGET = """\
-- outbox.forget_attempts
SELECT ferryman.outbox_forget_attempts(%(name)s, %(seconds)s, %(most)s, %(mails)s)
"""


@dataclass(frozen=True, slots=True)
class Table:
    """One described outbox on a connection to its database. Each call is one short transaction."""

    connection: Connection
    statements: Mapping[str, bytes]
    """Each statement by its name, made once: psycopg would put it together again each time that it runs."""
    limits: Database
    layout: Layout

    def claim(self, most: int, avoided: Collection[str] = (), begun: Collection[str] = ()) -> list[Claimed]:
        """Claim rows that are due, the oldest first, except rows that we began."""
        return self._claimed("claim", Room(most, avoided, begun=begun))

    def claim_lost(self, most: int, room: Room | None = None, *, twice: bool = False) -> list[Claimed]:
        """Claim rows that another process left behind: for the first time, or the second time running and later."""
        room = replace(room or Room(most, each=most), most=most)
        return self._claimed("claim_twice_lost" if twice else "claim_lost", room, lost=True)

    def claim_fair(self, room: Room, after: str | None) -> tuple[list[Claimed], str | None]:
        """Claim rows of the next destinations after this one. Return them, and where to go on; None is the start."""
        found = self._run(self.statements["claim_fair"], claim_values(room, after))
        rows = [_row(columns[2:], lost=False) for columns in found if columns[2] is not None]
        more = len(rows) >= room.most or (found and found[0][1] >= _MOST_PLACES)
        return rows, str(found[0][0]) if more else None

    def _claimed(self, name: str, room: Room, *, lost: bool = False) -> list[Claimed]:
        found = self._run(self.statements[name], claim_values(room))
        return sorted((_row(columns, lost=lost) for columns in found), key=lambda row: (row.created_us, row.id))

    def settle(self, what: Sequence[Settling], also: Callable[[Collection[str]], object] = lambda _: None) -> set[str]:
        """Settle all in one statement. Return the ids of those that were still ours.

        `also` is called with these ids in the same transaction.
        """
        with postgres.transaction(self.connection, self.limits) as cursor:
            found = cursor.execute(self.statements["settle"], settle_values(what)).fetchall()
            settled = {identity for (identity,) in found}
            also(settled)
        return settled

    def bury(self, also: Callable[[Sequence[Claimed]], object], begun: Collection[str] = ()) -> list[Claimed]:
        """Give up rows that ended their relay each time, except rows that we began.

        `also` is called with them in the same transaction.
        """
        with postgres.transaction(self.connection, self.limits) as cursor:
            found = cursor.execute(self.statements["bury"], {"most": _MOST_GIVEN_UP, "begun": list(begun)}).fetchall()
            rows = [_row(columns, lost=True, sent=False) for columns in found]
            also(rows)
        return rows

    def forget_attempts(self, name: str, seconds: float, *, mails: bool) -> int:
        """Delete attempts of an outbox that began so long ago, `MOST_FORGOTTEN` at a time. Return how many."""
        values = {"name": name, "seconds": seconds, "most": MOST_FORGOTTEN, "mails": mails}
        with postgres.transaction(self.connection, self.limits) as cursor:
            return int(postgres.value(cursor.execute(_FORGET, values)))

    def backlog(self) -> list[Backlog]:
        return [Backlog(*row) for row in self._run(self.statements["backlog"])]

    def _run(self, statement: bytes, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with postgres.transaction(self.connection, self.limits) as cursor:
            return cursor.execute(statement, values).fetchall()


def open_table(
    connection: Connection,
    name: str,
    outbox: Outbox,
    limits: Database,
    most_content_bytes: int | None = None,
    *,
    provider: str | None = None,
) -> Table:
    """Return the table, of which `provider` delivers the mails.

    Raise Misconfigured, with the DDL that mends it, if it does not fit its description.
    """
    with postgres.translated():
        live, owner = look(connection, outbox), outbox.table.partition(".")[0]
        if live is None and owner in chains.owners():
            chains.check(connection, (owner,))  # one of ours: its migrations make it
        layout = fit(name, outbox, live)
        check_words(connection, name, outbox, layout)
    templates = compiled(name, outbox, layout, most_content_bytes, provider)
    statements = {each: template.as_bytes(connection) for each, template in templates.items()}
    return Table(connection, statements, limits, layout)


def check_log(connection: Connection, name: str) -> None:
    """Refuse a database without the attempt log, and a login without the role that the outbox is bound to."""
    chains.check(connection)
    rights.check_name(connection, "outbox", name)


@contextmanager
def refusals_are_the_tables(outbox: str) -> Iterator[None]:
    """Retry what the user's constraint or trigger refuses: one table must not end the relay of the others."""
    try:
        with postgres.translated():
            yield
    except Permanent as error:
        raise Transient(
            f"the table refuses what Ferryman writes: {error.message}", setting=f"outbox.{outbox}.table",
            remedy="correct its constraint or trigger, or the words of the status; `ferryman outbox check` shows which "
            "constraint refuses a word",
        ) from error  # fmt: skip


def claim_values(room: Room, after: str | None = None) -> dict[str, Any]:
    """Return the values of a claim's statement; `after` is the destination that a fair claim goes on from."""
    return {
        "most": room.most, "avoided": Texts(room.avoided), "each": room.each, "busy": Texts(room.busy),
        "in_flight": list(room.busy.values()), "begun": Texts(room.begun), "after": after, "places": _MOST_PLACES,
    }  # fmt: skip


def settle_values(what: Sequence[Settling]) -> dict[str, Texts]:
    """Return the values of the statement that settles these rows: a column for each."""
    return {
        "ids": Texts(each.row.id for each in what),
        "claimed_ats": Texts(str(each.row.claimed_at) for each in what),
        "ends": Texts(each.end.value for each in what),
        "statuses": Texts(each.status for each in what),
        "errors": Texts(each.error for each in what),
        "waits": Texts(None if each.wait_seconds is None else str(each.wait_seconds) for each in what),
        "references": Texts(getattr(each.outcome, "reference", None) for each in what),
        "outcomes": Texts(_recorded(each.outcome) for each in what),
        "codes": Texts(getattr(each.outcome, "code", None) for each in what),
        "excerpts": Texts(getattr(each.outcome, "excerpt", None) for each in what),
        "contents": Texts(each.content for each in what),
    }


def _row(columns: Sequence[Any], *, lost: bool, sent: bool = True) -> Claimed:
    """Return the row, with an empty key or payload where it has none: a null would be a tombstone.

    A row that is not to be sent has no headers: they may be what ended its relay.
    """
    (ce_id, topic, key, kind, payload, headers, content_type, created_us, attempts, claimed_at, error, status,
     reference, size, edition, doubt_seconds) = columns  # fmt: skip
    read, flaw = _headers(headers) if sent else (None, None)
    return Claimed(
        ce_id, topic or "", key or "", kind or "", bytes(payload or b""), read, content_type,
        created_us or 0, attempts, claimed_at, error, status, lost, reference, flaw,
        None if payload is not None else size, edition, doubt_seconds,
    )  # fmt: skip


def _recorded(outcome: Outcome | None) -> str:
    """Return the word for an outcome in the attempt log: what may have arrived is unknown, whatever else it is."""
    return "unknown" if getattr(outcome, "in_doubt", False) else WORDS.get(type(outcome), "released")


def _headers(text: str | None) -> tuple[str | None, str | None]:
    """Return the headers as an object of strings, or else why they cannot be read.

    Other values are JSON-encoded; anything but an object is ignored.
    """
    try:
        given = json.loads(text) if text else None
        if not isinstance(given, dict):
            return None, None
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in given.items() if value is not None
        }  # fmt: skip
    except (ValueError, RecursionError):  # PostgreSQL takes longer numbers and deeper nesting than Python does
        return None, "the headers have a number that is too long, or are nested too deeply"
    return json.dumps(texts), None


def needed_role(outbox: Outbox) -> str | None:
    """Return the role that delivers the outbox: the owner's own, for a table of one of our systems."""
    owner = outbox.table.partition(".")[0]
    if outbox.channel == "kafka":
        return roles.needed(roles.RUN_RELAY)
    return chains.worker_role(owner) if owner in chains.owners() else roles.needed(roles.RUN_COURIER)
