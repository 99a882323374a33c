"""Sweeps by Celery: a real worker and a real beat on PostgreSQL as the broker, and requests of a real Django."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ferryman.celery import sweep
from ferryman.runtime.postgres import Connection
from ferryman.services.runner.events import enqueue
from ferryman.testing import reaper
from ferryman.testing.receiver import Answer, Receiver
from support.compose import ROOT
from support.published import poll_until

INTERVAL_SECONDS = 1
PATIENCE_SECONDS = 60  # a busy machine takes long to start what Celery imports
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
WORKER = ("worker", "--loglevel", "INFO", "--without-gossip", "--without-mingle", "--concurrency", "1", "--pool")


class Shop:
    """The processes of a user's application, with their folder and their environment."""

    def __init__(self, folder: Path, database_url: str, receiver: Receiver) -> None:
        self.folder = folder
        self.receiver = receiver
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FERRYMAN_")}
        self.environment = inherited | {
            "PYTHONPATH": str(ROOT / "tests"),
            "SHOP_BROKER": database_url.replace("postgresql://", "sqla+postgresql+psycopg://"),
            "FERRYMAN_DATABASE_URL": database_url,
            "FERRYMAN_RUNNER__URL": receiver.url,
            "FERRYMAN_RUNNER__SECRET": SECRET,
            "FERRYMAN_RUNNER__SWEEP_SECONDS": str(INTERVAL_SECONDS),
            "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]',
        }

    @contextmanager
    def celery(self, *arguments: str) -> Iterator[Path]:
        """Run Celery while the block runs, then kill it: it takes seconds to end. Give the file with what it says."""
        log = self.folder / f"{arguments[0]}.log"
        command: list[str | Path] = [Path(sys.executable).with_name("celery"), "-A", "support.sweeping", *arguments]
        with log.open("wb") as output:
            child = subprocess.Popen(
                command, env=self.environment, cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )
        reaper.watch_group(child.pid)
        try:
            yield log
            assert child.poll() is None, log.read_text()
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(30)
            reaper.forget_group(child.pid)

    def requests(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Make two requests to Django: the first fails."""
        command = [sys.executable, "-m", "support.sweeping"]
        return subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, check=False, timeout=60
        )


@pytest.fixture
def shop(tmp_path: Path, ferryman_database_url: str) -> Iterator[Shop]:
    with Receiver() as receiver:
        yield Shop(tmp_path, ferryman_database_url, receiver)


def events(db: Connection) -> list[tuple[Any, ...]]:
    return db.execute("SELECT idempotency_key, status FROM runner.event_outbox ORDER BY 1").fetchall()


def waiting_sweeps(db: Connection) -> int:
    if db.execute("SELECT to_regclass('kombu_message')").fetchone() == (None,):
        return 0
    return len(db.execute("SELECT 1 FROM kombu_message WHERE visible").fetchall())


def test_periodic_sweep_task_runs_on_configured_interval_via_celery_beat(shop: Shop, ferryman_db: Connection) -> None:
    """Sweeps that no worker took in time are dropped, so that they never pile up."""
    with shop.celery("beat", "--loglevel", "INFO") as beat:
        poll_until(lambda: waiting_sweeps(ferryman_db) == 2, "two sweeps without a worker", PATIENCE_SECONDS)
        enqueue(ferryman_db, "file.uploaded", "1", {})
        with shop.celery(*WORKER, "solo") as worker:
            poll_until(lambda: events(ferryman_db) == [("1", "DELIVERED")], "the first event", PATIENCE_SECONDS)
            enqueue(ferryman_db, "file.uploaded", "2", {})
            poll_until(lambda: events(ferryman_db)[-1] == ("2", "DELIVERED"), "the second event", PATIENCE_SECONDS)
    assert "Discarding revoked task: ferryman.sweep" in worker.read_text()
    times = re.findall(r"\[([\d-]+ [\d:,]+): INFO.*Sending due task ferryman\.sweep", beat.read_text())
    began = [datetime.strptime(each, "%Y-%m-%d %H:%M:%S,%f") for each in times]  # noqa: DTZ007 - only compared
    gaps = [(late - early).total_seconds() for early, late in pairwise(began)]
    assert len(gaps) >= 2
    assert all(gap > INTERVAL_SECONDS / 2 for gap in gaps)
    assert min(gaps) < INTERVAL_SECONDS * 2  # a busy machine may be late at times
    assert SECRET not in beat.read_text() + worker.read_text()


def test_commit_of_django_starts_a_sweep_and_a_rollback_none(shop: Shop, ferryman_db: Connection) -> None:
    """No beat runs here, so the sweep must not expire before a busy worker takes it."""
    shop.environment["FERRYMAN_RUNNER__SWEEP_SECONDS"] = str(PATIENCE_SECONDS)
    with shop.celery(*WORKER, "prefork") as worker:
        poll_until(lambda: " ready." in worker.read_text(), "the worker", PATIENCE_SECONDS)
        assert shop.requests().stdout == "[500, 201]\n"
        poll_until(lambda: events(ferryman_db) == [("2", "DELIVERED")], "the event", PATIENCE_SECONDS)
    assert len(re.findall(r"Task ferryman\.sweep\[\S+ received", worker.read_text())) == 1
    assert len(shop.receiver.requests) == 1


def test_broker_that_is_away_fails_no_request(shop: Shop, ferryman_db: Connection) -> None:
    done = shop.requests(SHOP_BROKER="sqla+postgresql+psycopg://nobody@127.0.0.1:9/shop")
    assert done.stdout == "[500, 201]\n"
    assert "in on_commit()" in done.stderr
    assert events(ferryman_db) == [("2", "PENDING")]


def test_sweep_of_events_that_keep_failing_ends_with_its_interval(
    shop: Shop, ferryman_db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in shop.environment.items():
        monkeypatch.setenv(name, value)
    for name, seconds in (("BASE", "0.001"), ("CAP", "0.001"), ("SWEEP", "3")):
        monkeypatch.setenv(f"FERRYMAN_RUNNER__{name}_SECONDS", seconds)
    turns = itertools.count()
    shop.receiver.answer = lambda _: Answer(200 if threading.Event().wait(0.03 + next(turns) % 20 / 500) else 503)
    for number in range(20):  # they fail one by one: if all did at once, none might be due when the sweep looks
        enqueue(ferryman_db, "file.uploaded", str(number), {})
    began = time.monotonic()
    counts = sweep()
    assert 3 <= time.monotonic() - began < 20
    assert counts["failed"] > 0
    assert {status for _, status in events(ferryman_db)} == {"FAILED"}


def test_sweeps_need_no_django() -> None:
    program = "import sys; sys.modules['django'] = None; import ferryman.celery"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
