"""The databases that evidence comes from, and how a command that a person runs finds each of them."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import psycopg
from psycopg import IsolationLevel
from pydantic import SecretStr

from ferryman.runtime import postgres, roles
from ferryman.runtime.desk import Desk
from ferryman.runtime.errors import FerrymanError, Misconfigured, env_name
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_relay import source_setting

Connection = psycopg.Connection[tuple[Any, ...]]

MAIN = "main"
"""The name of the database of `database_url`."""

RUN_RELAY = "ferryman run relay"
_BY_SOURCE = re.compile(r"(ferryman (?:outbox|inbox|resume|saga) .*?)(?=   or   |$)")

_IDENTITY = """\
-- evidence.identity
SELECT system_identifier, current_database()::text FROM ferryman.outbox_state
"""

# Compiling such statements takes longer than to run them.
_READ_ONLY = """\
-- evidence.read_only
SELECT set_config('transaction_read_only', 'on', true), set_config('jit', 'off', true)
"""

T = TypeVar("T")
P = ParamSpec("P")


class DatabaseAddress(NamedTuple):
    """The way to a database for a command: its URL as a shell is given it, and the relay's source with the same one."""

    url: str
    source: str | None = None

    def of(self, command: str) -> str:
        """Return the command so that it runs on this database; it may be several, as `one   or   another`."""
        if self.source and command == RUN_RELAY:  # it publishes every source
            return command
        if self.source and "ferryman run " not in command:
            return _BY_SOURCE.sub(rf"\1 --source {self.source}", command)
        return command.replace("ferryman ", f"FERRYMAN_DATABASE_URL={self.url} ferryman ")


@dataclass(frozen=True, slots=True)
class Side(Desk):
    """One database, as a person looks at it. Commands for the database of `database_url` need no address."""

    name: str
    address: DatabaseAddress | None = None

    def ask(self, read: Callable[Concatenate[Connection, P], T], /, *given: P.args, **named: P.kwargs) -> T:
        """Read something in a short transaction of its own that changes nothing."""
        with self.looking() as db:
            return read(db, *given, **named)

    @contextmanager
    def looking(self, *, one_snapshot: bool = False) -> Iterator[Connection]:
        """Open such a transaction. `one_snapshot`: for what one statement cannot read in its time."""
        usual = self.connection.isolation_level
        self.connection.isolation_level = IsolationLevel.REPEATABLE_READ if one_snapshot else usual
        try:
            with self.acting() as db:
                db.execute(_READ_ONLY)
                yield db
        finally:
            self.connection.isolation_level = usual

    def command(self, command: str) -> str:
        return self.address.of(command) if self.address else command


@dataclass(frozen=True, slots=True)
class Sides:
    """The databases that answer, by name. Two names may stand for one database: `each` has it once."""

    by_name: Mapping[str, Side]
    settings: Settings
    missing: list[str] = field(default_factory=list)
    """Why each of the others could not be asked."""

    def get(self, name: str) -> Side | None:
        return self.by_name.get(name)

    def __getitem__(self, name: str) -> Side:
        return self.by_name[name]

    @property
    def each(self) -> list[Side]:
        return list({id(side): side for side in self.by_name.values()}.values())


def named_in(settings: Settings, databases: Mapping[str, str]) -> dict[str, str]:
    """Return the setting of every database: ours, each of the relay's sources, and those of systems that are set."""
    sources = {name: source_setting(name) for name in settings.relay.sources}
    others = {name: setting for name, setting in (sources | dict(databases)).items() if _url(settings, setting)}
    return ({MAIN: postgres.URL} if settings.database_url or not others else {}) | others


@contextmanager
def open_sides(
    settings: Settings, wanted: Mapping[str, str], process: str, origins: Mapping[str, str] | None = None, *,
    partly: bool = False, role: str | None = None,
) -> Iterator[Sides]:  # fmt: skip
    """Connect to each database that is wanted, by the setting that names it. `partly`: at least to one of them."""
    found: dict[str, Side] = {}
    known: dict[Any, Side] = {}
    errors: dict[str, FerrymanError] = {}
    with ExitStack() as closing:
        for name, setting in wanted.items():
            try:
                connection = closing.enter_context(connect(settings, setting, process, role))
                origin = (origins or {}).get(setting)
                address = None if setting == postgres.URL else address_of(settings, name, setting, origin)
                side = Side(connection, settings.database, name, address)
                found[name] = known.setdefault(_identity(side), side)
            except FerrymanError as error:
                if not partly:
                    raise
                errors[name] = error
        if errors and not found:
            raise next(iter(errors.values()))
        yield Sides(found, settings, [f"{database_of(name)}: {error}" for name, error in errors.items()])


def database_of(name: str) -> str:
    """Return what a database is called in a sentence."""
    return "the main database" if name == MAIN else f"the {name}'s database"


def connect(settings: Settings, setting: str, process: str, role: str | None = None) -> Connection:
    """Connect to the database that a setting names, in autocommit mode. Errors name that setting."""
    url = _url(settings, setting)
    if url is None and setting != postgres.URL:
        raise Misconfigured(
            "this database is not named", setting=setting, remedy="name it; where one database is both, name that one"
        )
    with postgres.naming(setting):
        changed = settings.model_copy(update={"database_url": url})
        found = postgres.connect(changed, process, autocommit=True, role=role or roles.needed(process))
    found.prepare_threshold = None  # a pooler shares sessions, and a kept plan would not hash long arrays of ids
    return found


def address_of(settings: Settings, name: str, setting: str, origin: str | None) -> DatabaseAddress:
    """Return how a command finds this database. A variable is named only where it holds the URL itself: in a file the
    URL stands with its password, which is not printed.
    """
    url, variable = _url(settings, setting), env_name(setting)
    source = next((name for name, each in settings.relay.sources.items() if each.database_url == url), None)
    gap = f"<the {name}'s URL>"
    return DatabaseAddress(f'"${variable}"' if origin == variable else gap, source)


def _url(settings: Settings, setting: str) -> SecretStr | None:
    found: Any = settings
    for part in setting.split("."):
        found = found.get(part) if isinstance(found, Mapping) else getattr(found, part, None)
    return found  # type: ignore[no-any-return]


def _identity(side: Side) -> Any:
    """Return which database of which server this is, or the side itself if the database has no tables of ours."""
    try:
        return side.ask(lambda db: db.execute(_IDENTITY).fetchone())
    except FerrymanError:
        return id(side)
