"""What a person sees of the demo."""

import io

from rich.console import Console

from ferryman.demo.scene import Moment
from ferryman.demo.view import picture, viewer


def moment(seconds: float = 12.0) -> Moment:
    return Moment(
        seconds, "the wallet is killed", 1_200, 1_000, 150, 50, {"relay": True, "wallet": False},
        {"relay": 2, "wallet": 1}, ["kill -9 of the relay", "kill -9 of the wallet"],
    )  # fmt: skip


def shown(*moments: Moment, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
    with viewer(console) as show:
        for each in moments:
            show(each)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_has_the_payments_the_processes_and_what_happened() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(picture(moment()))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    for each in ("1,200", "1,000", "150", "50", "running", "killed 2 times", "the wallet is killed", "12 s",
                 "kill -9 of the relay"):  # fmt: skip
        assert each in said


def test_a_terminal_is_shown_a_picture_and_a_pipe_a_line_now_and_then() -> None:
    assert "ChancePay" in shown(moment(), terminal=True)
    lines = shown(moment(1.0), moment(1.5), moment(4.0), terminal=False).splitlines()
    assert [each.split()[0] for each in lines] == ["1.0", "4.0"]
    assert "1,200 requested, 1,000 succeeded, 150 failed, 50 on their way; the wallet is killed" in lines[0]
