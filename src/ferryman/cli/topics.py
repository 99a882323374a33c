"""`ferryman topics`: the catalogue's topics on the cluster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json, print_table
from ferryman.runtime.exits import Exit

if TYPE_CHECKING:
    from ferryman.schemas.topics import Difference


@click.group("topics")
def command() -> None:
    """Compare the catalogue's topics with the cluster's, and create what is missing.

    \b
      ferryman topics check           what differs; exit 1 when something does
      ferryman topics apply           what it would do
      ferryman topics apply --yes     creates, and raises limits that are too low

    Nothing is ever deleted, no partition is added and nothing shrinks: what would need that is said, and left to a
    person.
    """


@command.command("check")
@json_option
@click.pass_context
def check(context: click.Context, as_json: bool) -> int:
    """Say what differs between the catalogue and the cluster. Exit 1 when something does."""
    from ferryman.schemas.topics import Topics

    settings = wiring.settings(context)
    catalogue = wiring.catalogue(settings)
    found = Topics(settings.kafka).differences(catalogue)
    _print(found, as_json=as_json, topics=len(catalogue.topics))
    return Exit.FAILURE if found else Exit.OK


@command.command("apply")
@click.option("--yes", is_flag=True, help="Do it. Without, it only says what it would do.")
@click.option("--replication", type=click.IntRange(1, 32), help="Replicas of new topics. Default: the broker's.")
@json_option
@click.pass_context
def apply(context: click.Context, yes: bool, replication: int | None, as_json: bool) -> int:
    """Create the topics that are missing, and raise retention and message sizes that are too low.

    Without --yes nothing is changed. Exit 5 when something differs that it leaves alone.
    """
    from ferryman.schemas.topics import Topics

    settings = wiring.settings(context)
    catalogue, topics = wiring.catalogue(settings), Topics(settings.kafka)
    found = topics.differences(catalogue)
    if yes:
        topics.apply(catalogue, found, replication=replication)
    _print(found, as_json=as_json, topics=len(catalogue.topics), done=yes)
    return Exit.PARTIAL if any(each.action == "leave" for each in found) else Exit.OK


def _print(found: Sequence["Difference"], *, as_json: bool, topics: int, done: bool | None = None) -> None:
    if as_json:
        dry_run = {} if done is None else {"dry_run": not done}
        print_json({**dry_run, "topics": topics, "differences": [each.to_json() for each in found]})
        return
    if not found:
        click.echo(f"the cluster's topics are as the catalogue says ({topics})")
        return
    verbs = {"create": "created", "raise": "raised"} if done else {"create": "create", "raise": "raise"}
    print_table(
        ("topic", "what", "here", "catalogue", "apply"),
        [
            (each.topic, each.what, each.here or "-", each.wanted, verbs.get(each.action, f"leaves it: {each.why}"))
            for each in found
        ],
    )
    if done is False:
        click.echo("nothing was changed: add --yes to do it")
