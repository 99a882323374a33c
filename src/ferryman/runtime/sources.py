"""Where settings come from: `ferryman.toml`, then the environment above it. Every unknown name is refused."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from ferryman.runtime import librdkafka
from ferryman.runtime.describing import describe, section_of, table_of
from ferryman.runtime.errors import ENV_NESTING, ENV_PREFIX, Misconfigured, env_name
from ferryman.runtime.settings import Kafka, Settings

CONFIG_VARIABLE = "FERRYMAN_CONFIG"
URL_VARIABLE = "DATABASE_URL"
"""Honoured below our own name of it."""
DEFAULT_FILE = Path("ferryman.toml")
_FILE_SUFFIX = "_FILE"

# Kubernetes tells every pod about a Service called "ferryman..." in names that look like ours.
_FROM_KUBERNETES = re.compile(
    r"FERRYMAN(_[A-Z0-9_]+)?_(SERVICE_HOST=|SERVICE_PORT(_[A-Z0-9_]+)?=\d|PORT=\w+://|PORT_\d+_(TCP|UDP|SCTP)(_|=))"
)


class BadSettings(Misconfigured):
    """One or more settings are wrong; the message is the first, `problems` has them all."""

    def __init__(self, problems: list[Misconfigured]) -> None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more: `ferryman config check` lists them)" if len(problems) > 1 else ""
        super().__init__(first.message + more, setting=first.setting, remedy=first.remedy)
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings and, for each that was given, where."""

    settings: Settings
    origins: Mapping[str, str]


def load(environ: Mapping[str, str], file: Path | None = None) -> Loaded:
    """Reads the file (named, or `ferryman.toml` where it exists) and the environment, and parses them once."""
    named = file or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    path = named or DEFAULT_FILE
    problems: list[Misconfigured] = []
    from_file = read_toml(path) if named or path.exists() else {}
    origins = {name: str(path) for name in _names(from_file)}
    values = from_file
    for variable, parts, value in read_environment(environ, problems):
        _put(values, parts, value)
        origins[".".join(parts)] = variable
    settings = None
    try:
        settings = Settings.model_validate(values)
        problems += librdkafka.check(settings.kafka)
    except ValidationError as error:
        problems += _translated(error, origins)
    if problems or settings is None:
        raise BadSettings(problems)
    return Loaded(settings, origins)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Misconfigured(
            f"cannot read the settings file {path}: {error.strerror}",
            remedy=f"correct --config or {CONFIG_VARIABLE}, or leave it out",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} is not valid TOML: {error}", remedy="correct it at that place") from error


def read_environment(
    environ: Mapping[str, str], problems: list[Misconfigured]
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """(variable, path, value) of every FERRYMAN_* name; what is wrong with one goes to `problems`."""
    if environ.get(URL_VARIABLE) and not {"FERRYMAN_DATABASE_URL", "FERRYMAN_DATABASE_URL_FILE"} & environ.keys():
        yield URL_VARIABLE, ("database_url",), environ[URL_VARIABLE]
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        try:
            if found := _resolve(variable, environ):
                yield variable, *found
        except Misconfigured as error:
            problems.append(error)


def _resolve(variable: str, environ: Mapping[str, str]) -> tuple[tuple[str, ...], Any] | None:
    """The path and value a variable stands for; None for one that is not meant for us."""
    if parts := _path(variable):
        return parts, _decoded(environ[variable], parts, variable)
    base = variable.removesuffix(_FILE_SUFFIX)
    if base != variable and (parts := _path(base)):
        if base in environ:
            raise Misconfigured(f"both {base} and {variable} are set", remedy="keep one of them")
        return parts, _decoded(_secret_file(environ[variable], variable), parts, variable)
    if _FROM_KUBERNETES.match(f"{variable}={environ[variable]}"):
        return None
    known = [env_name(described.name) for described in describe()]
    known += [env_name(f"kafka.{name}") for name in librdkafka.names()]
    raise Misconfigured(f"unknown environment name {variable}", remedy=_suggestion(variable, known))


def _path(variable: str) -> tuple[str, ...] | None:
    """The path of settings behind a variable's name, None when there is none."""
    parts = tuple(variable.removeprefix(ENV_PREFIX).lower().split(ENV_NESTING))
    model: type[BaseModel] = Settings
    depths = iter(enumerate(parts))
    for depth, part in depths:
        last = depth == len(parts) - 1
        field = model.model_fields.get(part)
        if field and (named := table_of(field)) and not last:
            next(depths)  # a name of the user's own
            model = named
            continue
        if model is Kafka and field is None:
            name = librdkafka.spelled(part) if last else None
            return (*parts[:depth], name) if name else None
        inner = section_of(field) if field else None
        if field is None or (inner is None) != last:
            return None
        model = inner or model
    return parts


def _decoded(text: str, parts: tuple[str, ...], variable: str) -> Any:
    """Lists and tables are written as JSON; everything else is parsed by its field."""
    if "." in parts[-1] or not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Misconfigured(f"{variable} is not valid JSON: {error.msg}", setting=".".join(parts)) from error


def _secret_file(name: str, variable: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Misconfigured(f"cannot read the file {name} that {variable} names: {reason}") from error


def _put(values: dict[str, Any], parts: tuple[str, ...], value: Any) -> None:
    for part in parts[:-1]:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):  # the file has a plain value where a section belongs: the parser will say so
            return
        values = inner
    values[parts[-1]] = value


def _names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _translated(error: ValidationError, origins: Mapping[str, str]) -> Iterator[Misconfigured]:
    known = [described.name for described in describe()]
    for problem in error.errors(include_url=False, include_input=False):
        name = ".".join(str(part) for part in problem["loc"])
        where = f" (from {origins[name]})" if name in origins else ""
        if problem["type"] == "extra_forbidden":
            yield Misconfigured(f"unknown setting {name}{where}", remedy=_suggestion(name, known))
        else:
            yield Misconfigured(problem["msg"].removeprefix("Value error, ") + where, setting=name)


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "`ferryman config show` lists every setting"


def plain(value: Any) -> Any:
    """A setting's value as JSON would have it, with secrets unwrapped: for redaction, never for printing."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value
