"""Explains one row of a described table: why it is where it is, and the command to run next."""

from collections.abc import Sequence
from dataclasses import dataclass

from ferryman.relay.admin import described_rows, row_facts
from ferryman.relay.admin.described_rows import RowDesk
from ferryman.relay.admin.entry_story import Explained, attempts, times, when
from ferryman.relay.described.rows import IN_DOUBT_BEGINS
from ferryman.runtime.desk import WHOLE_OUTBOX, Row, Story, paused_by, read_paused_in
from ferryman.runtime.times import moment, span

_OVERDUE_SECONDS = 10.0
_OVERDUE = (
    "it is overdue: many rows may wait, or its courier's function `held` holds its destination, "
    "which only the courier's log and `ferryman_relay_held_destinations` say"
)


@dataclass(frozen=True, slots=True)
class RowFacts:
    """A row with everything that explains it: its attempts, what is paused, how many processes deliver the outbox."""

    row: Row
    history: Sequence[Row] = ()
    paused: Sequence[Row] = ()
    couriers: int = 0
    acts: Sequence[Row] = ()
    called: str = ""
    """The outbox as a person names it on the command line."""
    by_kafka: bool = False
    archive: str | None = None
    """The archive that the row has left for."""


def look(rows: RowDesk, identity: str) -> RowFacts:
    """Return the row with this id, and what explains it. It may have left for the archive."""
    rows = described_rows.holding(rows, identity)
    [row] = described_rows.at_ids(rows, [identity])
    with rows.desk.acting() as connection:
        return RowFacts(
            row,
            row_facts.history(rows, connection, row["id"]),
            read_paused_in(connection, rows.name),
            row_facts.couriers(rows, connection),
            row_facts.acts(rows, connection, row),
            rows.called,
            rows.by_kafka,
            rows.outbox.table if rows.archived else None,
        )


def explain(known: RowFacts) -> Story:
    """Return the row's story. Pure: everything that is known is passed."""
    reason, command = _explained(known)
    if known.archive:
        reason, command = f"{reason}; it is in the archive {known.archive}", None
    return Story(f"{known.row['status']}: {reason}", command)


def run_command(called: str, *, by_kafka: bool) -> str:
    """Return the command that delivers the outbox."""
    return f"ferryman run {'relay' if by_kafka else called}"


def _explained(known: RowFacts) -> Explained:
    row = known.row
    said: Explained = ("the description has no such word, so nobody sends the row", None)
    match row["state"]:
        case described_rows.DELIVERED | described_rows.DISCARDED | described_rows.FAILED | described_rows.HELD:
            said = _ended(known)
        case described_rows.SENDING:
            lost = "; an earlier claim of it was lost with its process" if row["lost_before"] else ""
            said = f"{_claimed(row)}, and is being sent; its lease ends at {moment(row['lease_until'])}{lost}", None
        case described_rows.LOST if row["claimed_at"] is not None and row["claimed_at"] > row["now"]:
            until = f"no process claims it before {moment(row['lease_until'])}"
            discard = f"ferryman outbox discard --outbox {known.called} {row['id']}"
            said = (
                f"it was claimed in the future, at {moment(row['claimed_at'])}: a clock was wrong, and {until}",
                discard,
            )
        case described_rows.LOST:
            why = (
                f"{_claimed(row)}, and its process ended or takes too long: its lease is over, and it is claimed again"
            )
            said = _held_up(known, why, None)
        case described_rows.RETRYING:
            again = f"is tried again {when(row['next_attempt_at'], row['now'])}"
            why = f"it waits after {_failures(known)}, and {again}{_error(known)}"
            said = _held_up(known, why, f"wait, or send it now: {_replay(known)}")
        case described_rows.PENDING:
            at = row["next_attempt_at"]
            later = f"it waits until {moment(at)}" if at and at > row["now"] else None
            why = later or "it is due, and goes out when its turn comes"
            said = _held_up(known, why, f"ferryman outbox stats --outbox {known.called}")
    return said


def _ended(known: RowFacts) -> Explained:
    row = known.row
    match row["state"]:
        case described_rows.DELIVERED:
            at = f" at {moment(row['done_at'])}" if row["done_at"] else ""
            return f"delivered{at}, and nothing is left to do", None
        case described_rows.DISCARDED:
            return f"{row['error']}; it is not sent", _replay(known)
        case described_rows.HELD:
            settle = f"ferryman outbox resolve {known.called} --id {row['id']} --sent | --resend"
            return f"held for you to decide, because it may have been delivered: {_doubt(row)}", settle
        case _:
            return f"given up after {_failures(known)}{_error(known)}", _replay(known)


def _doubt(row: Row) -> str:
    return str(row["error"]).removeprefix(IN_DOUBT_BEGINS)


def _replay(known: RowFacts) -> str:
    return f"ferryman outbox replay --outbox {known.called} {known.row['id']}"


def _held_up(known: RowFacts, reason: str, command: str | None) -> Explained:
    """Add why no process would claim the row, however long it waits, and what to do about that."""
    for each in known.paused:
        if each["destination"] in (WHOLE_OUTBOX, known.row["destination"]):
            place = f" --destination {each['destination']}" if each["destination"] else ""
            what = "its destination" if place else "the outbox"
            said = f"{reason}; but {what} is paused by {paused_by(each)}"
            return said, f"ferryman resume --outbox {known.called}{place}"
    if not known.couriers:
        who = "relay" if known.by_kafka else "courier"
        return f"{reason}; but no {who} of this outbox is connected", run_command(known.called, by_kafka=known.by_kafka)
    if known.row["state"] != described_rows.LOST and not known.by_kafka and _overdue(known.row):
        return f"{reason}; {_OVERDUE}", command
    return reason, command


def _overdue(row: Row) -> bool:
    """Return True if the row is due for longer than it takes to claim it."""
    due = row["next_attempt_at"] or row["created_at"]
    return due is not None and (row["now"] - due).total_seconds() > _OVERDUE_SECONDS


def _claimed(row: Row) -> str:
    if row["claimed_at"] is None:
        return "it is claimed"
    return f"it is claimed since {moment(row['claimed_at'])} ({span((row['now'] - row['claimed_at']).total_seconds())})"


def _failures(known: RowFacts) -> str:
    """Return how many attempts failed, and how many of them were lost with their process."""
    lost = sum(each["outcome"] == "lost" for each in known.history)
    return attempts(known.row["attempts"]) + (f" ({times(lost)} its process was lost)" if lost else "")


def _error(known: RowFacts) -> str:
    """Return the last error with its code, if there is one."""
    code = next((f" ({each['code']})" for each in reversed(known.history) if each["code"]), "")
    return f": {known.row['error']}{code}" if known.row["error"] else ""
