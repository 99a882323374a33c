"""After a restore: checks that this is the server whose numbers the journal has, and rebases the journal if not.

A copy by `pg_dump`, by logical replication or into another server has other transaction numbers, and the old ones mean
nothing there: they may belong to transactions to come. `rebase` finds what still waits by the old numbers and windows,
gives each entry a number that is valid here, and restarts the lanes. A point-in-time recovery or a failover keeps the
numbers and starts a new timeline: the relay continues from the cursors that the database has.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import psycopg

from ferryman.relay.model import LANES, SEGMENTS
from ferryman.relay.store import claims
from ferryman.runtime import desk, postgres
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.runtime.postgres import Connection, milliseconds, row, value

# The control file names a new timeline only after the first checkpoint on it; the name of a log file does at once.
_HERE = """\
-- relay.where_am_i
SELECT s.system_identifier, s.timeline, here.system_identifier,
       CASE WHEN pg_is_in_recovery() THEN checkpoint.timeline_id
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer END
FROM ferryman.outbox_state s, pg_control_system() here, pg_control_checkpoint() checkpoint
"""

_SET_TIMELINE = """\
-- relay.set_timeline
UPDATE ferryman.outbox_state SET timeline = %(timeline)s WHERE timeline <> %(timeline)s
"""

# Writers wait, readers do not. ACCESS EXCLUSIVE would give this transaction a number too early.
_LOCK_OUTBOX = """\
-- relay.lock_outbox
LOCK TABLE ferryman.outbox IN EXCLUSIVE MODE
"""

_LIMITS = """\
-- relay.rebase_limits
SELECT set_config('lock_timeout', %(wait)s, true), set_config('statement_timeout', '0', true),
       set_config('enable_seqscan', 'on', true), set_config('jit', 'off', true)
"""

# Taken before this transaction has a number: its number is not below the snapshot's xmax.
_SNAPSHOT = """\
-- relay.rebase_snapshot
SELECT pg_current_snapshot()::text, pg_current_xact_id_if_assigned() IS NULL
"""

_NUMBER = """\
-- relay.rebase_number
SELECT pg_current_xact_id()::text
"""

# By the windows, which hold as long as the numbers are those of this server.
_SETTLED_BY_WINDOWS = """\
(ferryman.outbox_settled(o.xid, o.position, d.snapshot, t.snapshot, c.position)
 OR EXISTS (SELECT FROM ferryman.outbox_exception e WHERE e.position = o.position))"""

# Entries appended since the restore have low numbers, which the old windows take for settled: so an entry also has to
# be before the window by position and by clock. A few that were published at that very moment are published again.
_SETTLED_BEFORE = """\
((pg_visible_in_snapshot(o.xid, d.snapshot) AND o.position <= d.position_at AND o.created_at <= d.taken_at)
 OR (t.id IS NOT NULL AND pg_visible_in_snapshot(o.xid, t.snapshot) AND o.position <= c.position
     AND o.created_at <= t.taken_at)
 OR EXISTS (SELECT FROM ferryman.outbox_exception e WHERE e.position = o.position))"""

_LANES = """\
ferryman.outbox_lanes c
JOIN ferryman.outbox_window d ON d.id = c.done
LEFT JOIN ferryman.outbox_window t ON t.id = c.target"""

_CLASSIFY = f"""\
-- relay.rebase_classify
SELECT o.segment, o.lane, count(*) FILTER (WHERE $settled), count(*) FILTER (WHERE NOT $settled),
       count(*) FILTER (WHERE EXISTS (SELECT FROM ferryman.outbox_exception e WHERE e.position = o.position))
FROM {_LANES} JOIN ferryman.outbox o ON o.lane = c.lane GROUP BY o.segment, o.lane
"""  # noqa: S608 - only our own text is put in
_CLASSIFY_BY_WINDOWS = _CLASSIFY.replace("$settled", _SETTLED_BY_WINDOWS)
_CLASSIFY_BEFORE = _CLASSIFY.replace("$settled", _SETTLED_BEFORE)

# Number 2 is older than any transaction. Settled entries with a number below all that run here may keep it.
_RENUMBER = f"""\
-- relay.rebase_renumber
UPDATE ferryman.outbox o SET xid = CASE WHEN {_SETTLED_BEFORE} THEN '2'::xid8 ELSE pg_current_xact_id() END
FROM {_LANES}
WHERE c.lane = o.lane AND (NOT {_SETTLED_BEFORE} OR o.xid >= pg_snapshot_xmin(%(snapshot)s::pg_snapshot))
"""  # noqa: S608 - only our own text is put in

# One window before everything that is renumbered, so that it is read as late entries are, by their own index and in the
# order of positions; and one behind it, for lanes that have none of it. Transactions that had not ended when the
# snapshot was taken count as running in both: they have not appended yet.
_SEED_WINDOWS = """\
-- relay.rebase_windows
INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon)
SELECT seed.snapshot, %(position)s, (%(number)s::numeric + 1)::text::xid8
FROM (VALUES (%(snapshot)s::pg_snapshot), ((
    pg_snapshot_xmin(%(snapshot)s::pg_snapshot) || ':' || (%(number)s::numeric + 1) || ':' || array_to_string(ARRAY(
        SELECT xid::text::numeric FROM pg_snapshot_xip(%(snapshot)s::pg_snapshot) xid
        UNION ALL
        SELECT generate_series(pg_snapshot_xmax(%(snapshot)s::pg_snapshot)::text::numeric, %(number)s::numeric - 1)
        ORDER BY 1
    ), ','))::pg_snapshot)
) seed (snapshot)
RETURNING id
"""

_SEED_CURSORS = """\
-- relay.rebase_cursors
INSERT INTO ferryman.outbox_cursor (lane, generation, done, position, settled)
SELECT l.lane, l.generation + 1, CASE WHEN l.lane = ANY (%(waiting)s) THEN %(before)s ELSE %(behind)s END, 0, l.settled
FROM ferryman.outbox_lanes l
"""

# The ring truncates a segment when it holds exactly what was settled, minus what earlier truncations took.
_SET_PLACE = """\
-- relay.rebase_set_place
UPDATE ferryman.outbox_state s SET
    truncated = ARRAY(
        SELECT (SELECT sum(l.settled[n]) FROM ferryman.outbox_lanes l) - (%(settled)s::bigint[])[n]
        FROM generate_series(1, 8) n ORDER BY n
    ),
    system_identifier = here.system_identifier, timeline = %(timeline)s
FROM pg_control_system() here, ferryman.outbox_state before
RETURNING before.truncated, s.truncated
"""

# A restore may leave sequences behind the values in their columns; none is set back.
_MEND_SEQUENCES = """\
-- relay.rebase_sequences
SELECT s.name, setval(s.name::regclass, s.highest)
FROM (VALUES
    ('ferryman.outbox_position_seq', (SELECT max(position) FROM ferryman.outbox)),
    ('ferryman.outbox_window_id_seq', (SELECT max(id) FROM ferryman.outbox_window)),
    ('ferryman.outbox_replay_id_seq', (SELECT max(id) FROM ferryman.outbox_replay)),
    ('ferryman.outbox_audit_id_seq', (SELECT max(id) FROM ferryman.outbox_audit))
) s (name, highest)
WHERE s.highest > coalesce(pg_sequence_last_value(s.name::regclass), 0)
"""

_TAKEN_TWICE = """\
-- relay.positions_taken_twice
SELECT count(*) FROM (SELECT FROM ferryman.outbox GROUP BY position HAVING count(*) > 1) twice
"""

_LAST_POSITION = """\
-- relay.rebase_position
SELECT coalesce(pg_sequence_last_value('ferryman.outbox_position_seq'), 0)
"""

# On a server that kept the numbers, each of them was given here.
_NUMBERS_FIT = """\
-- relay.numbers_fit
SELECT NOT EXISTS (SELECT FROM ferryman.outbox o WHERE o.xid >= pg_snapshot_xmax(now.snapshot)) AND NOT EXISTS (
    SELECT FROM ferryman.outbox_window w WHERE pg_snapshot_xmax(w.snapshot) > pg_snapshot_xmax(now.snapshot)
)
FROM (SELECT pg_current_snapshot()) now (snapshot)
"""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The server whose numbers the journal has, and the server it is in."""

    recorded: int
    recorded_timeline: int
    here: int
    timeline: int

    @property
    def misfit(self) -> Misconfigured | None:
        """Why a relay must not publish here, if it must not."""
        if self.here == self.recorded:
            return None
        return Misconfigured(
            f"this database was copied from another server: its outbox has the transaction numbers of system "
            f"{self.recorded}, and this is system {self.here}",
            remedy="run `ferryman outbox rebase` (after pg_upgrade: `ferryman outbox rebase --kept-xids`)",
        )

    @property
    def warning(self) -> str | None:
        if self.timeline == self.recorded_timeline:
            return None
        return (
            f"the database went from timeline {self.recorded_timeline} to {self.timeline}: after a point-in-time "
            "recovery or an asynchronous failover Kafka may hold entries that the database lost"
        )


class Census(NamedTuple):
    """The number of settled and of pending entries in one segment and lane. Exceptions are among the settled."""

    segment: int
    lane: int
    settled: int
    pending: int
    exceptions: int


@dataclass(frozen=True, slots=True)
class Rebased:
    """The result of a rebase. `corrected` is by how much the cursors' count of each segment was off.

    Settled entries were published, or are `exceptions`: RETRYING, PARKED, FAILED, REPLAYING or DISCARDED.
    """

    pending: int
    settled: int
    exceptions: int = 0
    renumbered: int = 0
    corrected: tuple[int, ...] = (0,) * SEGMENTS
    mended_sequences: tuple[str, ...] = ()
    dry_run: bool = False


def identify(connection: Connection) -> ServerIdentity:
    """Check a new connection before anything is claimed; raise `Misconfigured` if the numbers are another server's."""
    with postgres.translated(), connection.transaction():
        found = _read_identity(connection)
        if found.misfit:
            raise found.misfit
        if found.timeline != found.recorded_timeline:
            connection.execute(_SET_TIMELINE, {"timeline": found.timeline})
        return found


def check_server(connection: Connection) -> None:
    """Check that the journal has the transaction numbers of this server. Change nothing."""
    with postgres.translated(), connection.transaction():
        if misfit := _read_identity(connection).misfit:
            raise misfit


def rebase(
    connection: Connection,
    *,
    who: str,
    reason: str,
    dry_run: bool = False,
    kept_xids: bool = False,
    force: bool = False,
    wait_seconds: float = 30.0,
) -> Rebased:
    """Give the journal this server's numbers, in one transaction of its own, as the owner of its tables.

    `kept_xids` is for pg_upgrade alone, which keeps the transaction numbers: nothing is renumbered then. `force`
    rebases although it is not needed, which reads everything that is retained and is always safe.
    """
    with postgres.translated(), _explained(), connection.transaction():
        postgres.read_committed(connection)
        here = _read_identity(connection)
        _refuse_needless(here, force=force)
        if not dry_run:
            claims.hold(connection, range(LANES), wait_seconds=wait_seconds)
        connection.execute(_LIMITS, {"wait": milliseconds(wait_seconds)})
        if dry_run:
            return Rebased(*_totals(_census(connection, kept_xids=kept_xids)), dry_run=True)
        _refuse_needless(_read_identity(connection), force=force)
        done = _renumber(connection, here.timeline, kept_xids=kept_xids)
        details = {"from": str(here.recorded), "to": str(here.here), "kept_xids": kept_xids, "force": force}
        desk.audit(connection, "rebase", desk.Act(who, reason), said=details, entries=done.pending)
        return done


def _read_identity(connection: Connection) -> ServerIdentity:
    return ServerIdentity(*row(connection.execute(_HERE)))


def _refuse_needless(here: ServerIdentity, *, force: bool) -> None:
    if here.here == here.recorded and not force:
        raise Misconfigured(
            f"the outbox has the transaction numbers of this very server (system {here.here}): there is nothing to do",
            remedy="to count and number all entries anew, add --force",
        )


def _census(connection: Connection, *, kept_xids: bool) -> list[Census]:
    """Count the entries of each segment and lane. Reads everything that is retained."""
    rows = connection.execute(_CLASSIFY_BY_WINDOWS if kept_xids else _CLASSIFY_BEFORE).fetchall()
    return [Census(*row) for row in rows]


def _totals(found: Sequence[Census]) -> tuple[int, int, int]:
    """Return how many entries are pending, settled, and exceptions."""
    total = Census(*map(sum, zip(*found, strict=True))) if found else Census(0, 0, 0, 0, 0)
    return total.pending, total.settled, total.exceptions


def _renumber(connection: Connection, timeline: int, *, kept_xids: bool) -> Rebased:
    """Renumber, unless the numbers were kept, and make the counts of the segments fit what they hold."""
    if kept_xids:
        _check_that_numbers_fit(connection)
    taken = None if kept_xids else _lock_out_writers(connection)
    found = _census(connection, kept_xids=kept_xids)
    mended = tuple(name for name, _ in connection.execute(_MEND_SEQUENCES).fetchall())
    renumbered = 0
    if taken is not None:
        if mended:
            _check_that_positions_are_unique(connection)
        renumbered = connection.execute(_RENUMBER, {"snapshot": taken}).rowcount
        _seed(connection, taken, sorted({each.lane for each in found if each.pending}))
    settled = [sum(each.settled for each in found if each.segment == segment) for segment in range(SEGMENTS)]
    before, after = row(connection.execute(_SET_PLACE, {"timeline": timeline, "settled": settled}))
    return Rebased(
        *_totals(found),
        renumbered=renumbered,
        corrected=tuple(new - old for old, new in zip(before, after, strict=True)),
        mended_sequences=mended,
    )


def _lock_out_writers(connection: Connection) -> str:
    """Let nobody append until the transaction ends. Return a snapshot from before the transaction gets a number."""
    connection.execute(_LOCK_OUTBOX)
    taken, unnumbered = row(connection.execute(_SNAPSHOT))
    assert unnumbered, "a transaction that writes takes no snapshot for a window"
    return str(taken)


def _check_that_numbers_fit(connection: Connection) -> None:
    if not value(connection.execute(_NUMBERS_FIT)):
        raise Misconfigured(
            "the outbox has transaction numbers that this server has not given yet, so they were not kept",
            remedy="run `ferryman outbox rebase` without --kept-xids",
        )


def _check_that_positions_are_unique(connection: Connection) -> None:
    if twice := value(connection.execute(_TAKEN_TWICE)):
        raise Misconfigured(
            f"the outbox's sequence was not restored, and {twice} positions were taken twice since",
            remedy="delete what was appended since the restore and append it again, then rebase",
        )


def _seed(connection: Connection, taken: str, waiting: Sequence[int]) -> None:
    """Restart the lanes: those in which entries wait before what was renumbered, the others behind it."""
    number, position = value(connection.execute(_NUMBER)), value(connection.execute(_LAST_POSITION))
    windows = connection.execute(_SEED_WINDOWS, {"snapshot": taken, "number": number, "position": position}).fetchall()
    before, behind = sorted(window for (window,) in windows)
    connection.execute(_SEED_CURSORS, {"waiting": list(waiting), "before": before, "behind": behind})


@contextmanager
def _explained() -> Iterator[None]:
    """Give the errors that a rebase may meet a remedy of their own."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise Transient(
            "writers or relays did not end their transactions in time",
            remedy="stop them for a moment, end what pg_prepared_xacts lists, and try again",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise Misconfigured(
            f"this user may not rebase the outbox: {error.diag.message_primary}",
            remedy="do it as the owner of the schema ferryman, whom `ferryman migrate` runs as",
        ) from error
