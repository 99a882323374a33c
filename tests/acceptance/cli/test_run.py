"""`ferryman run`: a user's service runs, drains on SIGTERM, and ends at once on a second signal (N16)."""

import json
import signal
import urllib.request

import pytest

from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Receiver
from support.hooks import HookTable
from support.launch import Launched, Launcher

SERVICE = """\
import time
from pathlib import Path

class Steady:
    name = "steady"

    def __init__(self, drain_seconds=0.0):
        self.drain_seconds = drain_seconds

    def run(self, life):
        life.ready()
        while not life.wait(0.02):
            life.progress()
        time.sleep(self.drain_seconds)
        Path("drained").touch()

class Broken:
    name = "broken"

    def run(self, life):
        from ferryman import Unreachable
        raise Unreachable("the moon does not answer", remedy="wait for the night")

steady, slow, broken = Steady(), Steady(30), Broken()

def made(settings):
    return Steady(settings.service.drain_seconds * 0)
"""

CHORES = """\
from ferryman import Chore

def deleting(name, every_seconds):
    chore = Chore(name, every_seconds=every_seconds)

    @chore.work
    def delete(db):
        some = f"SELECT n FROM {name} ORDER BY n LIMIT 10"
        return db.execute(f"DELETE FROM {name} WHERE n IN ({some})").rowcount == 10

    return chore

often, seldom = deleting("often", 0.1), deleting("seldom", 3600)
missing, wrong = Chore("missing"), Chore("wrong")

@missing.work
def look(db):
    db.execute("SELECT 1 FROM nothing")

@wrong.work
def divide(db):
    db.execute("SELECT 1 / 0")
"""


@pytest.fixture
def services(ferryman: Launcher) -> Launcher:
    (ferryman.folder / "shop.py").write_text(SERVICE)
    return ferryman


def health(launched: Launched) -> str:
    """Return the URL of the health endpoint, which the log names."""
    events = [json.loads(line) for line in launched.stderr.splitlines() if line.startswith("{")]
    return next((str(event["health"]) for event in events if event["event"] == "started"), "")


def test_sigterm_drains_and_exits_0(services: Launcher) -> None:
    running = services.start("run", "shop:steady", real=True)
    running.until(lambda: health(running), "start")
    running.send(signal.SIGTERM)
    assert running.wait() == 0
    assert (services.folder / "drained").exists()


def test_a_function_of_the_settings_can_make_the_service(services: Launcher) -> None:
    running = services.start("run", "shop:made")
    running.until(lambda: health(running), "start")
    running.send(signal.SIGINT)
    assert running.wait() == 0


def test_a_running_service_is_alive_and_ready(services: Launcher) -> None:
    running = services.start("run", "shop:steady")
    url = running.until(lambda: health(running), "start")
    for path, said in (("livez", "alive"), ("readyz", "ready"), ("metrics", 'ferryman_ready{service="steady"} 1.0')):
        with urllib.request.urlopen(f"{url}/{path}", timeout=5) as answer:
            assert said in answer.read().decode()


def test_a_service_that_does_not_drain_in_time_is_ended_with_exit_1(services: Launcher) -> None:
    running = services.start("run", "shop:slow", env={"FERRYMAN_SERVICE__DRAIN_SECONDS": "0.2"})
    running.until(lambda: health(running), "start")
    running.send(signal.SIGTERM)
    assert running.wait(10) == 1
    assert "not drained within the deadline" in running.stderr


def test_a_second_signal_stops_at_once_with_130(services: Launcher) -> None:
    running = services.start("run", "shop:slow")
    running.until(lambda: health(running), "start")
    running.send(signal.SIGTERM)
    running.until(lambda: "draining" in running.stderr, "draining")
    running.send(signal.SIGTERM)
    assert running.wait(5) == 130


def test_a_service_that_fails_ends_the_process_with_its_exit_code(services: Launcher) -> None:
    running = services.start("run", "shop:steady", "shop:broken")
    assert running.wait(10) == 4
    assert "ferryman: the moon does not answer. Remedy: wait for the night" in running.stderr
    assert (services.folder / "drained").exists()


def test_a_kill_leaves_nothing_that_disturbs_the_next_start(services: Launcher) -> None:
    first = services.start("run", "shop:steady")
    port = first.until(lambda: health(first), "start").rpartition(":")[2]
    first.kill()
    second = services.start("run", "shop:steady", env={"FERRYMAN_HEALTH__PORT": port})
    assert second.until(lambda: health(second), "start").endswith(port)


def test_a_described_outbox_is_run_by_its_name(
    ferryman: Launcher, ferryman_database_url: str, ferryman_db: Connection
) -> None:
    hooks = HookTable(ferryman_database_url, ferryman_db)
    env = {
        "FERRYMAN_DATABASE_URL": ferryman_database_url,
        "FERRYMAN_OUTBOX": json.dumps({"hooks": hooks.description}),
        "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]',
    }
    with Receiver() as receiver:
        hooks.write(receiver.url)
        running = ferryman.start("run", "hooks", env=env)
        running.until(lambda: hooks.rows()[0][0] == "SENT", "delivery")
        running.send(signal.SIGTERM)
        assert running.wait() == 0
    assert ferryman.run("run", "hoks", env=env).wait() == 2


def test_a_chore_works_in_portions_and_goes_on_after_a_lost_session(
    ferryman: Launcher, ferryman_db: Connection, ferryman_database_url: str
) -> None:
    """N11: a portion follows at once if there is more; else the work rests."""
    (ferryman.folder / "chores.py").write_text(CHORES)
    ferryman_db.execute("CREATE TABLE often (n int); CREATE TABLE seldom AS SELECT generate_series(1, 25) n")
    running = ferryman.start(
        "run", "chores:often", "chores:seldom", env={"FERRYMAN_DATABASE_URL": ferryman_database_url}
    )
    running.until(lambda: ferryman_db.execute("SELECT FROM seldom").rowcount == 0, "three portions")
    lost = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ferryman often'"
    running.until(lambda: ferryman_db.execute(lost).rowcount == 1, "session")
    ferryman_db.execute("INSERT INTO often VALUES (1); INSERT INTO seldom VALUES (1)")
    running.until(lambda: ferryman_db.execute("SELECT FROM often").rowcount == 0, "work after the lost session")
    assert ferryman_db.execute("SELECT FROM seldom").rowcount == 1
    running.send(signal.SIGTERM)
    assert running.wait() == 0, running.transcript()


def test_chore_that_misses_a_table_is_tried_again_and_names_its_line(
    ferryman: Launcher, ferryman_db: Connection, ferryman_database_url: str
) -> None:
    (ferryman.folder / "chores.py").write_text(CHORES)
    running = ferryman.start("run", "chores:missing", env={"FERRYMAN_DATABASE_URL": ferryman_database_url})
    running.until(lambda: "interrupted" in running.stderr, "an attempt")
    assert "UndefinedTable" in running.stderr
    assert "chores.py:18 look" in running.stderr
    assert "ferryman migrate" not in running.stderr
    ferryman_db.execute("CREATE TABLE nothing ()")
    url = health(running)

    def ready() -> bool:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            return 'ferryman_ready{service="missing"} 1.0' in answer.read().decode()

    running.until(ready, "readiness")
    running.send(signal.SIGTERM)
    assert running.wait() == 0


def test_bug_in_a_chore_ends_its_process_and_names_its_line(ferryman: Launcher, ferryman_database_url: str) -> None:
    (ferryman.folder / "chores.py").write_text(CHORES)
    running = ferryman.start("run", "chores:wrong", env={"FERRYMAN_DATABASE_URL": ferryman_database_url})
    assert running.wait() == 1
    assert "chores.py:22 divide" in running.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("beside", "left"),
    [
        ((), ["memos", "notifier", "hooks"]),
        (("memos",), ["notifier", "hooks"]),
        (("shop:courier",), ["memos", "notifier"]),
    ],
)
def test_relay_names_the_outboxes_that_it_leaves_to_other_processes(
    ferryman: Launcher, beside: tuple[str, ...], left: list[str]
) -> None:
    """Else rows that leave by HTTP or as mails would wait, and nothing would say for whom."""
    (ferryman.folder / "shop.py").write_text("from ferryman import Courier\ncourier = Courier('own', outbox='hooks')\n")
    environment = {
        "FERRYMAN_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing",
        "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "FERRYMAN_EMAIL__PROVIDER": "file",
        "FERRYMAN_EMAIL__PATH": "mails",
        "FERRYMAN_EMAIL__SENDER": "memos@example.com",
        "FERRYMAN_OUTBOX": json.dumps({
            "hooks": {"table": "shop.hooks", "channel": "http", "unsigned": True, "lease": {"seconds": 65}},
            "events": {"table": "shop.events", "topic": "events", "type": "happened"},
        }),
    }  # fmt: skip
    relay = ferryman.start("run", "relay", *beside, env=environment)
    relay.until(lambda: "left to other processes" in relay.stderr, "the line")
    said = [json.loads(line) for line in relay.stderr.splitlines() if "left to other processes" in line]
    assert [(each["outboxes"], each["command"]) for each in said] == [(left, f"ferryman run {' '.join(left)}")]
    relay.kill()
    relay.wait()
