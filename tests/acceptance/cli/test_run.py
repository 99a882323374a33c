"""`ferryman run`: a user's service runs, drains on SIGTERM, and ends at once on a second signal (N16)."""

import json
import signal
import urllib.request

import pytest

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
