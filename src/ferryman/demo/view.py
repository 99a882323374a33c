"""The view of the payments demo: a live picture on a terminal, a line now and then in a pipe or a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ferryman.demo.payment_flow import DemoState

_LINE_SECONDS = 2.0


@contextmanager
def viewer(console: Console) -> Iterator[Callable[[DemoState], None]]:
    """Give the function that shows each state."""
    if not console.is_terminal:
        yield _Lines(console).show
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield lambda state: live.update(picture(state))


def picture(state: DemoState) -> Panel:
    """Return the picture of the payments, the processes, and the last kills."""
    processes = Table.grid(padding=(0, 2))
    for name, alive in state.alive.items():
        running = Text("● running", "green") if alive else Text("✗ killed", "bold red")
        killed = state.killed[name]
        processes.add_row(Text(name, "bold"), running, Text(f"killed {killed} times" if killed else "", "dim"))
    money = Table.grid(padding=(0, 2))
    for word, many, style in (
        ("requested", state.sent, "bold"), ("succeeded", state.succeeded, "green"),
        ("failed", state.failed, "yellow"), ("pending", state.pending, "cyan"),
    ):  # fmt: skip
        money.add_row(Text(word, style), Text(f"{many:>9,}", style))
    over = ProgressBar(total=max(1, state.sent), completed=state.succeeded + state.failed, width=60)
    both = Table.grid(padding=(0, 6))
    both.add_row(money, processes)
    happened = Text("\n".join(state.happened), "dim")
    return Panel(Group(both, Text(), over, Text(), Text(state.act, "bold"), happened),
                 title="Payments", subtitle=f"{state.seconds:.0f} s", width=80)  # fmt: skip


class _Lines:
    """A view that prints a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def show(self, state: DemoState) -> None:
        if state.seconds < self._next:
            return
        self._next = state.seconds + _LINE_SECONDS
        self._console.print(
            f"{state.seconds:5.1f} s  {state.sent:,} requested, {state.succeeded:,} succeeded, "
            f"{state.failed:,} failed, {state.pending:,} pending; {state.act}",
            highlight=False,
            soft_wrap=True,
        )
