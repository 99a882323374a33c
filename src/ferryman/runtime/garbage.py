"""Python's collector of cycles, for a process that handles rows by the thousand.

Rows are tuples in lists: they form no cycles, and are gone when nobody holds them. With Python's own threshold the
collector would walk through all that are held after each few hundred.
"""

import gc

_ROWS_BETWEEN = 50_000


def collect_less() -> None:
    """For a whole process: call it when all is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ROWS_BETWEEN, 20, 20)
