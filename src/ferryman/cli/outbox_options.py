"""What the commands about the outbox have in common: which database, which entries, who and why."""

import os
import pwd
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import click

from ferryman.cli import wiring
from ferryman.relay.operator import listing
from ferryman.relay.operator.desk import Act, Desk
from ferryman.relay.operator.selection import Selection
from ferryman.relay.store import listing as store
from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError, Misconfigured
from ferryman.runtime.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])
Reference = UUID | int
"""How a person names an entry: by its id, or by its position."""

SEARCH_SECONDS = 10.0
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class DurationType(click.ParamType[Any]):
    """90s, 15m, 2h, 3d, 1w"""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, timedelta):
            return value
        parts = re.findall(r"(\d+)([smhdw])", value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value} is no duration: write 90s, 15m, 2h, 3d or 1h30m", param, ctx)
        try:
            return timedelta(seconds=sum(int(number) * _SECONDS[unit] for number, unit in parts))
        except OverflowError:
            self.fail(f"{value} is too long", param, ctx)


class MomentType(click.ParamType[Any]):
    """A time (2025-11-18T14:00, in this machine's zone unless it says another), or how long ago (2h)"""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, datetime | timedelta):
            return value
        if re.fullmatch(r"(\d+[smhdw])+", value):
            return DurationType().convert(value, param, ctx)
        try:
            found = datetime.fromisoformat(value)
            return found if found.tzinfo else found.astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value} is no time: write 2025-11-18T14:00, or how long ago, as 2h", param, ctx)


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


source_option = click.option(
    "--source", metavar="NAME", help="The outbox of [relay.sources.NAME]. Default: database_url."
)
yes_option = click.option("--yes", is_flag=True, help="Do it. Without, only say what would be done.")
who_option = click.option("--who", metavar="NAME", help="Who does it, for the audit. Default: your user and this host.")


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
    settings = _database(context, source)
    with postgres.connect(settings, "outbox", autocommit=True) as connection:
        connection.prepare_threshold = None  # behind a pooler the next transaction may be in another session
        yield Desk(connection, settings.database)


def _database(context: click.Context, source: str | None) -> Settings:
    """The settings, with the URL of the source in place of database_url; one that stands alone need not be named."""
    settings = wiring.settings(context)
    sources = settings.relay.sources
    if source is None and (settings.database_url is not None or not sources):
        return settings
    name = source or (next(iter(sources)) if len(sources) == 1 else None)
    if name in sources:
        return settings.model_copy(update={"database_url": sources[name].database_url})
    known = (
        f"name one of {', '.join(sorted(sources))}" if sources else "leave --source out, or add [relay.sources.NAME]"
    )
    raise Misconfigured(
        f"there is no source called {name}" if name else "there are several sources, and none is named",
        setting="relay.sources",
        remedy=known + (" with --source" if sources else ""),
    )


def act_of(who: str | None, reason: str | None, *, needed: bool = True) -> Act:
    if needed and not (reason or "").strip():
        raise click.UsageError("--reason is missing: it stands in the audit, for whoever asks later")
    return Act(who or _user(), (reason or "").strip() or "-")


def _user() -> str:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


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
