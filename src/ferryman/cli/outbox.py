"""`ferryman outbox`: looks at what is to be published, and acts on it by hand."""

import click

from ferryman.cli import outbox_discard, outbox_list, outbox_rebase, outbox_replay, outbox_show, outbox_stats


@click.group("outbox")
def command() -> None:
    """Look at the outbox, publish entries once more, give entries up.

    \b
      ferryman outbox stats                        how much waits, and what holds it up
      ferryman outbox list --status FAILED         what could not be published
      ferryman outbox show 4711                    why an entry is where it is
      ferryman outbox replay --status FAILED       what a replay would do; --yes does it
      ferryman outbox discard --id 4711 --reason 'test data'

    An entry is PENDING, then PUBLISHED. One that fails is RETRYING, and FAILED when its attempts are used up; what
    waits behind it, or for its topic, is PARKED. REPLAYING is published once more; DISCARDED never is. Payloads are
    never printed, but by `show --payload`.
    """


for _module in (outbox_stats, outbox_list, outbox_show, outbox_replay, outbox_discard, outbox_rebase):
    command.add_command(_module.command)
