"""What a lane has to publish: the entries that became visible between two windows."""

from typing import Any, cast

from ferryman.relay.model import Entry, Walk, Window
from ferryman.relay.store.lanes import Connection, value

# A sequence that was never used says 1 without having given it.
_LAST_POSITION = """\
-- relay.last_position
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM ferryman.outbox_position_seq
"""

# Kept for the statement behind it in the same pipeline.
_TAKE_SNAPSHOT = """\
-- relay.take_snapshot
SELECT set_config('ferryman.target', pg_current_snapshot()::text, true)
"""

COLUMNS = """\
o.position, o.id::text, o.topic, o.key, o.type, o.payload, CASE WHEN o.headers <> '{}' THEN o.headers::text END,
o.content_type, (extract(epoch FROM o.created_at) * 1000000)::bigint, o.segment, o.lane"""

# Late entries have positions up to that of `done`, so that ordering by position puts them first. A probe for each
# transaction, because an OR would let the planner read all that is retained (tried: 900 ms instead of 0.1).
_READ = f"""\
-- relay.read
SELECT * FROM (
    (SELECT late.*
     FROM ferryman.outbox_late(%(done)s::pg_snapshot, %(horizon)s::xid8, $target) running (xid)
     CROSS JOIN LATERAL (
        SELECT {COLUMNS} FROM ferryman.outbox o
        WHERE o.xid = running.xid AND o.position > %(position)s AND o.position <= %(done_at)s
          AND o.lane = ANY (%(lanes)s::smallint[])
        ORDER BY o.xid, o.position LIMIT %(most)s
     ) late)
    UNION ALL
    (SELECT {COLUMNS} FROM ferryman.outbox o
     WHERE o.position > greatest(%(position)s, %(done_at)s) AND o.lane = ANY (%(lanes)s::smallint[])
       AND pg_visible_in_snapshot(o.xid, $target) AND NOT pg_visible_in_snapshot(o.xid, %(done)s::pg_snapshot)
     ORDER BY o.position LIMIT %(most)s)
) entry ORDER BY 1 LIMIT %(most)s
"""  # noqa: S608 - only our own columns and parameters are put in
_READ_ON = _READ.replace("$target", "%(target)s::pg_snapshot")
_READ_NEW = _READ.replace("$target", "(SELECT current_setting('ferryman.target')::pg_snapshot)")
_NO_HORIZON = str(2**64 - 1)


def read(connection: Connection, walk: Walk, most: int) -> tuple[list[Entry], Window]:
    """The next entries of the walk's step, and the step's target: a new window when it had none."""
    wanted: dict[str, Any] = {
        "lanes": walk.lanes,
        "done": walk.done.snapshot,
        "done_at": walk.done.position_at,
        "horizon": walk.done.horizon or _NO_HORIZON,
        "position": walk.position,
        "most": most,
    }
    if walk.target is not None:
        rows = connection.execute(_READ_ON, wanted | {"target": walk.target.snapshot}, binary=True)
        return cast(list[Entry], rows.fetchall()), walk.target
    with connection.pipeline():
        last = connection.execute(_LAST_POSITION)
        snapshot = connection.execute(_TAKE_SNAPSHOT)
        rows = connection.execute(_READ_NEW, wanted, binary=True)
        window = Window(value(snapshot), value(last))
        return cast(list[Entry], rows.fetchall()), window
