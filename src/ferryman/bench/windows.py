"""A claim after many windows, while somebody's snapshot keeps every old row from being vacuumed."""

from collections.abc import Iterator

import psycopg

from ferryman.bench import goals, turns
from ferryman.bench.drain import open_snapshot
from ferryman.bench.figures import Figure, median
from ferryman.bench.load import Connection
from ferryman.bench.parts import Bench

_SAMPLES = 500
_APPEND = "-- bench.append_to_window\nSELECT ferryman.outbox_append('bench', %s, 'bench.window', 'x')"


def claim(bench: Bench) -> Iterator[Figure]:
    """A database with all those windows beside one with its first, by turns."""
    windows = bench.scale.windows
    with (
        bench.database() as old_url,
        bench.database() as new_url,
        psycopg.connect(old_url) as old,
        psycopg.connect(new_url) as new,
    ):
        with open_snapshot(old_url):
            _write_windows(old_url, old, windows)
            _write_windows(new_url, new, 1)
            pairs = [(turns.claim_ms(old), turns.claim_ms(new)) for _ in range(_SAMPLES)]
    after, first = ([pair[side] for pair in pairs[_SAMPLES // 10 :]] for side in (0, 1))
    bench.say(f"a claim at first: {median(first):.2f} ms; after {windows:,} windows: {median(after):.2f} ms")
    yield goals.SNAPSHOT_CLAIM.figure(
        median(after) / median(first), windows=windows, first_ms=median(first), after_ms=median(after)
    )


def _write_windows(url: str, worker: Connection, windows: int) -> None:
    """A window for each of so many entries."""
    with psycopg.connect(url, autocommit=True) as writer:
        for number in range(windows):
            writer.execute(_APPEND, (f"key-{number}",))
            turns.turn(worker)
