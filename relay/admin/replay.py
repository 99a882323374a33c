"""Publishes entries once more, with the same id and bytes: queues them by position, in chunks that are whole.

A replay's progress is in the database with what it queued: a replay that was stopped, by whatever, continues without
doubling or skipping. The relay publishes what is queued.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ferryman.relay.admin import entries
from ferryman.relay.admin.entries import DISCARDED, FAILED, PUBLISHED, EntrySelection
from ferryman.relay.store import operator_acts
from ferryman.relay.store.entry_views import ListedEntry
from ferryman.runtime.desk import Act, Desk, Row, audit
from ferryman.runtime.errors import FerrymanError, Transient

REPLAYABLE = (PUBLISHED, FAILED, DISCARDED)
CHUNK = 5_000
_TRIES = 3


@dataclass(slots=True)
class Replay:
    """One replay: its selection, and how far it is."""

    id: int
    selection: EntrySelection
    rate: float | None
    position: int
    last_position: int
    entries: int
    finished_at: datetime | None


Progress = Callable[[Replay], None]


def statuses(selection: EntrySelection) -> tuple[str, ...]:
    """Return the statuses to replay; discarded entries only if they, or their status, were named."""
    return selection.statuses or (REPLAYABLE if selection.positions is not None else (PUBLISHED, FAILED))


def start(desk: Desk, selection: EntrySelection, act: Act, *, rate: float | None, expected: int) -> Replay:
    """Record a replay before anything is queued."""
    given = selection.as_json()
    with desk.acting() as connection:
        row = operator_acts.start_replay(connection, who=act.who, reason=act.reason, selection=given, rate=rate)
        said = {"replay": row["id"], "last_position": row["last_position"], **given}
        audit(connection, "replay", act, said=said, entries=expected)
    return _replay(row)


def load(desk: Desk, number: int) -> Replay:
    """Return a replay that was started before."""
    with desk.acting() as connection:
        row = operator_acts.read_replay(connection, number)
    if row is None:
        raise FerrymanError(f"there is no replay {number}", remedy="`ferryman outbox stats` lists the unfinished ones")
    return _replay(row)


def _replay(row: Row) -> Replay:
    names = ("id", "rate", "position", "last_position", "entries", "finished_at")
    return Replay(selection=EntrySelection.from_json(row["filter"]), **{name: row[name] for name in names})


def run(desk: Desk, replay: Replay, progress: Progress) -> None:
    """Queue everything that is left, at most at the replay's rate. Named entries are tried whatever their status."""
    chunk = max(1, min(CHUNK, int(replay.rate))) if replay.rate else CHUNK
    began, before = time.monotonic(), replay.entries
    named = replay.selection.positions is not None
    wanted = replay.selection.of(None if named else statuses(replay.selection))
    for found, upto in entries.strides(desk, wanted, after=replay.position, last=replay.last_position, most=chunk):
        _queue_patiently(desk, replay, found, upto)
        progress(replay)
        if replay.rate:
            time.sleep(max(0.0, began + (replay.entries - before) / replay.rate - time.monotonic()))
    with desk.acting() as connection:
        operator_acts.finish_replay(connection, replay.id)


def left(desk: Desk, replay: Replay) -> tuple[int, int]:
    """Return how many queued entries are not published yet, and how many have failed for good."""
    with desk.acting() as connection:
        return operator_acts.replay_left(connection, replay.id)


def _queue_patiently(desk: Desk, replay: Replay, found: Sequence[ListedEntry], upto: int) -> None:
    """Queue a chunk; try again when a lane is busy for longer than the wait for a lock."""
    for tried in range(1, _TRIES + 1):
        try:
            return _queue(desk, replay, found, upto)
        except Transient:
            if tried == _TRIES:
                raise
    return None


def _queue(desk: Desk, replay: Replay, found: Sequence[ListedEntry], upto: int) -> None:
    """Queue a chunk: the entries together with the replay's progress, or neither."""
    with desk.acting() as connection:
        queued = 0
        if found:
            entries.hold(desk, connection, (each.lane for each in found))
            positions = [each.position for each in found]
            queued = operator_acts.queue_replay(connection, replay.id, positions, statuses(replay.selection))
        if not operator_acts.advance_replay(connection, replay.id, replay.position, upto, queued):
            raise FerrymanError(
                f"another process continues replay {replay.id}",
                remedy="leave it to that process; `ferryman outbox stats` shows how far it is",
            )
    replay.position, replay.entries = upto, replay.entries + queued
