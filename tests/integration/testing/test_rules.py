"""The rules of all tests: slow markers, output of failed processes, shared servers, seeds."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


def run(folder: Path, source: str, *options: str) -> str:
    """Run pytest on a test file with this source, and return its output."""
    (folder / "test_probe.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.rules", "-q", *options, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_failing_test_shows_the_output_of_its_processes(tmp_path: Path) -> None:
    said = run(tmp_path, "def test_it(ferryman):\n    ferryman.run('docter')\n    assert False\n")
    assert "ferryman docter" in said
    assert "Did you mean 'doctor'?" in said


def test_slow_test_needs_its_marker(tmp_path: Path) -> None:
    test = "def test_{}():\n    time.sleep(0.2)\n"
    body = f"import pytest, time\n{test.format('it')}@pytest.mark.slow\n{test.format('slow')}"
    said = run(tmp_path, body, "-o", "slow_seconds=0.1")
    assert "test_probe.py::test_it took 0.2 s: make it faster, or mark it slow and say why" in said
    assert "1 failed, 1 passed" in said
    assert "2 passed" in run(tmp_path, body)


def test_serial_tests_of_a_group_run_in_one_worker(tmp_path: Path) -> None:
    test = (
        "@{mark}\n"
        "@pytest.mark.parametrize('n', range(8))\n"
        "def test_{name}(n):\n"
        "    pathlib.Path(__file__).with_name('{name}-' + os.environ['PYTEST_XDIST_WORKER']).touch()\n"
    )
    tests = [test.format(name="a", mark="pytest.mark.serial"), test.format(name="b", mark="pytest.mark.serial('b')")]
    source = "import os, pathlib, pytest\n" + "".join(tests)
    configured = ("-o", "markers=serial(group)", "-n", "2", "--dist", "loadgroup")
    assert "16 passed" in run(tmp_path, source, *configured)
    assert {len(list(tmp_path.glob(f"{group}-gw*"))) for group in "ab"} == {1}


@pytest.mark.slow
def test_workers_share_a_server_and_have_their_own_databases(tmp_path: Path) -> None:
    """Two workers run four tests on one server port and in four databases, and the summary names the server.

    This is slow because it is a whole test run with a server of its own.
    """
    source = (
        "import pathlib, pytest\n"
        "@pytest.mark.parametrize('n', range(4))\n"
        "def test_it(n, ferryman_db):\n"
        "    i = ferryman_db.info\n"
        "    pathlib.Path(__file__).with_name(f'seen-{n}').write_text(f'{i.port} {i.dbname}')\n"
    )
    said = run(tmp_path, source, "-n", "2")
    assert "4 passed" in said
    assert said.count("\nPostgreSQL: ") == 1
    seen = [path.read_text().split() for path in tmp_path.glob("seen-*")]
    assert len({port for port, _ in seen}) == 1
    assert len({name for _, name in seen}) == 4


@pytest.mark.parametrize("passes", [True, False])
def test_seed_is_printed_before_the_first_test_and_at_the_end(tmp_path: Path, passes: bool) -> None:
    said = run(tmp_path, f"def test_it(seed): assert {passes}\n", "--seed", "7", "-v")
    assert said.index("seed: 7") < said.index("test_probe.py") < said.index("seconds per tier")
    assert said.index("seconds per tier") < said.index("the seed was 7")


def test_make_prove_uses_a_new_seed_unless_one_is_given() -> None:
    def command(*given: str) -> str:
        done = subprocess.run(["make", "-n", "-s", "prove", *given], cwd=TESTS.parent, capture_output=True, text=True,
                              check=True)  # fmt: skip
        return done.stdout.splitlines()[-1]

    assert command("SEED=7").endswith("--seed 7")
    assert abs(int(command().rpartition(" ")[2]) - time.time()) < 60
