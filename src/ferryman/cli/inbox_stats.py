"""`ferryman inbox stats`"""

from typing import Any

import click

from ferryman.cli.inbox_options import consumer_option, open_desk
from ferryman.cli.options import source_option
from ferryman.cli.output import json_option, print_json, print_table
from ferryman.consumer.operator.standing import COUNTED, gather
from ferryman.runtime.times import moment, span


@click.command("stats", short_help="Each consumer: verdicts, what waits for a person, its processes.")
@consumer_option
@source_option
@json_option
@click.pass_context
def command(context: click.Context, *, consumer: str | None, source: str | None, as_json: bool) -> None:
    """Say how each consumer stands: its verdicts, what was rejected and waits for a person, and its partitions.

    \b
      ferryman inbox stats
      ferryman inbox stats --consumer wallet --json | jq '.consumers[0].rejected_waiting'

    DONE and REFUSED are of the receipts that are kept: counted up to 20,000, of more about as many as the database's
    statistics say, marked with ~. Everything else is counted. A partition is unclean when its last owner did not let go
    of it, as after kill -9: its next owner marks its batches.
    """
    with open_desk(context, source) as desk:
        found = gather(desk, consumer)
    if as_json:
        print_json({"consumers": found, "counted_up_to": COUNTED})
    else:
        _print(found)


def _print(found: list[dict[str, Any]]) -> None:
    if not found:
        click.echo("no consumer has run on this database")
        return
    print_table(
        ("consumer", "processes", "DONE", "REFUSED", "REJECTED", "RECEIVED", "REOPENED", "waits for a person", "oldest",
         "partitions"),
        [_row(each) for each in found],
    )  # fmt: skip
    for each in found:
        name = each["consumer"]
        for code, count in each["rejected_waiting"]["by_code"].items():
            click.echo(f"rejected: {name}, {count:,} with {code} (ferryman inbox list --consumer {name} --code {code})")
        for place in each["partitions"]["begun_again"]:
            where = f"{place['topic']}/{place['partition']}/{place['offset']}"
            click.echo(f"suspect: {name}, {where} was begun alone {place['starts']} times without an end")
        if pause := each["paused"]:
            said = f"since {moment(pause['since'])} by {pause['who']}: {pause['reason']}"
            click.echo(f"paused: {name}, {said} (ferryman resume {name} --consumer)")


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    verdicts, waiting, partitions = each["verdicts"], each["rejected_waiting"], each["partitions"]
    about = "~" if each["estimated"] else ""
    age = waiting["oldest_age_seconds"]
    said = [f"{partitions[name]} {name}" for name in ("owned", "unclean", "released") if partitions[name]]
    return (
        each["consumer"], str(each["processes"]), f"{about}{verdicts['DONE']:,}", f"{about}{verdicts['REFUSED']:,}",
        *(f"{verdicts[name]:,}" for name in ("REJECTED", "RECEIVED", "REOPENED")), f"{waiting['messages']:,}",
        span(age) if age is not None else "-", ", ".join(said) or "-",
    )  # fmt: skip
