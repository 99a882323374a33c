"""What a lane has to publish: the entries that became visible between two windows."""

from typing import Any, cast

from ferryman.relay.model import Entry, Walk, Window
from ferryman.relay.store.lanes import Connection, value

# A sequence that was never used says 1 without having given it.
_LAST_POSITION = """\
-- relay.last_position
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM ferryman.outbox_position_seq
"""

_TAKE_SNAPSHOT = """\
-- relay.take_snapshot
SELECT pg_current_snapshot()::text
"""

# A large payload is read when its turn comes, so that a batch is bounded in bytes too.
INLINE_BYTES = 16_384
COLUMNS = f"""\
o.position, o.id::text, o.topic, o.key, o.type,
CASE WHEN octet_length(o.payload) <= {INLINE_BYTES} THEN o.payload END,
CASE WHEN o.headers <> '{{}}' THEN o.headers::text END, o.content_type,
 (date_part('epoch', o.created_at) * 1000000)::bigint, o.segment * 8 + o.lane"""

# Late entries have positions up to that of `done`, so that ordering by position puts them first. A probe for each
# transaction, because an OR would let the planner read all that is retained (tried: 900 ms instead of 0.1); and by
# comparing rows, because for one transaction's number it would take the index of the positions, and read all of them.
_READ = f"""\
-- relay.read
SELECT * FROM (
    (SELECT late.*
     FROM ferryman.outbox_late(%(done)s::pg_snapshot, %(done_at)s, %(horizon)s::xid8, %(target)s::pg_snapshot)
          running (xid)
     CROSS JOIN LATERAL (
        SELECT {COLUMNS} FROM ferryman.outbox o
        WHERE (o.xid, o.position) > (running.xid, %(position)s) AND (o.xid, o.position) <= (running.xid, %(done_at)s)
          AND o.lane = ANY (%(lanes)s::smallint[])
        ORDER BY o.xid, o.position LIMIT %(most)s
     ) late)
    UNION ALL
    (SELECT {COLUMNS} FROM ferryman.outbox o
     WHERE o.position > greatest(%(position)s, %(done_at)s) AND o.lane = ANY (%(lanes)s::smallint[])
       AND pg_visible_in_snapshot(o.xid, %(target)s::pg_snapshot)
       AND NOT pg_visible_in_snapshot(o.xid, %(done)s::pg_snapshot)
     ORDER BY o.position LIMIT %(most)s)
) entry ORDER BY 1 LIMIT %(most)s
"""  # noqa: S608 - only our own columns and parameters are put in
_NO_HORIZON = str(2**64 - 1)

_PAYLOAD = """\
-- relay.payload
SELECT payload FROM ferryman.outbox WHERE position = %(position)s
"""


def read(connection: Connection, walk: Walk, most: int, target: Window | None = None) -> tuple[list[Entry], Window]:
    """The next entries on the walk's way, and what its target is: the given one or a new one when it had none."""
    wanted: dict[str, Any] = {
        "lanes": walk.lanes,
        "done": walk.done.snapshot,
        "done_at": walk.done.position_at,
        "horizon": walk.done.horizon or _NO_HORIZON,
        "position": walk.position,
        "most": most,
    }
    if target := walk.target or target:
        rows = connection.execute(_READ, wanted | {"target": target.snapshot}, binary=True)
        return cast(list[Entry], rows.fetchall()), target
    last = connection.execute(_LAST_POSITION)
    snapshot = connection.execute(_TAKE_SNAPSHOT)
    window = Window(value(snapshot), value(last))
    rows = connection.execute(_READ, wanted | {"target": window.snapshot}, binary=True)
    return cast(list[Entry], rows.fetchall()), window


def payload(connection: Connection, position: int) -> bytes:
    """A large payload, alone."""
    return bytes(value(connection.execute(_PAYLOAD, {"position": position}, binary=True)))
