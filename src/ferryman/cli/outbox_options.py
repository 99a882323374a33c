"""What the commands about the outbox have in common: which entries are meant, and where they are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import click

from ferryman.cli.options import Command, MomentType, connected, database_of
from ferryman.relay.operator import listing
from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.selection import Selection
from ferryman.relay.store import listing as store
from ferryman.runtime.errors import FerrymanError

Reference = UUID | int
"""How a person names an entry: by its id, or by its position."""

SEARCH_SECONDS = 10.0


class ReferenceType(click.ParamType[Any]):
    """An entry's id (a UUID) or its position (a number)"""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, UUID | int):
            return value
        if value.isascii() and value.isdigit() and int(value) < 2**63:
            return int(value)
        try:
            return UUID(value)
        except ValueError:
            self.fail(f"{value} is neither an id (a UUID) nor a position (a number)", param, ctx)


def filter_options(command: Command) -> Command:
    """--topic, --key and --type."""
    for option in (
        click.option("--type", "type_", metavar="TYPE", help="Only messages of this type."),
        click.option("--key", metavar="KEY", help="Only messages with this key."),
        click.option("--topic", metavar="TOPIC", help="Only messages for this topic."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Asked:
    """The entries an act is asked for, as they were typed."""

    references: tuple[Reference, ...]
    topic: str | None
    key: str | None
    type_: str | None
    statuses: tuple[str, ...]
    since: datetime | timedelta | None
    until: datetime | timedelta | None

    @property
    def anything(self) -> bool:
        others = (self.topic, self.key, self.type_, self.since, self.until)
        return bool(self.references or self.statuses) or any(each is not None for each in others)

    def check(self) -> None:
        """An act on everything has to be said."""
        if not self.anything:
            raise click.UsageError("say which entries: --id, --topic, --key, --type, --status, --from or --to")

    def selection(self, desk: Desk) -> Selection:
        return Selection(
            positions=tuple(positions_of(desk, self.references)) if self.references else None,
            topic=self.topic,
            key=self.key,
            type=self.type_,
            statuses=tuple(each.upper() for each in self.statuses) or None,
            since=moment_of(desk, self.since),
            until=moment_of(desk, self.until),
        )


def asking(statuses: Sequence[str], default: str) -> Callable[[Command], Command]:
    """The options that `Asked` is made of."""
    status_help = f"Only entries with this status; may be given again. Default: {default}."
    options = (
        click.option("--to", "until", type=MomentType(), help="Only what was appended before: as --from."),
        click.option("--from", "since", type=MomentType(),
                     help="Only what was appended from this time on (2025-11-18T14:00), or so long ago (2h)."),
        click.option("--status", "statuses", multiple=True, type=click.Choice(statuses, case_sensitive=False),
                     metavar="|".join(statuses), help=status_help),
        filter_options,
        click.option("--id", "references", multiple=True, type=ReferenceType(), metavar="ID|POSITION",
                     help="This entry; may be given again."),
    )  # fmt: skip

    def decorate(command: Command) -> Command:
        for option in options:
            command = option(command)
        return command

    return decorate


@contextmanager
def open_desk(context: click.Context, source: str | None) -> Iterator[Desk]:
    """A connection to the outbox that is meant, closed at the end."""
    settings = database_of(context, source)
    with connected(settings, "outbox") as connection:
        yield Desk(connection, settings.database)


def moment_of(desk: Desk, given: datetime | timedelta | None) -> datetime | None:
    """A time as it was given, or so long ago by the database's clock."""
    if not isinstance(given, timedelta):
        return given
    with desk.acting() as connection:
        return store.now(connection) - given


def positions_of(desk: Desk, references: Sequence[Reference]) -> list[int]:
    """The positions of all that is named; that something is not there is an error."""
    positions = {each for each in references if isinstance(each, int)}
    ids = {each for each in references if isinstance(each, UUID)}
    if ids:
        found, unseen = listing.find(desk, sorted(ids), since=None, seconds=SEARCH_SECONDS)
        positions.update(found)
        if unseen is not None:
            raise FerrymanError(
                f"not all of the outbox could be looked through for ids in {SEARCH_SECONDS:.0f} s",
                remedy="name the positions instead: `ferryman outbox list` shows them",
            )
    with desk.reading() as connection:
        meant = Selection().parameters()
        entries = store.entries_at(connection, meant, sorted(positions), len(positions) + 1)
    missing = [str(each) for each in references if each not in {p for e in entries for p in (e.position, e.id)}]
    if missing:
        raise FerrymanError(
            f"the outbox has no entry {', '.join(missing)}",
            remedy="correct it; what is older than the retention is gone for good",
        )
    return [entry.position for entry in entries]
