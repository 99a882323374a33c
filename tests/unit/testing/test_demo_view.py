"""The view of the payments demo."""

import io

from rich.console import Console

from ferryman.demo.payment_flow import DemoState
from ferryman.demo.view import picture, viewer


def state(seconds: float = 12.0) -> DemoState:
    return DemoState(
        seconds, "the wallet is killed", 1_200, 1_000, 150, 50, {"relay": True, "wallet": False},
        {"relay": 2, "wallet": 1}, ["kill -9 of the relay", "kill -9 of the wallet"],
    )  # fmt: skip


def shown(*states: DemoState, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
    with viewer(console) as show:
        for each in states:
            show(each)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_picture_shows_payments_processes_and_kills() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(picture(state()))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    for each in ("1,200", "1,000", "150", "50", "running", "killed 2 times", "the wallet is killed", "12 s",
                 "kill -9 of the relay"):  # fmt: skip
        assert each in said


def test_terminal_gets_a_picture_and_a_pipe_gets_lines() -> None:
    assert "Payments" in shown(state(), terminal=True)
    lines = shown(state(1.0), state(1.5), state(4.0), terminal=False).splitlines()
    assert [each.split()[0] for each in lines] == ["1.0", "4.0"]
    assert "1,200 requested, 1,000 succeeded, 150 failed, 50 pending; the wallet is killed" in lines[0]
