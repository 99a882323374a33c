"""What the commands that people run by hand have in common: which database, which times, who and why."""

import os
import pwd
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option
from ferryman.runtime import postgres
from ferryman.runtime.desk import Act, Connection
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

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


source_option = click.option(
    "--source", metavar="NAME", help="The database of [relay.sources.NAME]. Default: database_url."
)
yes_option = click.option("--yes", is_flag=True, help="Do it. Without, only say what would be done.")
who_option = click.option("--who", metavar="NAME", help="Who does it, for the audit. Default: your user and this host.")


def act_options(command: Command) -> Command:
    """What every act by hand is asked: why, by whom, whether to do it, where, and how to say what was done."""
    reason = click.option("--reason", help="Why, for the audit; needed with --yes.")
    for option in (json_option, source_option, yes_option, who_option, reason):
        command = option(command)
    return command


@contextmanager
def connected(settings: Settings, process: str) -> Iterator[Connection]:
    """A connection of a person's, closed at the end."""
    with postgres.connect(settings, process, autocommit=True) as connection:
        connection.prepare_threshold = None  # behind a pooler the next transaction may be in another session
        yield connection


def database_of(context: click.Context, source: str | None) -> Settings:
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
