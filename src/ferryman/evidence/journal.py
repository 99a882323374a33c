"""Find entries by their ids in a journal that has no index on ids: by when they must have been appended.

Positions follow time, so a moment is found by bisection and only the entries around it are read. That costs writers
nothing, and whoever asks a few milliseconds, however much is retained.
"""

import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from ferryman.evidence.messages import OutboxEntry, rows, tuples
from ferryman.evidence.sides import Side
from ferryman.relay.admin import entries as listing
from ferryman.relay.admin.entry_story import look
from ferryman.relay.store.entry_views import first_from, last_position

_COLUMNS = """\
e.id, e.position, e.status, e.type, e.topic, e.key, e.created_at, e.attempts, e.error, e.changed_at, e.replay"""

_BETWEEN = f"""\
-- evidence.entries_between
SELECT {_COLUMNS} FROM ferryman.outbox_entries e
WHERE e.position > %(after)s AND e.position <= %(upto)s AND e.id = ANY (%(ids)b::uuid[])
ORDER BY e.position
"""  # noqa: S608 - only our own columns are put in

# An entry that no relay has read is invisible to the last snapshot of its lane, so its transaction is not older than
# the oldest that was running then. By the index on transactions; the view says which of these entries are published.
_UNREAD = f"""\
-- evidence.unread
SELECT {_COLUMNS} FROM ferryman.outbox_entries e
WHERE e.xid >= (SELECT min(pg_snapshot_xmin(done_snapshot)) FROM ferryman.outbox_lanes)
  AND e.id = ANY (%(ids)b::uuid[]) AND e.status <> 'PUBLISHED'
"""  # noqa: S608 - same

_EXCEPTIONS = f"""\
-- evidence.exceptions
SELECT {_COLUMNS.replace("e.error", "coalesce(e.error, t.reason) AS error")}
FROM unnest(%(topics)s::text[], %(keys)s::text[]) n (topic, key)
CROSS JOIN LATERAL (
    SELECT x.position FROM ferryman.outbox_exception x
    WHERE x.lane = ferryman.outbox_lane(n.key) AND x.topic = n.topic AND x.key = n.key OFFSET 0
) x
JOIN ferryman.outbox_entries e ON e.position = x.position
LEFT JOIN ferryman.outbox_parked_topic t ON t.lane = e.lane AND t.topic = e.topic
WHERE e.id = ANY (%(ids)b::uuid[])
"""  # noqa: S608 - same

_TRUNCATED = """\
-- evidence.truncated
SELECT 0 <> ANY (truncated) FROM ferryman.outbox_state
"""

# First close around each moment; wider only while something is missing that must be there: a long transaction, another
# server's clock, a clock that was set.
_SLACKS = tuple(timedelta(seconds=seconds) for seconds in (0.25, 2.0, 20.0))
_WIDE_SLACKS = tuple(timedelta(seconds=seconds) for seconds in (2.0, 60.0, 900.0))
_SWEEP_SECONDS = 0.1
_STRIDE, _LONGEST_STRIDE = 20_000, 100_000
_NEAR = 1_000
_MOST_SPANS = 200
_MOST_LOOKS = 8


def find(
    side: Side, ids: Collection[UUID], moments: Sequence[datetime], must: Collection[UUID], seconds: float
) -> tuple[list[OutboxEntry], bool]:
    """Read around each moment, however slow the database answers. Return the entries in their order, and whether all
    that must be there was found: after so many seconds of reading it is looked for no further. A little more time goes
    to what may follow the first moment: results that were reported again, attempts that nobody has answered.
    """
    search = _Search(side, list(ids), seconds, set(must))
    whole = search.around(moments, _SLACKS)
    if moments:
        search.left = _SWEEP_SECONDS
        search.between(listing.at_time(side, min(moments) - _SLACKS[0]), None)
    return [search.found[position] for position in sorted(search.found)], whole or search.complete


def appended(side: Side, ids: Collection[UUID], moments: Sequence[datetime]) -> set[UUID]:
    """Return those of these entries that stand in the journal around these moments: wider while one is missing."""
    search = _Search(side, list(ids), math.inf, set(ids))
    search.around(moments, _WIDE_SLACKS)
    return {each.id for each in search.found.values()}


def backwards(side: Side, identity: UUID, moment: datetime | None, seconds: float) -> tuple[list[OutboxEntry], int]:
    """Look backwards for an id, from a moment or from the end, for so many seconds. Return its entries, and the
    position down to which there was time to look. The first stride is made in any case.
    """
    until, stride = time.monotonic() + seconds, _STRIDE
    with side.reading() as db:
        upto = last_position(db)
    upto = min(upto, listing.at_time(side, moment) + _NEAR) if moment else upto
    while upto > 0:
        search = _Search(side, [identity], seconds)
        search.between(max(0, upto - stride), upto)
        if search.found:
            return list(search.found.values()), 0
        upto, stride = upto - stride, min(stride * 2, _LONGEST_STRIDE)
        if time.monotonic() > until:
            break
    return [], max(0, upto)


def with_reasons(side: Side, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
    """Add to the first of those that are not published what `ferryman outbox show` tells of them."""
    waiting = [each.position for each in entries if each.status != "PUBLISHED" and each.position][:_MOST_LOOKS]
    shown = {position: seen for position in waiting if (seen := look(side, position))}
    return [
        each._replace(status=seen.entry.status, reason=seen.story.reason, next=seen.story.next)
        if each.position and (seen := shown.get(each.position)) else each
        for each in entries
    ]  # fmt: skip


def unpublished(side: Side, keys: Collection[tuple[str, str]], ids: Collection[UUID]) -> dict[UUID, OutboxEntry]:
    """Return those of these entries that are not published; `keys` are their topics and keys. An entry moves from the
    unread to the exceptions, so what is unread is asked first.
    """
    if not keys:
        return {}
    topics, names = zip(*keys, strict=True)
    given = {"ids": list(ids), "topics": list(topics), "keys": list(names)}
    with side.reading() as db:
        unread = rows(db, OutboxEntry, _UNREAD, given)
        return {each.id: each for each in [*unread, *rows(db, OutboxEntry, _EXCEPTIONS, given)]}


def kept_since(side: Side, retention_seconds: float) -> datetime:
    """Return the moment since which the journal has forgotten nothing."""
    if not side.ask(tuples, _TRUNCATED, {})[0][0]:
        return datetime.min.replace(tzinfo=UTC)
    return side.now() - timedelta(seconds=retention_seconds)


def merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return the spans in order, those that overlap as one."""
    out: list[tuple[datetime, datetime]] = []
    for since, to in sorted(spans):
        if out and since <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], to))
        else:
            out.append((since, to))
    return out


def _spans(moments: Sequence[datetime], slack: timedelta) -> list[tuple[datetime, datetime]]:
    """Return the times around these moments; where they are very many, wider ones."""
    while len(spans := merged((at - slack, at + slack) for at in moments)) > _MOST_SPANS:
        slack *= 4
    return spans


def _behind(side: Side, after: int, moment: datetime) -> int:
    """Return a position with all that was appended up to a moment before it: in few steps, a little too far."""
    reach = _NEAR
    with side.reading() as db:
        last = last_position(db)
        while after + reach < last and (found := first_from(db, after + reach)) and found[1] <= moment:
            reach *= 2
    return min(after + reach, last)


@dataclass(slots=True)
class _Search:
    side: Side
    ids: list[UUID]
    left: float
    """Seconds of reading. How long it takes to find where to read is not counted."""
    must: set[UUID] = field(default_factory=set)
    found: dict[int, OutboxEntry] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.must <= {each.id for each in self.found.values()}

    def around(self, moments: Sequence[datetime], slacks: Sequence[timedelta]) -> bool:
        """Read around each moment, wider while something is missing. Return True if all that must be there was found,
        or everything was read.
        """
        whole = False
        for slack in slacks:
            starts = [(listing.at_time(self.side, since), to) for since, to in _spans(moments, slack)]
            read = [self.between(after, _behind(self.side, after, to)) for after, to in starts]
            whole = all(read) and slack == slacks[-1]
            if self.complete or self.left <= 0:
                break
        return self.complete or whole

    def between(self, after: int, last: int | None) -> bool:
        """Read stride after stride, to a position or to the end of the journal. Return True if there was time to get
        there. The first stride is made in any case.
        """
        stride = _STRIDE
        while True:
            began = time.monotonic()
            with self.side.reading() as db:
                end = last_position(db) if last is None else min(last, last_position(db))
                if after >= end:
                    return True
                upto = min(after + stride, end)
                entries = rows(db, OutboxEntry, _BETWEEN, {"ids": self.ids, "after": after, "upto": upto})
                self.found |= {each.position: each for each in entries if each.position is not None}
            self.left -= time.monotonic() - began
            if upto >= end or self.left <= 0:
                return upto >= end
            after, stride = upto, min(stride * 2, _LONGEST_STRIDE)
