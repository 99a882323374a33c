"""`ferryman resume`"""

import click

from ferryman.cli.outbox_options import act_of, open_desk, source_option, who_option
from ferryman.cli.output import json_option
from ferryman.cli.pause import print_paused, topic_of
from ferryman.relay.operator import pausing


@click.command("resume")
@click.argument("name")
@click.option("--topic", "is_topic", is_flag=True, help="NAME is a topic, whatever it is called.")
@click.option("--reason", help="Why, for the audit.")
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
    """Publish a topic, or the whole outbox, again after `ferryman pause`.

    \b
      ferryman resume orders
      ferryman resume outbox --reason 'Kafka 4.1 is up'

    NAME is `outbox` for all of it, else a topic. What waited is published in its order. A topic that was paused by
    itself stays paused when the whole outbox goes on. Resuming what is not paused changes nothing.
    """
    act = act_of(who, reason, needed=False)
    with open_desk(context, source) as desk:
        changed = pausing.resume(desk, topic_of(name, is_topic=is_topic), act)
        print_paused(desk, changed, f"{name} goes on", f"{name} was not paused", as_json=as_json)
