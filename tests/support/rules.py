"""The rules of all tests: a test over a minute needs a marker, and the seconds of each tier are printed."""

import os
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from ferryman.testing import java, kafka
from ferryman.testing.parts import NotHere
from support.launch import Launcher

SLOW_SECONDS = 60  # six times what a test may take here: a slow or busy machine must not fail the build
TIERS = ("unit", "architecture", "contract", "integration", "acceptance")
_LAUNCHERS = pytest.StashKey[list[Launcher]]()

# A machine may be slow because of others: the duration of one example says nothing.
settings.register_profile("ferryman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ferryman")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="The seed of randomised proofs.")
    parser.addini("slow_seconds", "A test that takes longer needs the marker slow.", default=str(SLOW_SECONDS))


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')}"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if serial := item.get_closest_marker("serial"):
            item.add_marker(pytest.mark.xdist_group(*serial.args or ["serial"]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of a real broker if this machine cannot have one, unless a real one is required."""
    if item.get_closest_marker("real_kafka") and not os.environ.get(kafka.REQUIRE_REAL) and (why := _no_real_kafka()):
        pytest.skip(why)


@cache
def _no_real_kafka() -> str:
    """Return why this machine has no real broker, or an empty string."""
    if os.environ.get("FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"):
        return ""
    try:
        java.find(kafka.OLDEST_JAVA)
        java.artifacts("kafka")
    except NotHere as why:
        return str(why)
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    too_slow = call.when == "call" and call.duration > float(item.config.getini("slow_seconds"))
    if too_slow and report.passed and not (item.get_closest_marker("slow") or item.get_closest_marker("prove")):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} took {call.duration:.1f} s: make it faster, or mark it slow and say why"
    if report.failed:
        for launcher in item.stash.get(_LAUNCHERS, []):
            for launched in launcher.launched:
                report.sections.append((f"{launched}", launched.transcript()))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    seconds: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tier = next((name for name in TIERS if f"tests/{name}/" in report.nodeid), "other")
                seconds[tier] += report.duration
                count[tier] += report.when == "call"
    if seconds:
        terminalreporter.section("seconds per tier")
        for tier in (*TIERS, "other"):
            if tier in seconds:
                terminalreporter.line(f"{tier:<14} {seconds[tier]:7.1f} s in {count[tier]} tests")
    terminalreporter.line(f"the seed was {config.getoption('--seed')}: repeat this run with `--seed`")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Give the seed of a randomised proof. It is printed so that `--seed N` can repeat a failure."""
    number = int(request.config.getoption("--seed"))
    print(f"seed {number}")
    return number


@pytest.fixture
def ferryman(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    """Give the command line in a folder of its own. A failing test shows the output of each process."""
    launcher = Launcher(tmp_path, {"FERRYMAN_HEALTH__PORT": "0"})
    request.node.stash.setdefault(_LAUNCHERS, []).append(launcher)
    yield launcher
    launcher.close()
