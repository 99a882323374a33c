"""`ferryman trace`"""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ferryman.cli import wiring
from ferryman.cli.options import ENTRY_REFERENCE, MESSAGE_REFERENCE
from ferryman.cli.output import json_option, print_json, say, with_iso_times
from ferryman.evidence.casefile import tracers_of
from ferryman.evidence.journey import KAFKA, Event
from ferryman.evidence.saga_case import SagaTracer
from ferryman.evidence.sides import named_in, open_sides
from ferryman.evidence.trace import Place, Subject, asking, trace, unasked
from ferryman.evidence.way import Traced
from ferryman.relay.admin.entry_story import attempts, times
from ferryman.runtime.errors import Exit, Misconfigured
from ferryman.runtime.times import span
from ferryman.services import systems

_COLOURS = ("cyan", "magenta", "green", "blue")
_OF_STATUS = {"SUCCEEDED": "bold green", "HANDLED": "bold green", "FAILED": "bold red", "STUCK": "bold red"}


class _AnyReference(click.ParamType[Any]):
    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        subject, colon, key = value.partition(":") if isinstance(value, str) else (value, "", "")
        if colon:
            number = key.isascii() and key.isdigit() and int(key) < 2**63
            return Subject(subject, int(key) if number else click.UUID.convert(key, param, ctx))
        kind = MESSAGE_REFERENCE if isinstance(value, str) and "/" in value else ENTRY_REFERENCE
        return kind.convert(value, param, ctx)


@click.command("trace")
@click.argument("reference", type=_AnyReference(), metavar="ID")
@click.option("--saga", "sagas", multiple=True, metavar="SAGA", help="A saga of yours, as module:object.")
@click.option("--no-kafka", is_flag=True, help="Ask the databases alone.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    *,
    reference: UUID | int | Place | Subject,
    sagas: Sequence[str],
    no_kafka: bool,
    as_json: bool,
) -> int:
    """Tell one story across all databases and Kafka: what happened, where it is now, why, and what to run next.

    \b
      ferryman trace 9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10
      ferryman trace 9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10 --json --no-kafka
      ferryman trace orders/2/4711
      ferryman trace 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11 --saga shop.orders:orders
      ferryman trace event:7              of webhooks; also delivery:12, job:30, or a saga of yours, as orders:12

    ID is the id of a message, of a payment or of another saga, of a row that leaves by a channel or of what that is
    about (a memo); or a position in an outbox, or TOPIC/PARTITION/OFFSET. A message is followed from its entry to the
    receipts of its consumers, and on to what they reported. A payment, and a saga of the setting `sagas` or of --saga,
    is told by its own id and by the id of each of its messages. A number is a position first; with --saga it is the key
    of a saga first. Receipts and payments are found at once, however much is retained; a message that only stands in an
    outbox is looked for among the newest entries first, for 10 seconds. The databases are those of database_url, of
    [relay.sources] and of the services (payments.wallet_database_url). If one of them or Kafka does not answer, the
    rest is told, what is missing is said, and the exit code is 5; it is 1 if
    nobody knows ID.
    """
    settings, known = wiring.settings(context), systems()
    databases = named_in(settings, {name: each for system in known for name, each in system.databases.items()})
    tracers, unknown = tracers_of(known), list[str]()
    for called in dict.fromkeys([*sagas, *settings.sagas]):
        try:
            tracers.append(SagaTracer(wiring.saga(called, settings), called))
        except Misconfigured as error:
            if called in sagas:
                raise
            unknown.append(f"{called} of the setting `sagas`: {error}")
    with open_sides(settings, databases, "trace", wiring.loaded(context).origins, partly=True) as sides:
        sides.missing.extend(unknown)
        ask = asking(sides) if settings.kafka.bootstrap_servers and not no_kafka else unasked
        told = trace(sides, reference, tracers, ask=ask, is_key=bool(sagas))
    if as_json:
        print_json(as_dict(told))
    else:
        print_story(told)
        for each in told.missing:
            say(f"not looked at: {each}")
    return Exit.PARTIAL if told.missing else Exit.OK


def as_dict(told: Traced) -> dict[str, Any]:
    ending, known = told.ending, told.facts and with_iso_times(told.facts)
    return {
        "id": str(told.id), told.kind: known, "events": [_event(each) for each in told.events],
        "now": ending.now, "why": ending.why, "next": ending.next, "missing": list(told.missing),
    }  # fmt: skip


def _event(event: Event) -> dict[str, Any]:
    said = {name: getattr(event, name) for name in ("at", "where", "what", "times", "bad")}
    return with_iso_times({**said, **event.detail})


# --- as text: a headline, a line for each event, and how it ends; colours only on a terminal


def print_story(told: Traced) -> None:
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False)
    with console.capture() as said:
        for part in (_headline(told), _timeline(told.events), _ending(told)):
            console.print(part)
    for line in said.get().splitlines():
        click.echo(line.rstrip())


def _headline(told: Traced) -> Text:
    now = told.ending.now
    name, *more = told.headline
    kind, _, identity = name.partition(" ")
    line = Text.assemble((now, _OF_STATUS.get(now, "bold yellow")), f"  {kind} ", (identity, "bold"))
    return line.append("".join(f"\n{each}" for each in more) + "\n")


def _timeline(events: Sequence[Event]) -> Table:
    table = _grid(Column(justify="right", no_wrap=True), Column(no_wrap=True), Column(no_wrap=True))
    begun = next((each.at for each in events if each.at is not None), None)
    places = list(dict.fromkeys(each.where for each in events if each.where != KAFKA))
    for event in events:
        mark = "✗ " if event.bad else ""
        what = Text(f"{mark}{event.what}", "red" if event.bad else _OF_STATUS.get(event.what, ""))
        colour = "yellow" if event.where == KAFKA else _COLOURS[places.index(event.where) % len(_COLOURS)]
        table.add_row(Text(_since(event.at, begun), "dim"), Text(event.where, colour), what, _about(event))
    return table


def _grid(*columns: Column) -> Table:
    """Return a table without lines. Its last column is the one that may be long."""
    return Table.grid(*columns, Column(overflow="fold"), padding=(0, 2, 0, 0))


def _since(at: datetime | None, begun: datetime | None) -> str:
    """Return the time since the first event; a dot if nobody wrote down when it was."""
    if at is None or begun is None:
        return "·"
    seconds = (at - begun).total_seconds()
    if abs(seconds) < 10:
        return f"{seconds * 1000:,.1f} ms"
    return f"{seconds:.2f} s" if abs(seconds) < 60 else span(seconds)


def _about(event: Event) -> Text:
    parts = [part for part in (_message(event), _place(event), _effect(event), _trouble(event)) if part]
    text = Text("  ".join(parts))
    if event.what in ("appended", "reported") and "id" in event.detail:
        text.append(f"  {event.detail['id']}", "dim")
    return text


def _message(event: Event) -> str:
    detail = event.detail
    if event.what == "requested":
        return f"{detail['amount']:,} {detail['currency']}"
    if event.what.endswith("again"):
        answered = f", answered {detail['answered']}" if "answered" in detail else ""
        return f"{times(event.times)}{answered}"
    attempt = f" (attempt {detail['attempt']})" if detail.get("attempt", 1) > 1 else ""
    answers = f" to {detail['answers']}" if "answers" in detail else ""
    by = f" by {detail['consumer']}" if "consumer" in detail else ""
    return f"{detail.get('type', '')}{answers}{by}{attempt}"


def _place(event: Event) -> str:
    detail: Any = event.detail
    if event.where == KAFKA and "topic" in detail:
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
    return str(detail["reason"]) if "outcome" not in detail and "reason" in detail else ""


def _trouble(event: Event) -> str:
    detail = event.detail
    tried = f"after {attempts(detail['attempts'])}:" if "attempts" in detail else ""
    error = detail.get("error")
    code = f"{detail['code']}:" if "code" in detail and error else detail.get("code")
    return " ".join(str(part) for part in (tried, code, error) if part)


def _ending(told: Traced) -> Table:
    ending = told.ending
    nothing = ending.rest or ("nothing is left to do" if told.over else "wait: it goes on by itself")
    table = _grid(Column(no_wrap=True))
    table.add_row("")
    table.add_row(Text("Now", "bold"), Text(ending.now, _OF_STATUS.get(ending.now, "bold yellow")))
    table.add_row(Text("Why", "bold"), Text(ending.why))
    table.add_row(Text("Next", "bold"), Text(ending.next, "bold") if ending.next else Text(nothing))
    return table
