"""Output of commands: tables and lines for people, JSON for machines, progress on standard error."""

import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ferryman.runtime.errors import Exit
from ferryman.runtime.times import iso, moment

if TYPE_CHECKING:
    from ferryman.runtime.desk import Story

_ID_CHARACTERS = 36
"""The length of a uuid: first cells that are not longer are never folded."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
wheels_option = click.option(
    "--wheels",
    is_flag=True,
    help="Use only what Python packages bring: the PostgreSQL of a wheel and librdkafka's built-in broker, no Java.",
)

systems_option = click.option(
    "--for", "systems", default="", metavar="NAMES", callback=lambda _context, _option, names: names_of(names),
    help="Systems of Ferryman's own, comma-separated, or all. Default: none.",
)  # fmt: skip


def names_of(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, default=str))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text. Nothing is cut, and ids stay whole to be copied.

    A terminal may be narrow: there cells are folded, and columns without content left out.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    cells, narrow = [[Text.from_ansi(cell) for cell in row] for row in rows], sys.stdout.isatty()
    shown = [at for at, _ in enumerate(headings) if not (narrow and cells) or any(row[at].cell_len for row in cells)]
    whole = max((row[0].cell_len for row in cells), default=0) <= _ID_CHARACTERS
    columns = [Column(headings[at], overflow="fold", no_wrap=whole and at == 0) for at in shown]
    made = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for row in cells:
        made.add_row(*(row[at] for at in shown))
    console = Console(width=None if narrow else 1000, highlight=False)
    with console.capture() as printed:
        console.print(made)
    return printed.get().removesuffix("\n")


def tabled(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table as text, which is made when it is asked for: not with --json."""
    yield table(headings, rows)


def say(line: str) -> None:
    """Print a line of progress on standard error."""
    click.echo(line, err=True)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The answer of a command: data for --json, and lines for people."""

    data: Any
    lines: Iterable[str]
    exit_code: Exit = Exit.OK
    more: str | None = None
    """A line more for people, such as the way to the next page; the data says it too."""
    stopped: str | None = None
    """The reason why the answer is not complete."""

    def print(self, *, as_json: bool) -> int:
        """Print the answer, and return the exit code."""
        if as_json:
            print_json(self.data)
        else:
            for line in self.lines:
                click.echo(line)
            if self.more:
                say(self.more)
        if self.stopped:
            say(self.stopped)
        return Exit.PARTIAL if self.stopped else self.exit_code


def answering(command: Callable[..., CommandResult]) -> Callable[..., int]:
    """Return a command that prints its answer: it has --json."""

    @json_option
    @wraps(command)
    def run(*given: Any, as_json: bool, **options: Any) -> int:
        return command(*given, **options).print(as_json=as_json)

    return run


def story_lines(story: "Story") -> Iterator[str]:
    yield click.style(story.reason, bold=True)
    if story.next:
        yield f"next: {story.next}\n"


def named_lines(values: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yield a line for each value that there is, with its name."""
    for name, value in values:
        if value:
            yield f"  {name:<14} {value}"


def paused_line(what: str, pause: Mapping[str, Any]) -> str:
    return f"paused: {what}, since {moment(pause['since'])} by {pause['who']}: {pause['reason']}"


def counted(counts: Mapping[str, int]) -> str:
    """Return the counts in parentheses, to put behind their sum; nothing if there are none."""
    said = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    return f" ({said})" if said else ""


def nothing_changed(selected: int) -> str:
    return "nothing was changed" + (": add --yes and --reason to do it" if selected else "")


def shortened(text: str, most: int = 60) -> str:
    """Return the text in one line, cut off with an ellipsis where it is longer."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def with_iso_times(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: iso(value) if isinstance(value, datetime) else value for name, value in row.items()}


def decoded(raw: bytes | None) -> tuple[str | None, str | None]:
    """Return bytes as text, or as base64 where they are not UTF-8."""
    if raw is None:
        return None, None
    try:
        return raw.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, base64.b64encode(raw).decode()


def readable(raw: bytes | None, mark: str = "") -> str:
    """Return bytes as text, or as base64 with a mark where they are not UTF-8."""
    text, encoded = decoded(raw)
    return text or (f"{encoded}{mark}" if encoded else "")
