"""Filling the journal fast, and making what was published pending again."""

from typing import Any

import psycopg

from ferryman.bench.scale import KEYS, PAYLOAD_BYTES

Connection = psycopg.Connection[tuple[Any, ...]]

_MOST_AT_ONCE = 1_000_000

# As outbox_append would write them: JSON of a length, a part of which does not compress.
_APPEND = """\
-- bench.append_loaded
INSERT INTO ferryman.outbox (lane, topic, key, type, payload, content_type)
SELECT ferryman.outbox_lane('key-' || n %% %(keys)s), %(topic)s, 'key-' || n %% %(keys)s, 'bench.loaded',
       convert_to(rpad('{"order":"' || lpad(n::text, 12, '0') || '","customer":"' || md5(n::text) || '","reference":"'
                       || md5((-n)::text) || '","currency":"EUR","state":"PLACED"', %(bytes)s - 1) || '}', 'UTF8'),
       'application/json'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
_VACUUM = "-- bench.vacuum\nVACUUM (ANALYZE) ferryman.outbox"
_CHECKPOINT = "-- bench.checkpoint\nCHECKPOINT"

_REMEMBER = """\
-- bench.remember
CREATE SCHEMA bench;
CREATE TABLE bench.windows AS SELECT * FROM ferryman.outbox_window;
CREATE TABLE bench.cursors AS SELECT * FROM ferryman.outbox_cursor
"""
_REWIND = """\
-- bench.rewind
TRUNCATE ferryman.outbox_window, ferryman.outbox_cursor;
INSERT INTO ferryman.outbox_window OVERRIDING SYSTEM VALUE SELECT * FROM bench.windows;
INSERT INTO ferryman.outbox_cursor OVERRIDING SYSTEM VALUE SELECT * FROM bench.cursors
"""


def append(connection: Connection, topic: str, entries: int) -> None:
    """Appends so many in one transaction of the caller's, or in autocommit mode in a few."""
    for first in range(1, entries + 1, _MOST_AT_ONCE):
        last = min(entries, first + _MOST_AT_ONCE - 1)
        connection.execute(
            _APPEND, {"keys": KEYS, "topic": topic, "bytes": PAYLOAD_BYTES, "first": first, "last": last}
        )


def preload(connection: Connection, topic: str, entries: int) -> None:
    """So many pending entries, vacuumed once, as autovacuum would have by the time a backlog is this large."""
    append(connection, topic, entries)
    connection.execute(_VACUUM)
    checkpoint(connection)
    connection.execute(_REMEMBER)


def rewind(connection: Connection) -> None:
    """All that was published since `preload` is pending again: only cursors and windows say that it was."""
    connection.execute(_REWIND)
    checkpoint(connection)


def checkpoint(connection: Connection) -> None:
    """So that no figure pays for what was written before it."""
    try:
        connection.execute(_CHECKPOINT)
    except psycopg.errors.InsufficientPrivilege:  # a server that was given: its own checkpoints will have to do
        pass
