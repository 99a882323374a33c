"""After a restore: is this the server that the journal's numbers are of, and if not, how it becomes that.

A copy by `pg_dump`, by logical replication or into another server has other transaction numbers: `rebase` tells what
still waits by the old ones, and gives it new ones. A point-in-time recovery or a failover keeps the numbers and takes a
new timeline: the relay goes on, from the cursors that the database has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from ferryman.relay.model import LANES, SEGMENTS
from ferryman.relay.store import identity, lanes
from ferryman.relay.store.identity import Census, Place
from ferryman.relay.store.lanes import Connection
from ferryman.runtime import postgres
from ferryman.runtime.errors import Misconfigured, Transient


@dataclass(frozen=True, slots=True)
class Identity:
    """The server is the one that the journal's numbers are of; `previous_timeline` is set when its history forked."""

    system_identifier: int
    timeline: int
    previous_timeline: int | None = None

    @property
    def warning(self) -> str | None:
        if self.previous_timeline is None:
            return None
        return (
            f"the database went from timeline {self.previous_timeline} to {self.timeline}: after a point-in-time "
            "recovery or an asynchronous failover Kafka may hold entries that the database lost"
        )


@dataclass(frozen=True, slots=True)
class Rebased:
    """What a rebase found and did.

    `corrected` is, of each segment, by how much what the cursors had counted was off what it holds.
    """

    pending: int
    settled: int
    renumbered: int = 0
    corrected: tuple[int, ...] = (0,) * SEGMENTS
    mended_sequences: tuple[str, ...] = ()
    dry_run: bool = False


def identify(connection: Connection) -> Identity:
    """For each new connection, before anything is claimed; `Misconfigured` when the numbers are another server's."""
    with _translated(), connection.transaction():
        here = identity.place(connection)
        if here.here != here.recorded:
            raise Misconfigured(
                f"this database was copied from another server: its outbox has the transaction numbers of system "
                f"{here.recorded}, and this is system {here.here}",
                remedy="run `ferryman outbox rebase` (after pg_upgrade: `ferryman outbox rebase --kept-xids`)",
            )
        if here.timeline == here.recorded_timeline:
            return Identity(here.here, here.timeline)
        identity.set_timeline(connection, here.timeline)
        return Identity(here.here, here.timeline, previous_timeline=here.recorded_timeline)


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
    """Makes the journal one of this server, in one transaction of its own, as the owner of its tables.

    `kept_xids` is for pg_upgrade alone, which keeps the transaction numbers: nothing is renumbered then. `force` does
    it although nothing says that it is needed, which costs a scan of what is retained and is always safe.
    """
    with _translated(), _told(), connection.transaction():
        identity.begin(connection)
        here = identity.place(connection)
        _refuse_needless(here, force=force)
        if dry_run:
            identity.limit(connection, wait_seconds)
            return _counted(identity.census(connection, kept_xids=kept_xids))
        lanes.hold(connection, range(LANES), wait_seconds=wait_seconds)
        identity.limit(connection, wait_seconds)
        _refuse_needless(identity.place(connection), force=force)
        done = _restamp(connection, here) if kept_xids else _renumber(connection, here)
        details = {"from": str(here.recorded), "to": str(here.here), "kept_xids": kept_xids, "force": force}
        identity.audit(connection, who, reason, details, done.pending)
        return done


def _restamp(connection: Connection, here: Place) -> Rebased:
    """The numbers are right; only what the cursors counted is counted anew."""
    if not identity.numbers_fit(connection):
        raise Misconfigured(
            "the outbox has transaction numbers that this server has not given yet, so they were not kept",
            remedy="run `ferryman outbox rebase` without --kept-xids",
        )
    found = identity.census(connection, kept_xids=True)
    mended = identity.mend_sequences(connection)
    corrected = identity.set_place(connection, here.timeline, _by_segment(found))
    counted = _counted(found)
    return Rebased(counted.pending, counted.settled, corrected=corrected, mended_sequences=tuple(mended))


def _renumber(connection: Connection, here: Place) -> Rebased:
    """Nobody appends or publishes meanwhile. The snapshot comes first, while this transaction has no number."""
    identity.lock_outbox(connection)
    taken = identity.snapshot(connection)
    found = identity.census(connection, kept_xids=False)
    mended = identity.mend_sequences(connection)
    if mended and (twice := identity.positions_taken_twice(connection)):
        raise Misconfigured(
            f"the outbox's sequence was not restored, and {twice} positions were taken twice since",
            remedy="delete what was appended since the restore and append it again, then rebase",
        )
    renumbered = identity.renumber(connection, taken)
    identity.seed(connection, taken, sorted({each.lane for each in found if each.pending}))
    corrected = identity.set_place(connection, here.timeline, _by_segment(found))
    counted = _counted(found)
    return Rebased(counted.pending, counted.settled, renumbered, corrected, tuple(mended))


def _refuse_needless(here: Place, *, force: bool) -> None:
    if here.here == here.recorded and not force:
        raise Misconfigured(
            f"the outbox has the transaction numbers of this very server (system {here.here}): nothing is to be done",
            remedy="if you mean to count and number all entries anew, force it",
        )


def _by_segment(found: list[Census]) -> list[int]:
    return [sum(each.settled for each in found if each.segment == segment) for segment in range(SEGMENTS)]


def _counted(found: list[Census]) -> Rebased:
    return Rebased(sum(each.pending for each in found), sum(each.settled for each in found), dry_run=True)


@contextmanager
def _told() -> Iterator[None]:
    """What a rebase itself may meet, with what to do about it."""
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


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise postgres.translate(error) from error
