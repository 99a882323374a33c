"""`ferryman outbox stats`"""

from typing import Any

import click

from ferryman.cli.options import source_option
from ferryman.cli.outbox_options import open_desk
from ferryman.cli.output import json_option, print_json, print_table
from ferryman.relay.operator.standing import gather
from ferryman.runtime.times import moment, span


@click.command("stats", short_help="How much waits, for how long, and what holds it up.")
@source_option
@json_option
@click.pass_context
def command(context: click.Context, source: str | None, as_json: bool) -> None:
    """Say how much waits in the outbox, for how long, and what holds it up.

    \b
      ferryman outbox stats
      ferryman outbox stats --json | jq .oldest_age_seconds

    Per topic: how many are pending (not read by the relay yet), retrying (or published once more by a replay), parked
    (waiting behind another, or for their topic) and failed; and the age of the oldest that is still to be published.
    Then what is paused, topics that Kafka refuses, replays that are not done, the segments of the journal, and the
    lanes with the time since each moved.
    """
    with open_desk(context, source) as desk:
        found = gather(desk)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    if found["topics"]:
        total = {"topic": "all", **found}
        print_table(
            ("topic", "pending", "oldest", "retrying", "parked", "failed"),
            [_topic(each) for each in (*found["topics"], *([total] if len(found["topics"]) > 1 else []))],
        )
    else:
        click.echo("nothing waits: all that was appended is published")
    for each in found["paused"]:
        what = f"topic {each['topic']}" if each["topic"] else "the whole outbox"
        said = f"since {moment(each['since'])} by {each['who']}: {each['reason']}"
        click.echo(f"paused: {what}, {said} (ferryman resume {each['name']})")
    for each in found["parked_topics"]:
        click.echo(f"parked: topic {each['topic']}, since {moment(each['since'])}: {each['reason']}")
    for each in found["replays"]:
        click.echo(_replay(each))
    print_table(
        ("segment", "rows, about", "bytes", ""),
        [
            (each["name"], f"{each['rows_estimate']:,}", f"{each['bytes']:,}", "current" if each["current"] else "")
            for each in found["segments"]
        ],
    )
    print_table(
        ("lane", "read up to", "moved", ""),
        [
            (str(each["lane"]), str(each["position_at"]), f"{span(each['window_age_seconds'])} ago",
             "in a step" if each["in_step"] else "")
            for each in found["lanes"]
        ],
    )  # fmt: skip


def _topic(each: dict[str, Any]) -> tuple[str, ...]:
    age = each["oldest_age_seconds"]
    counts = {name: f"{each[name]:,}" for name in ("pending", "retrying", "parked", "failed")}
    oldest = span(age) if age is not None else "-"
    return each["topic"], counts["pending"], oldest, counts["retrying"], counts["parked"], counts["failed"]


def _replay(each: dict[str, Any]) -> str:
    said = f"replay {each['id']} by {each['who']} ({each['reason']}): {each['entries']:,} queued"
    if each["waiting"]:
        said += f", {each['waiting']:,} of them not published yet"
    if each["finished_at"] is None:
        said += f"; not all is queued: ferryman outbox replay --resume {each['id']}"
    return said
