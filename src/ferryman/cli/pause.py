"""`ferryman pause`"""

import click

from ferryman.cli.outbox_options import act_of, open_desk, source_option, who_option
from ferryman.cli.output import json_option, print_json
from ferryman.relay.operator import pausing
from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.story import moment
from ferryman.relay.store import standing

_WHOLE = ("outbox", "relay")


@click.command("pause")
@click.argument("name")
@click.option("--topic", "is_topic", is_flag=True, help="NAME is a topic, whatever it is called.")
@click.option("--reason", help="Why: shown wherever the pause is, and kept in the audit.")
@who_option
@source_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    *,
    name: str,
    is_topic: bool,
    reason: str | None,
    who: str | None,
    source: str | None,
    as_json: bool,
) -> None:
    """Stop publishing a topic, or the whole outbox, until `ferryman resume`.

    \b
      ferryman pause orders --reason 'the topic is being moved'
      ferryman pause outbox --reason 'Kafka is being upgraded'

    NAME is `outbox` for all of it, else a topic. Writers append as before, and what they append waits in its order.
    Every relay minds it from its next turn on, within a second; it is kept in the database, so that restarts change
    nothing. Pausing what is paused changes nothing.
    """
    act = act_of(who, reason, needed=False)
    with open_desk(context, source) as desk:
        changed = pausing.pause(desk, topic_of(name, is_topic=is_topic), act)
        print_paused(desk, changed, f"{name} is paused", f"{name} was paused before", as_json=as_json)


def topic_of(name: str, *, is_topic: bool) -> str:
    """As the table has it."""
    if name in _WHOLE and not is_topic:
        return pausing.EVERYTHING
    pausing.check(name)
    return name


def print_paused(desk: Desk, changed: bool, did: str, was: str, *, as_json: bool) -> None:
    """What was done, and what is paused now."""
    with desk.acting() as connection:
        paused = standing.paused(connection)
    if as_json:
        print_json({"changed": changed, "paused": [{**each, "since": each["since"].isoformat()} for each in paused]})
        return
    click.echo(did if changed else was)
    for each in paused:
        what = f"topic {each['topic']}" if each["topic"] else "the whole outbox"
        click.echo(f"paused: {what}, since {moment(each['since'])} by {each['who']}: {each['reason']}")
    if not paused:
        click.echo("nothing is paused")
