"""What all tests live by: seconds per tier are printed, and a test over ten seconds needs a marker that says so."""

import os
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launcher

SLOW_SECONDS = 10
TIERS = ("unit", "architecture", "contract", "integration", "acceptance")
_LAUNCHERS = pytest.StashKey[list[Launcher]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("serial"):
            item.add_marker(pytest.mark.xdist_group("serial"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    too_slow = call.when == "call" and call.duration > SLOW_SECONDS
    if too_slow and report.passed and not (item.get_closest_marker("slow") or item.get_closest_marker("prove")):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} took {call.duration:.1f} s: make it faster, or mark it slow and say why"
    if report.failed:
        for launcher in item.stash.get(_LAUNCHERS, []):
            for launched in launcher.launched:
                report.sections.append((f"{launched}", launched.transcript()))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
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


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of whoever runs the tests."""
    for name in os.environ:
        if name.startswith("FERRYMAN_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)


@pytest.fixture
def ferryman(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    """The command line, in a folder of its own; a failing test shows what each process said."""
    launcher = Launcher(tmp_path, {"FERRYMAN_HEALTH__PORT": "0"})
    request.node.stash.setdefault(_LAUNCHERS, []).append(launcher)
    yield launcher
    launcher.close()
