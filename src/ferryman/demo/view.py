"""What a person sees of the demo: a picture that moves on a terminal, a line now and then elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ferryman.demo.scene import Moment

_LINE_SECONDS = 2.0


@contextmanager
def viewer(console: Console) -> Iterator[Callable[[Moment], None]]:
    """What shows each moment."""
    if not console.is_terminal:
        yield _Lines(console).show
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield lambda moment: live.update(picture(moment))


def picture(moment: Moment) -> Panel:
    """Payments, processes, and what happened to them."""
    processes = Table.grid(padding=(0, 2))
    for name, alive in moment.alive.items():
        state = Text("● running", "green") if alive else Text("✗ killed", "bold red")
        killed = moment.killed[name]
        processes.add_row(Text(name, "bold"), state, Text(f"killed {killed} times" if killed else "", "dim"))
    money = Table.grid(padding=(0, 2))
    for word, many, style in (
        ("requested", moment.sent, "bold"), ("succeeded", moment.succeeded, "green"),
        ("failed", moment.failed, "yellow"), ("on their way", moment.pending, "cyan"),
    ):  # fmt: skip
        money.add_row(Text(word, style), Text(f"{many:>9,}", style))
    over = ProgressBar(total=max(1, moment.sent), completed=moment.succeeded + moment.failed, width=60)
    both = Table.grid(padding=(0, 6))
    both.add_row(money, processes)
    happened = Text("\n".join(moment.happened), "dim")
    return Panel(Group(both, Text(), over, Text(), Text(moment.act, "bold"), happened),
                 title="ChancePay", subtitle=f"{moment.seconds:.0f} s", width=80)  # fmt: skip


class _Lines:
    """For a pipe or a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._happened = 0

    def show(self, moment: Moment) -> None:
        if moment.seconds < self._next:
            return
        self._next = moment.seconds + _LINE_SECONDS
        self._console.print(
            f"{moment.seconds:5.1f} s  {moment.sent:,} requested, {moment.succeeded:,} succeeded, "
            f"{moment.failed:,} failed, {moment.pending:,} on their way; {moment.act}",
            highlight=False,
            soft_wrap=True,
        )
