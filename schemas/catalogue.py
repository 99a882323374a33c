"""The catalogue: which topics there are, which types travel in them, and what is promised about each."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ferryman.runtime.errors import Misconfigured
from ferryman.schemas import avro, natural

FILE = "catalogue.toml"
AVRO = "application/avro"
JSON = "application/json"

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TYPE = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _Topic(_Part):
    owner: str
    text: str
    key: str
    order: Literal["key", "none"] = "key"
    duplicates: str = "At least once: a duplicate has the same ce_id and the same bytes."
    partitions: int = Field(6, ge=1, le=10_000)
    retention_hours: float = Field(168, gt=0)
    max_message_bytes: int = Field(1_048_588, ge=1_024)
    replay: str = "The owner can publish entries of the last day once more, with header x-replay and the same ce_id."
    deprecated: str | None = None


class _Type(_Part):
    topic: str
    kind: Literal["command", "result", "event"]
    version: int = Field(1, ge=1)
    content_type: Literal["application/avro", "application/json"] = "application/avro"
    pii: Literal["none", "personal", "secret"] = "none"
    deprecated: str | None = None
    samples: list[dict[str, Any]] = Field(min_length=1)


class _File(_Part):
    title: str
    text: str
    topics: dict[str, _Topic]
    types: dict[str, _Type]


@dataclass(frozen=True)
class Topic:
    """What is promised about a topic."""

    name: str
    owner: str
    text: str
    key: str
    order: str
    duplicates: str
    partitions: int
    retention_hours: float
    max_message_bytes: int
    replay: str
    deprecated: str | None

    @property
    def retention_ms(self) -> int:
        return round(self.retention_hours * 3_600_000)


@dataclass(frozen=True)
class Type:
    """A kind of message, its schema as it is now, and samples of it as JSON says them."""

    name: str
    topic: str
    kind: str
    version: int
    content_type: str
    pii: str
    deprecated: str | None
    samples: Sequence[Mapping[str, Any]] = field(repr=False)
    text: str = field(repr=False)
    """The schema as its file has it."""

    @cached_property
    def schema(self) -> avro.Schema:
        return avro.parse(self.text)

    @property
    def subject(self) -> str:
        """Under which the registry has it: the record's full name, because a topic holds several types."""
        return str(self.schema["name"])

    @property
    def json_samples(self) -> list[Any]:
        """All of them, with every field."""
        return [natural.write(self.schema, natural.read(self.schema, each)) for each in self.samples]

    @property
    def shows_values(self) -> bool:
        """Whether an error may say what a value was."""
        return self.pii == "none"


@dataclass(frozen=True)
class Catalogue:
    """What one folder says."""

    folder: Path
    title: str
    text: str
    topics: Mapping[str, Topic]
    types: Mapping[str, Type]

    def of_topic(self, topic: str) -> list[Type]:
        return [each for each in self.types.values() if each.topic == topic]

    @cached_property
    def by_subject(self) -> Mapping[str, Type]:
        return {each.subject: each for each in self.types.values()}


def load(folder: Path) -> Catalogue:
    """Reads a catalogue whole, or says what is wrong with it, and where."""
    file = folder / FILE
    try:
        read = _File.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise _wrong(file, "it does not exist", f"make it, or name the folder that holds a {FILE}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _wrong(file, f"it cannot be read: {error}", "correct the file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _wrong(file, f"{where}: {first['msg']}", "correct the entry") from error
    topics = {name: Topic(name=name, **dict(each)) for name, each in read.topics.items()}
    types = {name: _type(folder, name, each) for name, each in read.types.items()}
    catalogue = Catalogue(folder, read.title, read.text, topics, types)
    for problem in _problems(catalogue):
        raise _wrong(file, problem, "correct the entry")
    return catalogue


def avsc(folder: Path, name: str) -> Path:
    """Where the schema of a type stands."""
    return folder / "avro" / f"{name}.avsc"


def _type(folder: Path, name: str, read: _Type) -> Type:
    if not _TYPE.fullmatch(name):
        raise _wrong(folder / FILE, f"type {name!r} is no name", "use lower case words, joined by . _ or -")
    file = avsc(folder, name)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(file, f"the schema of {name} cannot be read: {error}", "put it there") from error
    made = Type(name=name, **dict(read), text=text)
    try:
        _ = made.schema
    except avro.BadSchema as error:
        raise _wrong(file, f"it is no Avro schema: {error}", "correct it") from error
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
            yield f"topic {name!r} is no name that Kafka takes: letters, digits, . _ - and at most 249 of them"
        if not catalogue.of_topic(name) and topic.deprecated is None:
            yield f"topic {name} has no types"


def _misfits(kind: Type) -> Iterator[str]:
    for n, sample in enumerate(kind.samples, 1):
        try:
            natural.read(kind.schema, sample)
        except natural.Misfit as error:
            yield f"sample {n} of type {kind.name} does not fit its schema: {error}"


def _wrong(file: Path, what: str, remedy: str) -> Misconfigured:
    return Misconfigured(f"the catalogue's {file.name}: {what}", setting="schemas.path", remedy=f"{remedy} ({file})")
