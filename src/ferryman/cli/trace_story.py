"""How a payment's story looks: a headline, a line for each event, and how it ends. Colours only on a terminal."""

import sys
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ferryman.evidence.trace.model import Event, Known, Story
from ferryman.relay.operator.story import attempts, times
from ferryman.runtime.times import span

_COLOURS = {"orchestrator": "cyan", "wallet": "magenta", "kafka": "yellow"}
_OF_STATUS = {"SUCCEEDED": "bold green", "FAILED": "bold red", "STUCK": "bold red"}


def print_story(known: Known, story: Story) -> None:
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False)
    with console.capture() as said:
        for part in (_headline(known, story), _timeline(story), _ending(story)):
            console.print(part)
    for line in said.get().splitlines():
        click.echo(line.rstrip())


def _headline(known: Known, story: Story) -> Text:
    now = story.ending.now
    line = Text.assemble((now, _OF_STATUS.get(now, "bold yellow")), "  payment ", (str(known.id), "bold"))
    if payment := known.payment:
        amount = f"{payment.amount:,} {payment.currency}"
        at = payment.created_at.astimezone().isoformat(sep=" ", timespec="milliseconds")
        line.append(f"\n{amount} from wallet {payment.wallet_id}, requested {at}")
        if payment.fulfil:
            line.append(", to be fulfilled")
    line.append("\n")
    return line


def _timeline(story: Story) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    begun = next((each.at for each in story.events if each.at is not None), None)
    for event in story.events:
        mark = "✗ " if event.bad else ""
        what = Text(f"{mark}{event.what}", "red" if event.bad else _OF_STATUS.get(event.what, ""))
        where = Text(event.where, _COLOURS[event.where])
        table.add_row(Text(_since(event.at, begun), "dim"), where, what, _about(event))
    return table


def _since(at: datetime | None, begun: datetime | None) -> str:
    """Of what nobody wrote down the time of, nothing: its place in the story is known."""
    if at is None or begun is None:
        return "·"
    seconds = (at - begun).total_seconds()
    if abs(seconds) < 10:
        return f"{seconds * 1000:,.1f} ms"
    return f"{seconds:.2f} s" if abs(seconds) < 60 else span(seconds)


def _about(event: Event) -> Text:
    detail = event.detail
    parts = [part for part in (_message(event), _place(event), _effect(event), _trouble(event)) if part]
    text = Text("  ".join(parts))
    if event.what in ("appended", "reported") and "id" in detail:
        text.append(f"  {detail['id']}", "dim")
    return text


def _message(event: Event) -> str:
    detail = event.detail
    if event.what == "requested":
        return f"{detail['amount']:,} {detail['currency']}"
    if event.what.endswith("again"):
        answered = f", answered {detail['answered']}" if "answered" in detail else ""
        return f"{times(event.times)}{answered}"
    attempt = detail.get("attempt", 1)
    answers = f" to {detail['answers']}" if "answers" in detail else ""
    return f"{detail.get('type', '')}{answers}{f' (attempt {attempt})' if attempt > 1 else ''}"


def _place(event: Event) -> str:
    detail: Any = event.detail
    if event.where == "kafka" and "topic" in detail:
        return f"→ {detail['topic']}" + (f"/{detail['partition']}/{detail['offset']}" if "offset" in detail else "")
    if event.what in ("appended", "reported"):
        return f"in {detail['table']}" if "table" in detail else f"at position {detail['position']}"
    return ""


def _effect(event: Event) -> str:
    detail = event.detail
    if "moved" in detail:
        moved, currency = detail["moved"], detail["currency"]
        did = f"took {-moved:,} {currency}" if moved < 0 else f"gave back {moved:,} {currency}"
        return f"{did}, {detail['balance']:,} left"
    if detail.get("outcome") == "REFUSED":
        return f"refused: {detail.get('reason')}"
    if "by" in detail:
        return f"by {detail['by']}: {detail['reason']}"
    if "outcome" not in detail and "reason" in detail:
        return str(detail["reason"])
    return ""


def _trouble(event: Event) -> str:
    detail = event.detail
    tried = f"after {attempts(detail['attempts'])}:" if "attempts" in detail else ""
    code = f"{detail['code']}:" if "code" in detail else ""
    return " ".join(str(part) for part in (tried, code, detail.get("error")) if part)


def _ending(story: Story) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    ending = story.ending
    table.add_row("")
    table.add_row(Text("Now", "bold"), Text(ending.now, _OF_STATUS.get(ending.now, "bold yellow")))
    table.add_row(Text("Why", "bold"), Text(ending.why))
    table.add_row(Text("Next", "bold"), Text(ending.next, "bold") if ending.next else Text(_nothing(story)))
    return table


def _nothing(story: Story) -> str:
    return "nothing is left to do" if story.ending.now in ("SUCCEEDED", "FAILED") else "wait: it goes on by itself"
