"""The sources of settings: `ferryman.toml`, then the environment, which wins. Every unknown name is refused."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from ferryman.runtime import librdkafka
from ferryman.runtime.errors import ENV_NESTING, ENV_PREFIX, Misconfigured, env_name
from ferryman.runtime.setting import NAMED, describe, leaves
from ferryman.runtime.settings import Settings

CONFIG_VARIABLE = "FERRYMAN_CONFIG"
URL_VARIABLE = "DATABASE_URL"
"""Honoured where FERRYMAN_DATABASE_URL is not set."""
DEFAULT_FILE = Path("ferryman.toml")
_FILE_SUFFIX = "_FILE"

# Kubernetes describes a Service called "ferryman..." to every pod, in variables that look like ours.
_FROM_KUBERNETES = re.compile(
    r"FERRYMAN(_[A-Z0-9_]+)?_(SERVICE_HOST=|SERVICE_PORT(_[A-Z0-9_]+)?=\d|PORT=\w+://|PORT_\d+_(TCP|UDP|SCTP)(_|=))"
)


class BadSettings(Misconfigured):
    """One or more wrong settings: the message is the first problem, `problems` has them all."""

    def __init__(self, problems: list[Misconfigured]) -> None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more: `ferryman config check` lists them)" if len(problems) > 1 else ""
        super().__init__(first.message + more, setting=first.setting, remedy=first.remedy)
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings and, for each that was given, the file or the variable that it came from."""

    settings: Settings
    origins: Mapping[str, str]


def load(environ: Mapping[str, str], file: Path | None = None, model: type[Settings] = Settings) -> Loaded:
    """Read the settings file and the environment, and parse them once."""
    from_file, path = read_file(environ, file)
    problems: list[Misconfigured] = []
    origins = {name: str(path) for name, _ in leaves(from_file)}
    values = from_file
    for variable, parts, value in read_environment(environ, model, problems):
        _put(values, parts, value)
        origins[".".join(parts)] = variable
    settings = None
    try:
        settings = model.model_validate(values)
        problems += librdkafka.check(settings.kafka)
    except ValidationError as error:
        problems += _translated(error, origins, model)
    if problems or settings is None:
        raise BadSettings(problems)
    return Loaded(settings, origins)


def read_file(environ: Mapping[str, str], file: Path | None = None) -> tuple[dict[str, Any], Path]:
    """Return what the settings file says, and its path: `file`, $FERRYMAN_CONFIG, or `ferryman.toml` if it exists."""
    named = file or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    path = named or DEFAULT_FILE
    if not named and not path.exists():
        return {}, path
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")), path
    except OSError as error:
        raise Misconfigured(
            f"cannot read the settings file {path}: {error.strerror}",
            remedy=f"correct --config or {CONFIG_VARIABLE}, or leave it out",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} is not valid TOML: {error}", remedy="correct it at that place") from error


def read_environment(
    environ: Mapping[str, str], model: type[Settings], problems: list[Misconfigured]
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield (variable, path, value) of every FERRYMAN_* name; append wrong ones to `problems`."""
    known = [described.name for described in describe(model)]
    if environ.get(URL_VARIABLE) and not {"FERRYMAN_DATABASE_URL", "FERRYMAN_DATABASE_URL_FILE"} & environ.keys():
        yield URL_VARIABLE, ("database_url",), environ[URL_VARIABLE]
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        try:
            if found := _resolve(variable, environ, known):
                yield variable, *found
        except Misconfigured as error:
            problems.append(error)


def _resolve(variable: str, environ: Mapping[str, str], known: Sequence[str]) -> tuple[tuple[str, ...], Any] | None:
    """Return the path and the value of a variable, or None for one that is not meant for us."""
    if parts := _path(variable, known):
        return parts, _decoded(environ[variable], parts, variable)
    base = variable.removesuffix(_FILE_SUFFIX)
    if base != variable and (parts := _path(base, known)):
        if base in environ:
            raise Misconfigured(f"both {base} and {variable} are set", remedy="keep one of them")
        return parts, _decoded(_secret_file(environ[variable], variable), parts, variable)
    if _FROM_KUBERNETES.match(f"{variable}={environ[variable]}"):
        return None
    names = map(env_name, [*known, *(f"kafka.{name}" for name in librdkafka.names())])
    raise Misconfigured(f"unknown environment name {variable}", remedy=_suggestion(variable, names, ENV_NESTING))


def _path(variable: str, known: Sequence[str]) -> tuple[str, ...] | None:
    """Return the path of the setting or the table that a variable names, or None if there is neither."""
    parts = tuple(variable.removeprefix(ENV_PREFIX).lower().split(ENV_NESTING))
    for name in known:
        wanted = name.split(".")
        table = NAMED in wanted[len(parts) - 1 : len(parts) + 1]  # the whole of it, or one of its sections
        if (table or len(wanted) == len(parts)) and all(
            each in (part, NAMED) for each, part in zip(wanted, parts, strict=False)
        ):
            return parts
    if parts[0] == "kafka" and len(parts) == 2 and (found := librdkafka.spelled(parts[1])):
        return "kafka", found
    return None


def _decoded(text: str, parts: tuple[str, ...], variable: str) -> Any:
    """Parse a list or a table, which is written as JSON; every other value is parsed by its field."""
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
        if not isinstance(inner, dict):  # the file has a plain value in place of a section: the parser will say so
            return
        values = inner
    values[parts[-1]] = value


def _translated(error: ValidationError, origins: Mapping[str, str], model: type[Settings]) -> Iterator[Misconfigured]:
    known = [described.name for described in describe(model)]
    for problem in error.errors(include_url=False, include_input=False):
        name = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        where = f" (from {origins[name]})" if name in origins else ""
        if problem["type"] == "extra_forbidden":
            yield Misconfigured(f"unknown setting {name}{where}", remedy=_suggestion(name, known))
        else:
            message, remedy = _explained(problem)
            said = f"{name}: {message}" if message.startswith("it ") else message
            yield Misconfigured(said + where, setting=name, remedy=remedy)


def first_problem(error: ValidationError, model: type[BaseModel]) -> tuple[str, str | None]:
    """Return the first thing that is wrong with a description, with the place of it, and the remedy if there is one."""
    problem = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {name}", _suggestion(name, [described.name for described in describe(model)])
    message, remedy = _explained(problem)
    return ": ".join(filter(None, (name, message))), remedy


def _explained(problem: ErrorDetails) -> tuple[str, str | None]:
    """Return what pydantic found wrong, and the remedy if there is one."""
    name = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            return "it is missing", None
        case "model_type" | "dict_type":
            section, _, rest = name.partition(".")
            named = f"[{section}.NAME], with a name of your own" if rest and "." not in rest else f"[{name}]"
            return "it is a section, and not a value", f"write its settings under {named}"
        case "list_type":
            return "it is a list", 'write it in brackets, as ["..."]'
    remedy = getattr(problem.get("ctx", {}).get("error"), "remedy", None)
    return problem["msg"].removeprefix("Value error, "), remedy


def _suggestion(name: str, known: Iterable[str], separator: str = ".") -> str:
    close = difflib.get_close_matches(name, [_named_as(each, name, separator) for each in known], n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "`ferryman config show` lists every setting"


def _named_as(known: str, name: str, separator: str) -> str:
    """Return a known name with the user's own name in place of NAME, if there is one at that place."""
    wanted, given = known.split(separator), name.split(separator)
    return separator.join(
        (own or each) if each == NAMED else each for each, own in zip_longest(wanted, given[: len(wanted)])
    )


def plain(value: Any) -> Any:
    """Return a setting's value with secrets unwrapped: for redaction, never for printing."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value
