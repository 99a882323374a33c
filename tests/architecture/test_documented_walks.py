"""The walks of docs/architecture.md name few files, all of which exist. An integration test follows them for real."""

import threading

import pytest

from support.sources import ROOT, room
from support.walks import PAGE, WALKS, Walk, documented, traced

TURN = WALKS[0]
SAMPLE = """\
# Architecture

Read `relay/other.py` later.

## One relay turn

1. `relay/lanes.py` `run_once` claims, and
2. `relay/store/lanes.py` and `relay/lanes.py` again.

### Detail

`relay/detail.py`

## One consumer batch

`consumer/worker.py`
"""


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.heading)
def test_documented_walk_names_few_files_and_they_exist(walk: Walk) -> None:
    files = documented(PAGE.read_text(), walk)
    assert files, f"docs/architecture.md has no section {walk.heading!r}"
    assert [each for each in files if not (ROOT / each).exists()] == []
    assert len(files) <= walk.most_files


def test_only_files_of_the_section_belong_to_the_walk() -> None:
    assert documented(SAMPLE, TURN) == ["relay/lanes.py", "relay/store/lanes.py"]
    assert documented(SAMPLE, WALKS[1]) == ["consumer/worker.py"]
    assert documented("# Architecture\n", TURN) == []


def run_once() -> str:
    return room("relay/lanes.py")


def test_files_of_called_functions_are_collected_only_within_the_walk() -> None:
    walk = Walk("A sample", "tests", ("run_once",), 1)
    with traced(walk, "tests/architecture/test_documented_walks.py") as found:
        documented(SAMPLE, TURN)
        thread = threading.Thread(target=run_once)
        thread.start()
        thread.join()
    assert found == {"tests/architecture/test_documented_walks.py", "tests/support/sources.py"}
