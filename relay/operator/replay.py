"""Publishes entries once more, with the same id and bytes: queues them by position, in chunks that are whole.

How far it is stands in the database with what it queued, so that a replay that was stopped, by whatever, goes on
without doubling or skipping. The relay publishes what is queued.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from ferryman.relay.operator import listing
from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.listing import Count, Stride, strides, without_status
from ferryman.relay.operator.selection import DISCARDED, FAILED, PUBLISHED, Selection
from ferryman.relay.store import acts, lanes
from ferryman.relay.store.listing import last_position
from ferryman.runtime.desk import Act, audit
from ferryman.runtime.errors import FerrymanError, Transient

REPLAYABLE = (PUBLISHED, FAILED, DISCARDED)
CHUNK = 5_000
_TRIES = 3


@dataclass(slots=True)
class Replay:
    """One replay: what it is about, and how far it is."""

    id: int
    selection: Selection
    rate: float | None
    position: int
    last_position: int
    entries: int
    finished_at: datetime | None = None


Progress = Callable[[Replay], None]


def statuses(selection: Selection) -> tuple[str, ...]:
    """Those that are meant, and can be published once more; what was discarded is meant only by name."""
    if selection.statuses is not None:
        return selection.statuses
    return REPLAYABLE if selection.positions is not None else (PUBLISHED, FAILED)


def count(desk: Desk, selection: Selection, *, seconds: float) -> Count:
    """How many are meant, by status: those that would be queued, and those that stay as they are."""
    return listing.count(desk, selection, seconds=seconds)


def start(desk: Desk, selection: Selection, act: Act, *, rate: float | None, expected: int) -> Replay:
    """Writes down what is to be done, before any of it is."""
    with desk.acting() as connection:
        last = last_position(connection)
        number = acts.start_replay(
            connection, who=act.who, reason=act.reason, said=selection.as_json(), rate=rate, last=last
        )
        said = {"replay": number, "last_position": last, **selection.as_json()}
        audit(connection, "replay", act, said=said, entries=expected)
    return Replay(number, selection, rate, 0, last, 0)


def load(desk: Desk, number: int) -> Replay:
    """A replay that was started before."""
    with desk.acting() as connection:
        row = acts.read_replay(connection, number)
    if row is None:
        raise FerrymanError(f"there is no replay {number}", remedy="`ferryman outbox stats` lists the unfinished ones")
    return Replay(
        id=row["id"],
        selection=Selection.from_json(row["filter"]),
        rate=row["rate"],
        position=row["position"],
        last_position=row["last_position"],
        entries=row["entries"],
        finished_at=row["finished_at"],
    )


def run(desk: Desk, replay: Replay, progress: Progress) -> None:
    """Queues all that is left, at most at its rate."""
    chunk = max(1, min(CHUNK, int(replay.rate))) if replay.rate else CHUNK
    began, before = time.monotonic(), replay.entries
    wanted = _wanted(replay)
    for stride in strides(desk, wanted, after=replay.position, last=replay.last_position, most=chunk):
        _queue_patiently(desk, replay, stride)
        progress(replay)
        if replay.rate:
            time.sleep(max(0.0, began + (replay.entries - before) / replay.rate - time.monotonic()))
    with desk.acting() as connection:
        acts.finish_replay(connection, replay.id)


def left(desk: Desk, replay: Replay) -> tuple[int, int]:
    """How many of what is queued are not published yet, and how many have failed for good."""
    with desk.acting() as connection:
        return acts.replay_left(connection, replay.id)


def _wanted(replay: Replay) -> Selection:
    """What to look for: entries that are named are looked at whatever their status."""
    if replay.selection.positions is not None:
        return without_status(replay.selection)
    return replace(replay.selection, statuses=statuses(replay.selection))


def _queue_patiently(desk: Desk, replay: Replay, stride: Stride) -> None:
    """A lane may be busy for longer than one waits for a lock."""
    for tried in range(1, _TRIES + 1):
        try:
            return _queue(desk, replay, stride)
        except Transient:
            if tried == _TRIES:
                raise
    return None


def _queue(desk: Desk, replay: Replay, stride: Stride) -> None:
    """One chunk: the entries, and how far the replay is, or neither."""
    with desk.acting() as connection:
        queued = 0
        if stride.entries:
            lanes.hold(connection, list({each.lane for each in stride.entries}), wait_seconds=desk.lane_wait_seconds)
            positions = [each.position for each in stride.entries]
            queued = acts.queue_replay(connection, replay.id, positions, statuses(replay.selection))
        if not acts.advance_replay(connection, replay.id, replay.position, stride.upto, queued):
            raise FerrymanError(
                f"another process goes on with replay {replay.id}",
                remedy="leave it to that one; `ferryman outbox stats` shows how far it is",
            )
    replay.position, replay.entries = stride.upto, replay.entries + queued
