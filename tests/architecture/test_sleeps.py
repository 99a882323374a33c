"""Tests wait for a condition with a deadline: a sleep outside a polling loop is either too short or too long.

The exception is a sleep that waits for nothing: time that passes in the scenario, such as the pace of a load.
"""

import ast
from collections import Counter
from collections.abc import Iterator

import pytest

from support.sources import files, tree

SLEEPS = ("time.sleep", "sleep", "asyncio.sleep")

SCENARIOS = {
    "tests/acceptance/consumer/test_consumer_faults.py": 3,  # the pace of a load, and of members that come and go
    "tests/integration/console/test_api_overload.py": 1,  # how long the load lasts
    "tests/integration/evidence/test_trace.py": 1,  # a slow database
    "tests/integration/outbox/test_journal.py": 1,  # the time between crashes
    "tests/integration/relay/test_exceptions.py": 3,  # an outage or a pause that lasts longer than its limit
    "tests/integration/relay/test_pooler.py": 2,  # a writer's pace, and the time between kills
    "tests/integration/relay/test_ring.py": 1,  # the age of a segment
    "tests/support/relay.py": 1,  # the rest of a publisher in memory
    "tests/unit/console/test_gate.py": 2,  # the time that an application takes, and a client that is silent
    "tests/unit/runtime/test_pace.py": 1,  # sleeping is what is measured
    "tests/unit/runtime/test_service.py": 1,  # a thread that works while a signal comes
}
"""The number of sleeps by file that are the scenario itself; nothing is waited for by them."""


def bare_sleeps(node: ast.AST, *, polling: bool = False) -> Iterator[ast.Call]:
    """Yield the sleeps outside a `while` loop. A randomised sleep is a fault that the test injects."""
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.While) or (polling and not isinstance(child, ast.FunctionDef | ast.Lambda))
        if isinstance(child, ast.Call) and ast.unparse(child.func) in SLEEPS and not inside:
            randomised = "dice" in ast.unparse(child)
            if not randomised:
                yield child
        yield from bare_sleeps(child, polling=inside)


def test_no_test_sleeps_outside_a_polling_loop() -> None:
    found = Counter({path: len(list(bare_sleeps(tree(path)))) for path in files() if path.startswith("tests/")})
    assert {path: count for path, count in found.items() if count != SCENARIOS.get(path, 0)} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("time.sleep(1)", 1),
        ("def test_it():\n    for _ in range(3):\n        time.sleep(0.1)", 1),
        ("async def test_it():\n    await asyncio.sleep(1)", 1),
        ("while not ready():\n    time.sleep(0.01)", 0),
        ("while True:\n    def wait():\n        time.sleep(1)", 1),
        ("time.sleep(dice.random())", 0),
    ],
)
def test_sleep_outside_a_polling_loop_is_found(source: str, count: int) -> None:
    assert len(list(bare_sleeps(ast.parse(source)))) == count
