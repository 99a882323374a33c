"""`ferryman inbox`: looks at what consumers handled and what they could not, and acts on it by hand."""

import click

from ferryman.cli import inbox_discard, inbox_list, inbox_requeue, inbox_show, inbox_stats


@click.group("inbox")
def command() -> None:
    """Look at what consumers handled and could not handle; requeue rejected messages, give them up.

    \b
      ferryman inbox stats                          each consumer: verdicts, what waits for a person, its processes
      ferryman inbox list                           what was rejected, and what never took effect
      ferryman inbox show 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11
      ferryman inbox show orders/2/4711             by topic, partition and offset
      ferryman inbox requeue --code BUG             what a requeue would do; --yes does it
      ferryman inbox discard --id orders/2/4711 --yes --reason 'test data'

    A message has one verdict for each consumer: HANDLED (DONE: it took effect; REFUSED: it may not) or REJECTED (it
    could not be handled, and its record is kept). REOPENED is to be handled once more. RECEIVED is of a consumer that
    handles at most once: what stays so had no effect. Values are never printed, but by `show --payload`.
    """


for _module in (inbox_stats, inbox_list, inbox_show, inbox_requeue, inbox_discard):
    command.add_command(_module.command)
