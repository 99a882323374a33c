"""`ferryman up` and `ferryman demo`: real servers come up together, and nothing of them stays.

Slow, because each test starts all of them, and with other tests beside it that takes its time.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from ferryman.testing.kafka import answers as kafka_answers
from ferryman.testing.postgres import answers as postgres_answers
from support.launch import Launcher

pytestmark = [pytest.mark.serial, pytest.mark.slow]

DATABASE, KAFKA = "FERRYMAN_DATABASE_URL", "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"


@pytest.fixture
def temporary(ferryman: Launcher) -> Iterator[Path]:
    """Where the launched processes keep what is temporary. Not in pytest's folder, which it closes to other users."""
    folder = Path(tempfile.mkdtemp(prefix="up-and-demo-"))
    folder.chmod(0o755)
    ferryman.environment["TMPDIR"] = str(folder)
    yield folder
    shutil.rmtree(folder)


def soon(condition: Callable[[], bool], seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def busy() -> float:
    """How much more the machine has to do than it has cores."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def test_the_demo_is_healthy_and_leaves_nothing(ferryman: Launcher, temporary: Path) -> None:
    demo = ferryman.run("demo", "--json", seconds=60, real=True)
    assert demo.wait() == 0, demo.transcript()
    assert demo.json["healthy"] is True
    assert demo.json["crossing"]["good"] is True
    assert demo.json["crossing"]["committed"] == demo.json["crossing"]["read"] == 10_000
    assert {check["status"] for check in demo.json["checks"]} == {"ok", "skipped"}
    assert list(temporary.iterdir()) == []


def test_the_demo_of_payments_kills_each_process_and_its_audit_finds_nothing_wrong(
    ferryman: Launcher, temporary: Path
) -> None:
    """N1, N5, N11: in less than a minute, as far as the machine has time for it, and nothing stays."""
    demo = ferryman.run("demo", "payments", "--json", seconds=90, real=True)
    assert demo.wait() == 0, demo.transcript()
    told = demo.json
    assert told["ready_seconds"] < told["seconds"] < 60 * busy()
    assert (told["verdict"], told["audit"]["verdict"], told["audit"]["wrong"]) == ("ok", "ok", [])
    payments = told["payments"]
    assert payments["requested"] == payments["succeeded"] + payments["failed"] > 1000
    assert payments["failed"] > 0
    counts = told["audit"]["counts"]
    assert counts["requests"]["SUCCEEDED"] + counts["requests"]["FAILED"] == payments["requested"]
    assert set(told["killed"]) == {"relay", "wallet", "payments"}
    assert min(told["killed"].values()) > 0
    assert list(temporary.iterdir()) == []


def test_what_up_brings_up_is_migrated_and_ends_with_it(ferryman: Launcher, temporary: Path) -> None:
    up = ferryman.start("up", "--embedded", "--no-registry", "--json")
    variables = up.until(lambda: up.stdout.rstrip().endswith("}") and up.json, "ready", seconds=60)
    with psycopg.connect(variables[DATABASE]) as connection:
        assert connection.execute("SELECT count(*) FROM ferryman.version_engine").fetchone() == (1,)
    assert kafka_answers(variables[KAFKA])
    up.send(signal.SIGTERM)
    assert up.wait() == 0
    assert not postgres_answers(variables[DATABASE])
    assert not kafka_answers(variables[KAFKA])
    assert list(temporary.iterdir()) == []


def test_when_up_is_killed_its_servers_go_too(ferryman: Launcher, temporary: Path) -> None:
    up = ferryman.start("up", "--embedded", "--no-registry", "--json")
    variables = up.until(lambda: up.stdout.rstrip().endswith("}") and up.json, "ready", seconds=60)
    up.kill()
    assert soon(lambda: not postgres_answers(variables[DATABASE]) and not kafka_answers(variables[KAFKA]))
    assert soon(lambda: not list(temporary.glob("ferryman-*")))


def test_a_program_runs_with_the_servers_in_its_environment_and_gives_the_exit_code(
    ferryman: Launcher,
) -> None:
    script = f'test -n "${DATABASE}" && test -n "${KAFKA}" && ferryman doctor --json && exit 7'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    up = ferryman.run("up", "--embedded", "--no-registry", "--", "sh", "-c", script, env={"PATH": path}, seconds=60)
    assert up.wait() == 7, up.transcript()
    assert up.json["healthy"] is True


def test_when_kafka_cannot_come_up_nothing_is_left_half_started(ferryman: Launcher, temporary: Path) -> None:
    """Neither Maven nor its jars, and the built-in broker refused: one line, and PostgreSQL is gone again."""
    environment = {"REQUIRE_REAL_KAFKA": "1", "XDG_CACHE_HOME": str(temporary / "cache"), "PATH": "/nowhere"}
    up = ferryman.run("up", "--embedded", "--no-registry", env=environment, seconds=60)
    assert up.wait() == 3, up.transcript()
    assert "no Kafka is to be had here" in up.stderr
    assert "Traceback" not in up.stderr
    assert soon(lambda: not list(temporary.glob("ferryman-*")))
