"""What the commands about inboxes have in common: which messages are meant, and of which consumer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import click

from ferryman.cli.options import Command, MomentType, connected, database_of
from ferryman.consumer.operator import requeue
from ferryman.consumer.operator.selection import Place, Selection, written
from ferryman.consumer.store import acts
from ferryman.consumer.store import listing as store
from ferryman.consumer.store.acts import Rejected
from ferryman.runtime.desk import Desk
from ferryman.runtime.errors import FerrymanError

Reference = UUID | Place
"""How a person names a message: by its id, or by where it stood in Kafka."""


class ReferenceType(click.ParamType[Any]):
    """A message's id (a UUID), or its topic/partition/offset"""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        topic, *numbers = value.rsplit("/", 2)
        if topic and len(numbers) == 2 and all(each.isascii() and each.isdigit() for each in numbers):
            partition, offset = map(int, numbers)
            if partition < 2**31 and offset < 2**63:
                return topic, partition, offset
        try:
            return UUID(value)
        except ValueError:
            self.fail(f"{value} is neither an id (a UUID) nor topic/partition/offset (orders/2/4711)", param, ctx)


consumer_option = click.option("--consumer", metavar="NAME", help="Only of this consumer.")


@contextmanager
def open_desk(context: click.Context, source: str | None) -> Iterator[Desk]:
    """A connection to the consumers' database, closed at the end."""
    settings = database_of(context, source)
    with connected(settings, "by hand") as connection:
        yield Desk(connection, settings.database)


def asking(command: Command) -> Command:
    """The options that `Asked` is made of."""
    for option in (
        click.option("--to", "until", type=MomentType(), help="Only what was rejected before: as --from."),
        click.option("--from", "since", type=MomentType(),
                     help="Only what was rejected from this time on (2025-11-18T14:00), or so long ago (2h)."),
        click.option("--type", "type_", metavar="TYPE", help="Only messages of this type."),
        click.option("--topic", metavar="TOPIC", help="Only messages that stood in this topic."),
        click.option("--code", "codes", multiple=True, metavar="CODE",
                     help="Only what was rejected for this (BUG, UNREADABLE, ...); may be given again."),
        click.option("--consumer", metavar="NAME", help="Whose. Needed where several have rejected such messages."),
        click.option("--id", "references", multiple=True, type=ReferenceType(), metavar="ID|PLACE",
                     help="This message, by its id or topic/partition/offset; may be given again."),
    ):  # fmt: skip
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Asked:
    """The rejected messages that an act is asked for, as they were typed."""

    references: tuple[Reference, ...]
    consumer: str | None
    codes: tuple[str, ...]
    topic: str | None
    type_: str | None
    since: datetime | timedelta | None
    until: datetime | timedelta | None

    def check(self) -> None:
        """An act on everything has to be said."""
        others = (self.consumer, self.topic, self.type_, self.since, self.until)
        if not self.references and not self.codes and all(each is None for each in others):
            raise click.UsageError("say which messages: --id, --code, --consumer, --topic, --type, --from or --to")

    def selection(self, desk: Desk) -> Selection:
        """Of one consumer: an act is of its reason, and its reason of one consumer's code."""
        asked = Selection(
            ids=tuple(each for each in self.references if isinstance(each, UUID)),
            places=tuple(each for each in self.references if not isinstance(each, UUID)),
            codes=tuple(each.upper() for each in self.codes) or None,
            topic=self.topic,
            type=self.type_,
            since=moment_of(desk, self.since),
            until=moment_of(desk, self.until),
        )
        with desk.acting() as connection:
            owners = acts.owners(connection, asked.parameters())
        if self.consumer is None and len(owners) > 1:
            raise FerrymanError(
                f"several consumers have rejected such messages: {', '.join(owners)}", remedy="name one with --consumer"
            )
        return replace(asked, consumer=self.consumer or (owners[0] if owners else ""))


def records_of(desk: Desk, selection: Selection) -> list[Rejected]:
    """What is named; that something is not there is an error."""
    found = requeue.named(desk, selection)
    there = {key for each in found for key in (each.id, each.place)}
    missing = [
        *(str(each) for each in selection.ids if each not in there),
        *(written(each) for each in selection.places if each not in there),
    ]
    if missing:
        whose = f"the consumer {selection.consumer}" if selection.consumer else "no consumer here"
        raise FerrymanError(
            f"{whose} has {'not ' if selection.consumer else ''}rejected {', '.join(missing)}",
            remedy="`ferryman inbox show` says what is known of it, `ferryman inbox list` what was rejected",
        )
    return found


def moment_of(desk: Desk, given: datetime | timedelta | None) -> datetime | None:
    """A time as it was given, or so long ago by the database's clock."""
    if not isinstance(given, timedelta):
        return given
    with desk.acting() as connection:
        return store.now(connection) - given
