"""How commands print: for people a table or a line, with --json for machines; progress only on a terminal."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, default=str))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they need to be; nothing is cut in a pipe."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*headings, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text.from_ansi(cell) for cell in row))
    on_terminal = sys.stdout.isatty()
    Console(width=None if on_terminal else 1000, highlight=False).print(table)


def say(line: str) -> None:
    """A line of progress: for people, so on standard error."""
    click.echo(line, err=True)
