"""Options that the commands for people have in common: which database, which times, who and why."""

import os
import pwd
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, TypeVar
from uuid import UUID

import click
from click.shell_completion import CompletionItem

from ferryman.cli import wiring
from ferryman.cli.output import CommandResult, answering, say
from ferryman.relay.admin import described_rows
from ferryman.relay.described.table import needed_role
from ferryman.relay.source import source_of, sources
from ferryman.runtime import postgres, roles
from ferryman.runtime.desk import Act, Desk
from ferryman.runtime.errors import Misconfigured, Transient
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_relay import source_setting
from ferryman.runtime.times import EndlessTimes

Command = TypeVar("Command", bound=Callable[..., Any])

NO_REASON = "-"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class ParsedType(click.ParamType[Any]):
    """A value that a function makes of the text; the function raises a ValueError if it cannot"""

    def __init__(self, name: str, parse: Callable[[str], Any], wrong: str) -> None:
        self.name, self._parse, self._wrong = name, parse, wrong

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except OverflowError:
            self.fail(f"{value} is too long", param, ctx)
        except ValueError:
            self.fail(f"{value} is {self._wrong}", param, ctx)


def _duration_of(text: str) -> timedelta:
    if not re.fullmatch(r"(\d+[smhdw])+", text):
        raise ValueError
    parts = re.findall(r"(\d+)([smhdw])", text)
    return timedelta(seconds=sum(int(number) * _SECONDS[unit] for number, unit in parts))


def _moment_of(text: str) -> datetime | timedelta:
    with suppress(ValueError):
        return _duration_of(text)
    found = datetime.fromisoformat(text)
    with suppress(OverflowError):
        return found if found.tzinfo else found.astimezone()
    raise ValueError


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _entry_of(text: str) -> UUID | int:
    is_position = text.isascii() and text.isdigit() and int(text) < 2**63
    return int(text) if is_position else UUID(text)


def _message_of(text: str) -> UUID | tuple[str, int, int]:
    topic, *numbers = text.rsplit("/", 2)
    if topic and len(numbers) == 2 and all(each.isascii() and each.isdigit() for each in numbers):
        partition, offset = map(int, numbers)
        if partition < 2**31 and offset < 2**63:
            return topic, partition, offset
    return UUID(text)


DURATION = ParsedType("duration", _duration_of, "not a valid duration: write 90s, 15m, 2h, 3d or 1h30m")
MOMENT = ParsedType("time", _moment_of, "not a valid time: write 2025-11-18T14:00, or how long ago, such as 2h")
"""A time, in this machine's zone unless it says another; or how long ago."""
NAME = ParsedType("name", _not_empty, "empty")
"""A name that is not empty, as an unset variable of the shell would be: acts must not concern everything instead."""

ENTRY_REFERENCE = ParsedType("id", _entry_of, "neither an id (a UUID) nor a position (a number)")
MESSAGE_REFERENCE = ParsedType("id", _message_of, "neither an id (a UUID) nor topic/partition/offset (orders/2/4711)")


class JournalType(click.ParamType[Any]):
    """A type of what the journal has; with --outbox any text: the table of that outbox knows what it means"""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.name, self._inner = inner.name, inner

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        rows = ctx is not None and isinstance(ctx.params.get("outbox"), str)
        return value if rows else self._inner.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return self._inner.shell_complete(ctx, param, incomplete)


outbox_option = click.option(
    "--outbox", metavar="NAME", is_eager=True, type=NAME,
    help="Rows of a described outbox, not the journal: the NAME of [outbox.NAME], or a courier's module:object.",
)  # fmt: skip
destination_option = click.option(
    "--destination", metavar="DESTINATION", type=NAME, help="With --outbox: only rows for this destination, or topic."
)
source_option = click.option(
    "--source", metavar="NAME", help="The database of [relay.sources.NAME]. Default: database_url."
)
yes_option = click.option("--yes", is_flag=True, help="Do it. Without, only say what would be done.")
who_option = click.option("--who", metavar="NAME", help="Who does it, for the audit. Default: your user and this host.")
reason_option = click.option("--reason", help="Why, for the audit; needed with --yes.")


def decorated(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds these options, the first one on top."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@contextmanager
def open_desk(context: click.Context, source: str | None, process: str) -> Iterator[Desk]:
    """Connect for a person, and close the connection at the end."""
    settings, setting = _database_of(context, source)
    with _desk(settings, setting, process, _role_of(context)) as desk:
        yield desk


@contextmanager
def _desk(settings: Settings, setting: str, process: str, role: str | None) -> Iterator[Desk]:
    with (
        postgres.naming(setting),
        postgres.connect(settings, process, autocommit=True, role=role) as connection,
    ):
        connection.prepare_threshold = None  # behind a pooler the next transaction may be in another session
        yield Desk(connection, settings.database)


@contextmanager
def open_named(context: click.Context, called: str, source: str | None) -> Iterator[tuple[Desk, wiring.NamedOutbox]]:
    """Connect for a person to the database of a described outbox."""
    found = wiring.settings(context)
    named = wiring.described_outbox(called, found)
    where = source_of(
        named.name, named.outbox.model_copy(update={"source": source}) if source else named.outbox, sources(found)
    )
    role, own = _role_of(context), needed_role(named.outbox)
    with _desk(where.settings, where.setting, "outbox", role if role == roles.MONITOR else own) as desk:
        if role == roles.MONITOR and own and own not in (roles.RELAY, roles.COURIER):  # it may not read all of ours
            postgres.expect(desk.connection, role, own)
        yield desk, named


@contextmanager
def open_rows(context: click.Context, called: str, source: str | None) -> Iterator[described_rows.RowDesk]:
    """Connect for a person to a described outbox whose table fits its description."""
    with open_named(context, called, source) as (desk, named):
        desk.connection.adapters.register_loader("timestamptz", EndlessTimes)
        looks = _role_of(context) == roles.MONITOR
        yield described_rows.open_rows(desk, called, named.name, named.outbox, only_looks=looks)


def reading(process: str) -> Callable[[Callable[..., CommandResult]], Callable[..., int]]:
    """Return a decorator for a command that reads: it adds --source and --json, connects, and prints the answer.

    A command that has --outbox is given the rows of that outbox in place of the journal's desk.
    """

    def decorate(command: Callable[..., CommandResult]) -> Callable[..., int]:
        @source_option
        @answering
        @click.pass_context
        @wraps(command)
        def run(context: click.Context, /, *, source: str | None, **options: Any) -> CommandResult:
            outbox: str | None = options.pop("outbox", None)
            opened: AbstractContextManager[Any] = (
                open_rows(context, outbox, source) if outbox else open_desk(context, source, process)
            )
            with opened as desk:
                return command(desk, **options)

        return run

    return decorate


@dataclass(frozen=True, slots=True)
class Order:
    """The options of an act by hand: by whom and why, whether to do it, and where."""

    context: click.Context
    act: Act
    yes: bool
    source: str | None
    outbox: str | None = None

    def desk(self, process: str) -> AbstractContextManager[Desk]:
        return open_desk(self.context, self.source, process)

    def rows(self) -> AbstractContextManager[described_rows.RowDesk]:
        assert self.outbox is not None
        return open_rows(self.context, self.outbox, self.source)


def act_options(command: Callable[..., CommandResult]) -> Callable[..., int]:
    """Add the options of every act by hand, and hand them to the act as its order."""

    @reason_option
    @who_option
    @yes_option
    @source_option
    @answering
    @click.pass_context
    @wraps(command)
    def run(
        context: click.Context, /, *, reason: str | None, who: str | None, yes: bool, source: str | None, **options: Any
    ) -> CommandResult:
        outbox = options.pop("outbox", None)
        return command(Order(context, act_of(who, reason, needed=yes), yes, source, outbox), **options)

    return run


def refuse_everything(asked: Mapping[str, Any], which: str) -> None:
    """Refuse an act without any condition: everything has to be asked for."""
    if all(each in (None, ()) for each in asked.values()):
        raise click.UsageError(f"say which {which}")


@contextmanager
def resumable(stopped: Callable[[], str]) -> Iterator[None]:
    """Say how far an act came that a failure stopped."""
    try:
        yield
    except Transient:
        say(f"stopped with {stopped()}")
        raise


def _role_of(context: click.Context) -> str | None:
    """Return the role that a command needs with the options that were given."""
    given = [each for param in context.command.params if context.params.get(param.name or "") for each in param.opts]
    return roles.needed(context.command_path.partition(" ")[2], given)


def database_of(context: click.Context, source: str | None) -> Settings:
    """Return the settings with the source's URL as database_url. A single source need not be named."""
    return _database_of(context, source)[0]


def _database_of(context: click.Context, source: str | None) -> tuple[Settings, str]:
    """Return these settings, and the setting that the URL comes from."""
    settings = wiring.settings(context)
    sources = settings.relay.sources
    if source is None and (settings.database_url is not None or not sources):
        return settings, postgres.URL
    name = source or (next(iter(sources)) if len(sources) == 1 else None)
    if name is not None and name in sources:
        return settings.model_copy(update={"database_url": sources[name].database_url}), source_setting(name)
    known = (
        f"name one of {', '.join(sorted(sources))}" if sources else "leave --source out, or add [relay.sources.NAME]"
    )
    raise Misconfigured(
        f"there is no source called {name}" if name else "there are several sources, and none is named",
        setting="relay.sources",
        remedy=known + (" with --source" if sources else ""),
    )


def period(desk: Desk, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times `since` and `until` as they were given, or so long ago by the database's clock."""
    given = {name: asked[name] for name in ("since", "until")}
    return {name: desk.now() - at if isinstance(at, timedelta) else at for name, at in given.items()}


def act_of(who: str | None, reason: str | None, *, needed: bool = True) -> Act:
    """Return who acts and why; with `needed`, refuse an empty reason."""
    if needed and not (reason or "").strip():
        raise click.UsageError("--reason is missing: the audit keeps it for those who ask later")
    return Act(who or _user(), (reason or "").strip() or NO_REASON)


def _user() -> str:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
