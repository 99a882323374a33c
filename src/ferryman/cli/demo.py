"""`ferryman demo`"""

import click

from ferryman.cli import demo_crossing, demo_payments
from ferryman.cli.output import json_option

_DEMOS = {"crossing": demo_crossing.play, "payments": demo_payments.play}


@click.command("demo")
@click.argument("name", type=click.Choice(list(_DEMOS)), default="crossing")
@json_option
def command(name: str, as_json: bool) -> int:
    """Bring up PostgreSQL and Kafka on this machine, see it work, and clean up.

    \b
      ferryman demo              messages cross: what was committed must be in the topic once, in order
      ferryman demo payments     ChancePay with two databases: payments flow, one process after another is killed with
                                 -9 and comes back, and an audit proves that no money was lost or taken twice

    It touches no server of yours: what it starts is its own and goes away. Exit 0 when all was well.
    """
    return _DEMOS[name](as_json=as_json)
