"""What is still to do, as the view `ferryman.backlog` says, and how old the windows are: for metrics and summaries."""

from typing import NamedTuple

from ferryman.relay.store.lanes import Connection, value

_BACKLOG = """\
-- relay.backlog
SELECT topic, pending, oldest_age_seconds, retrying, parked, failed FROM ferryman.backlog
"""

_WAITING = """\
-- relay.waiting
SELECT count(*) FROM ferryman.outbox_exception WHERE status IN ('RETRYING', 'REPLAYING', 'PARKED')
"""

_WINDOW_AGE = """\
-- relay.window_age
SELECT extract(epoch FROM clock_timestamp() - min(w.taken_at))::float8
FROM ferryman.outbox_lanes l JOIN ferryman.outbox_window w ON w.id = l.done
"""

_SEGMENTS_IN_USE = """\
-- relay.segments_in_use
SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'ferryman.outbox'::regclass AND c.relname ~ '^outbox_[0-7]$' AND pg_relation_size(c.oid) > 0
"""


class Backlog(NamedTuple):
    """A topic's entries that are not published, by how they stand."""

    topic: str
    pending: int
    oldest_age_seconds: float | None
    retrying: int
    parked: int
    failed: int


def read(connection: Connection) -> list[Backlog]:
    return [Backlog(*row) for row in connection.execute(_BACKLOG).fetchall()]


def waiting(connection: Connection) -> int:
    """How many entries are tried again later, or wait behind such ones."""
    return int(value(connection.execute(_WAITING)))


def window_age_seconds(connection: Connection) -> float:
    """The age of the oldest window that a lane stands at."""
    return float(value(connection.execute(_WINDOW_AGE)) or 0)


def segments_in_use(connection: Connection) -> int:
    """How many of the ring's eight hold entries."""
    return int(value(connection.execute(_SEGMENTS_IN_USE)))
