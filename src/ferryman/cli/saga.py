"""`ferryman saga`: the SQL and the drawing of a saga, and its rows."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import click

from ferryman.cli import options, output, wiring
from ferryman.cli.options import Order
from ferryman.cli.output import CommandResult, answering, nothing_changed
from ferryman.migrations import rights
from ferryman.runtime import postgres
from ferryman.runtime.desk import Row
from ferryman.runtime.errors import Exit
from ferryman.runtime.times import iso, moment
from ferryman.saga import admin, ddl, guards
from ferryman.saga.columns import in_json
from ferryman.saga.declaration import Saga
from ferryman.saga.machine import drawing

_saga_argument = click.argument("name", metavar="SAGA")


@click.group("saga")
def command() -> None:
    """Work with sagas: their tables, their drawings, and the rows that are on their way.

    \b
      ferryman saga sql shop.orders:orders                       the table and its guards, for your migration
      ferryman saga draw shop.orders:orders                      its states and events, as a Mermaid drawing
      ferryman saga list shop.orders:orders --waiting            the sagas that wait for a person
      ferryman saga show shop.orders:orders ID                   how one stands, and what moves it on
      ferryman saga move shop.orders:orders --id ID --to DONE --reason 'the bank confirmed it by letter' --yes

    SAGA is the module:object of a ferryman.Saga, its name if the setting `sagas` has it, `payments` or `webhooks`.
    `ferryman run SAGA` runs it, and `ferryman trace ID --saga SAGA` tells the story of one.
    """


@command.command("sql", short_help="The table and its guards, or what a live table lacks.")
@_saga_argument
@click.option("--new", is_flag=True, help="Ask no database: print the whole table.")
@options.source_option
@click.pass_context
def sql(context: click.Context, name: str, new: bool, source: str | None) -> int:
    """Print the SQL of a saga's table, or what makes the live table fit its declaration.

    \b
      ferryman saga sql shop.orders:orders --new > migrations/0007_orders.sql
      ferryman saga sql shop.orders:orders

    With --new the whole table: its columns follow from the row, its guards from the states. Without, the table in
    the database is compared: the SQL that is printed is the difference, for your next migration; nothing, and exit 0,
    if it fits; else exit 1. `ferryman run` refuses a table that does not fit.
    """
    saga = wiring.saga(name, wiring.settings(context))
    if new:
        click.echo(ddl.table(saga))
        return Exit.OK
    with options.open_desk(context, source, "saga") as desk, desk.acting() as db:
        lacking = guards.lacking(db, saga.machine)
        if lacking and not guards.exists(db, saga.machine):
            click.echo(ddl.table(saga))
            return Exit.FAILURE
    for why, statement in lacking:
        click.echo(f"-- {why}\n{statement}")
    if not lacking:
        output.say(f"{saga.table} fits the saga {saga.name}")
    return Exit.FAILURE if lacking else Exit.OK


@command.command("draw", short_help="The states and the events, as a drawing.")
@_saga_argument
@click.pass_context
def draw(context: click.Context, name: str) -> int:
    """Print the states of a saga with the events that lead from one to another, as Mermaid in Markdown.

    \b
      ferryman saga draw shop.orders:orders > docs/orders.md
    """
    click.echo(drawing(wiring.saga(name, wiring.settings(context)).machine))
    return Exit.OK


def _reading(command: Callable[..., CommandResult]) -> Callable[..., int]:
    """Return a command that reads the rows of the saga that it is given by name."""

    @_saga_argument
    @options.source_option
    @answering
    @click.pass_context
    @wraps(command)
    def run(context: click.Context, /, *, name: str, source: str | None, **asked: Any) -> CommandResult:
        saga = wiring.saga(name, wiring.settings(context))
        with options.open_desk(context, source, "saga") as desk:
            return command(desk, saga, **asked)

    return run


@command.command("list", short_help="The sagas that are on their way.")
@click.option("--state", metavar="STATE", help="Only sagas in this state.")
@click.option("--waiting", is_flag=True, help="Only sagas that wait for a person.")
@click.option("--all", "over", is_flag=True, help="Also sagas that are over.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@click.option("--after", metavar="KEY", help="Behind this key: the next page.")
@_reading
def list_(
    desk: Any, saga: Saga[Any], *, state: str | None, waiting: bool, over: bool, limit: int, after: str | None
) -> CommandResult:
    """List sagas in the order of their keys.

    \b
      ferryman saga list shop.orders:orders --waiting
      ferryman saga list shop.orders:orders --state CHARGING --json
    """
    found = admin.listed(desk, saga, state=state, waiting=waiting, over=over, after=after, most=limit + 1)
    page, key = found[:limit], saga.fields[0]
    following = str(page[-1][key]) if len(found) > limit else None
    data = {"saga": saga.name, "sagas": [admin.as_json(each) for each in page], "next": following}
    more = f"there are more: --after {following}" if following else None
    return CommandResult(data, _listed_lines(page, key), more=more)


def _listed_lines(page: list[Row], key: str) -> Iterator[str]:
    if not page:
        yield "no sagas"
        return
    yield output.table(
        ("key", "state", "attempt", "reason", "due", "changed"),
        [
            (str(each[key]), each["state"], str(each["attempt"]), each["reason"] or "", _due(each["due_at"]),
             moment(each["changed_at"]))
            for each in page
        ],
    )  # fmt: skip


@command.command("show", short_help="How a saga stands, and what moves it on.")
@_reading
@click.argument("key", metavar="KEY")
def show(desk: Any, saga: Saga[Any], *, key: str) -> CommandResult:
    """Show a saga: its row, what its state means, what it waits for, and the results that moved nothing.

    \b
      ferryman saga show shop.orders:orders 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11
    """
    found = admin.story(desk, saga, admin.key_of(saga, key))
    state = found.row["state"]
    data = {
        "saga": saga.name, "row": admin.as_json(found.row), "meaning": saga.states[state].text,
        "is_over": state in saga.machine.terminals,
        "waits_for": [{"event": event, "to": to} for event, to in found.waits_for],
        "ways_by_hand": [*saga.ways_by_hand(state)],
        "strays": [admin.as_json(each) for each in found.strays],
    }  # fmt: skip
    return CommandResult(data, _story_lines(saga, found))


def _story_lines(saga: Saga[Any], found: admin.SagaStory) -> Iterator[str]:
    row, state = found.row, found.row["state"]
    yield f"{state}  {saga.name} {row[saga.fields[0]]}"
    yield saga.states[state].text
    for name in saga.fields[1:]:
        if name not in ("state", "reason") and row[name] is not None:
            yield f"  {name}: {output.shortened(str(in_json(row[name])))}"
    if row["reason"]:
        yield f"  reason: {row['reason']}"
    yield from (f"{event} leads to {to}" for event, to in found.waits_for)
    if state in saga.machine.terminals:
        yield f"it is over since {moment(row['changed_at'])}"
    else:
        due = _due(found.due_at)
        waits = "it waits for a person" if due == _PERSON else f"it is looked at {due}"
        ways = f"`ferryman saga move` leads to {', '.join(saga.ways_by_hand(state))}"
        yield f"{waits}: {saga.instead_of_move or ways}"
    yield from (
        f"{each['type']} {each['message_id']} moved nothing at {moment(each['came_at'])}: {each['why']}"
        for each in found.strays
    )


@command.command("move", short_help="Move a saga by hand.")
@_saga_argument
@click.option("--id", "key", required=True, metavar="KEY", help="The saga, by its key.")
@click.option("--to", metavar="STATE", help="Where it goes. Without, the command of its state is sent once more.")
@options.act_options
def move(order: Order, *, name: str, key: str, to: str | None) -> CommandResult:
    """Move a saga that waits, or send its command once more.

    \b
      ferryman saga move shop.orders:orders --id ID --to RELEASING                      what it would do
      ferryman saga move shop.orders:orders --id ID --to RELEASING --yes --reason 'the bank is out of business'
      ferryman saga move shop.orders:orders --id ID --yes --reason 'the store is up again'

    Without --yes nothing is changed. A saga goes only where its declaration leads from its state: a way for persons
    alone is declared by State(..., to=(...)). It asks for what the new state says, in the same transaction, and the
    audit keeps who moved it and why. What is over stays as it is. A saga may forbid it (`instead_of_move`), and says
    what to do instead.
    """
    saga = wiring.saga(name, wiring.settings(order.context))
    with order.desk("by hand") as desk:
        rights.check_name(desk.connection, "machine", saga.name)
        wanted = admin.key_of(saga, key)
        before = admin.story(desk, saga, wanted).row
        go = admin.check_move(saga, before, to)
        does = f"to {go.state}" if to else f"to ask for {_asked(saga, go.state)} again"
        data = {"dry_run": not order.yes, "saga": saga.name, "key": key, "from": before["state"], "to": go.state}
        if not order.yes:
            return CommandResult(data, [f"would move {key} from {before['state']} {does}", nothing_changed(1)])
        with postgres.translated():
            row = admin.move(desk, saga, wanted, go, order.act, before=before["state"])
    return CommandResult({**data, "row": admin.as_json(row)}, [f"{key} moved from {before['state']} {does}"])


_PERSON = "by nobody"


def _asked(saga: Saga[Any], state: str) -> str:
    ask = saga.states[state].ask
    return ask if isinstance(ask, str) else "its command"


def _due(at: Any) -> str:
    if at is None:
        return "never"
    return _PERSON if iso(at) == "infinity" else moment(at)
