"""`ferryman resume`"""

import click

from ferryman.cli.options import act_of, source_option, who_option
from ferryman.cli.outbox_options import open_desk
from ferryman.cli.output import json_option
from ferryman.cli.pause import check, naming, print_paused, topic_of
from ferryman.consumer.operator import pausing as consumers
from ferryman.relay.operator import pausing


@click.command("resume")
@naming
@click.option("--reason", help="Why, for the audit.")
@who_option
@source_option
@json_option
@click.pass_context
def command(
    context: click.Context, *, name: str, is_topic: bool, is_consumer: bool, reason: str | None, who: str | None,
    source: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Let a topic, the whole outbox or a consumer go on after `ferryman pause`.

    \b
      ferryman resume orders
      ferryman resume outbox --reason 'Kafka 4.1 is up'
      ferryman resume wallet --consumer

    NAME is `outbox` for all of it, else a topic; with --consumer, a consumer. What waited is published, or handled, in
    its order. A topic that was paused by itself stays paused when the whole outbox goes on. Resuming what is not
    paused changes nothing.
    """
    act = act_of(who, reason, needed=False)
    with open_desk(context, source) as desk:
        check(desk, name, is_topic=is_topic, is_consumer=is_consumer)
        if is_consumer:
            changed = consumers.resume(desk, name, act)
        else:
            changed = pausing.resume(desk, topic_of(name, is_topic=is_topic), act)
        print_paused(desk, changed, f"{name} goes on", f"{name} was not paused", as_json=as_json)
