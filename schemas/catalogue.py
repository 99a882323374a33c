"""The catalogue: the topics, the types of messages in them, and what is promised about each."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from ferryman.runtime.errors import Misconfigured
from ferryman.schemas import avro, json_form

FILE = "catalogue.toml"
AVRO: Final = "application/avro"
JSON: Final = "application/json"

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TYPE = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")


_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class _TopicEntry:
    owner: str
    text: str
    key: str
    order: Literal["key", "none"] = "key"
    duplicates: str = "At least once: a duplicate has the same ce_id and the same bytes."
    partitions: int = Field(6, ge=1, le=10_000)
    retention_hours: float = Field(168, gt=0)
    max_message_bytes: int = Field(1_048_588, ge=1_024)
    replay: str = "The owner can publish entries of the last day again, with the header x-replay and the same ce_id."
    deprecated: str | None = None


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class _TypeEntry:
    topic: str
    kind: Literal["command", "result", "event"]
    version: int = Field(1, ge=1)
    content_type: Literal["application/avro", "application/json"] = "application/avro"
    pii: Literal["none", "personal", "secret"] = "none"
    deprecated: str | None = None
    samples: list[dict[str, Any]] = Field(min_length=1, repr=False)


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class _File:
    title: str
    text: str
    topics: dict[str, _TopicEntry]
    types: dict[str, _TypeEntry]


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class CatalogueTopic(_TopicEntry):
    """A topic of the catalogue, and what is promised about it."""

    name: str

    @property
    def retention_ms(self) -> int:
        return round(self.retention_hours * 3_600_000)


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class Type(_TypeEntry):
    """A type of message, with its current schema and samples of it in their JSON form."""

    name: str
    text: str = Field(repr=False)
    """The text of the schema's file."""

    @cached_property
    def schema(self) -> avro.Schema:
        return avro.parse(self.text)

    @property
    def subject(self) -> str:
        """The name that the registry has it under: the record's full name, because a topic holds several types."""
        return str(self.schema["name"])

    @property
    def json_samples(self) -> list[Any]:
        """The samples with every field."""
        return [json_form.to_json(self.schema, json_form.from_json(self.schema, each)) for each in self.samples]

    @property
    def shows_values(self) -> bool:
        """True if an error may show a value."""
        return self.pii == "none"


@dataclass(frozen=True)
class Catalogue:
    """The catalogue of one folder."""

    folder: Path
    title: str
    text: str
    topics: Mapping[str, CatalogueTopic]
    types: Mapping[str, Type]

    def of_topic(self, topic: str) -> list[Type]:
        return [each for each in self.types.values() if each.topic == topic]


def load(folder: Path) -> Catalogue:
    """Return the whole catalogue of a folder, or raise `Misconfigured` with what is wrong and where."""
    file = folder / FILE
    try:
        read = TypeAdapter(_File).validate_python(tomllib.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise _wrong(file, "it does not exist", f"make it, or name the folder that holds a {FILE}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _wrong(file, f"it cannot be read: {error}", "correct the file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _wrong(file, f"{where}: {first['msg']}", "correct the entry") from error
    topics = {name: CatalogueTopic(name=name, **vars(each)) for name, each in read.topics.items()}
    types = {name: _type(folder, name, each) for name, each in read.types.items()}
    catalogue = Catalogue(folder, read.title, read.text, topics, types)
    for problem in _problems(catalogue):
        raise _wrong(file, problem, "correct the entry")
    return catalogue


def _type(folder: Path, name: str, read: _TypeEntry) -> Type:
    if not _TYPE.fullmatch(name):
        raise _wrong(
            folder / FILE, f"{name!r} is not a valid name for a type", "use lower case words, joined by . _ or -"
        )
    file = folder / "avro" / f"{name}.avsc"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(file, f"the schema of {name} cannot be read: {error}", "put it there") from error
    made = Type(name=name, text=text, **vars(read))
    try:
        _ = made.schema
    except avro.BadSchema as error:
        raise _wrong(file, f"it is not a valid Avro schema: {error}", "correct it") from error
    return made


def _problems(catalogue: Catalogue) -> Iterator[str]:
    seen: dict[str, str] = {}
    for each in catalogue.types.values():
        if each.topic not in catalogue.topics:
            yield f"type {each.name} is for topic {each.topic}, which is not in the catalogue"
        if (other := seen.setdefault(each.subject, each.name)) != each.name:
            yield f"types {other} and {each.name} have the same record name {each.subject}"
        yield from _misfits(each)
    for name, topic in catalogue.topics.items():
        if not _TOPIC.fullmatch(name) or name in {".", ".."}:
            yield f"Kafka does not take {name!r} as a topic's name: use at most 249 letters, digits, dots, _ and -"
        if not catalogue.of_topic(name) and topic.deprecated is None:
            yield f"topic {name} has no types"


def _misfits(kind: Type) -> Iterator[str]:
    for n, sample in enumerate(kind.samples, 1):
        try:
            json_form.from_json(kind.schema, sample)
        except json_form.Misfit as error:
            yield f"sample {n} of type {kind.name} does not fit its schema: {error}"


def _wrong(file: Path, what: str, remedy: str) -> Misconfigured:
    return Misconfigured(f"the catalogue's {file.name}: {what}", setting="schemas.path", remedy=f"{remedy} ({file})")
