"""Released versions: each is kept with bytes that it wrote, no later version may break them, and a registry has them.

`released/TYPE/N.avsc` is the schema of version N; `N.json` has samples of it, as data and as the bytes that Avro made.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from ferryman.runtime.errors import Misconfigured, Permanent
from ferryman.schemas import avro, compatibility, json_form
from ferryman.schemas.catalogue import AVRO, Catalogue, Type
from ferryman.schemas.registry import SchemaRegistry

LEVEL = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class Release:
    """A released version of one type."""

    type: str
    version: int
    text: str
    samples: Sequence[tuple[Any, bytes]]
    """Its samples, each as JSON and as the bytes of its record."""

    @property
    def schema(self) -> avro.Schema:
        return avro.parse(self.text)


@dataclass(frozen=True, slots=True)
class ReleaseProblem:
    """A reason why a type may not be released, and the version it breaks."""

    type: str
    version: int | None
    problem: str

    def __str__(self) -> str:
        against = f" (against version {self.version})" if self.version else ""
        return f"{self.type}: {self.problem}{against}"


def of(catalogue: Catalogue, name: str) -> list[Release]:
    """Return the released versions of a type, the oldest first."""
    folder = catalogue.folder / "released" / name
    files = sorted(folder.glob("*.avsc"), key=lambda file: int(file.stem)) if folder.is_dir() else []
    return [_read(name, file) for file in files]


def every(catalogue: Catalogue) -> Iterator[Release]:
    """Yield the released versions of all types, also of types that are no longer in the catalogue."""
    folder = catalogue.folder / "released"
    for each in sorted(folder.iterdir()) if folder.is_dir() else []:
        yield from of(catalogue, each.name)


def gate(catalogue: Catalogue) -> list[ReleaseProblem]:
    """Return the reasons why the catalogue may not be released as it is."""
    found = [problem for kind in catalogue.types.values() for problem in _problems(catalogue, kind)]
    gone = sorted({each.type for each in every(catalogue)} - set(catalogue.types))
    return [*found, *(ReleaseProblem(name, None, "it was released and is gone: mark it deprecated") for name in gone)]


def release(catalogue: Catalogue, kind: Type) -> bool:
    """Freeze the current version. Return False if it was released before."""
    if problems := _problems(catalogue, kind):
        raise Permanent("; ".join(map(str, problems)), remedy="correct the schema, then release it")
    folder = catalogue.folder / "released" / kind.name
    if (folder / f"{kind.version}.avsc").exists():
        return False
    samples = [
        {"data": shown, "avro": base64.b64encode(_bytes(kind, sample)).decode()}
        for shown, sample in zip(kind.json_samples, kind.samples, strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{kind.version}.json").write_text(json.dumps(samples, indent=2, ensure_ascii=False) + "\n")
    (folder / f"{kind.version}.avsc").write_text(kind.text)
    return True


@dataclass(frozen=True, slots=True)
class SchemaAtRegistry:
    """A type's schema at the registry: registered, refused for its objections, or new."""

    kind: Type
    id: int | None
    objections: Sequence[str] = ()
    new: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.kind.name, "subject": self.kind.subject, "id": self.id, "objections": self.objections,
            "new": self.new,
        }  # fmt: skip

    def row(self) -> tuple[str, str, str, str]:
        status = "registered" if self.new else "is new" if self.id is None else "is registered already"
        if self.objections:
            status = f"the registry objects: {'; '.join(self.objections)}"
        number = "-" if self.id is None else str(self.id)
        return self.kind.name, self.kind.subject, number, status


def plan(catalogue: Catalogue, registry: SchemaRegistry) -> list[SchemaAtRegistry]:
    """Return what is registered, what is new, and what the registry objects to. JSON types need no registry."""
    found = []
    for kind in catalogue.types.values():
        if kind.content_type == AVRO:
            number = registry.lookup(kind.subject, kind.text)
            objections = registry.objections(kind.subject, kind.text) if number is None else ()
            found.append(SchemaAtRegistry(kind, number, objections))
    return found


def publish(planned: Sequence[SchemaAtRegistry], registry: SchemaRegistry) -> list[SchemaAtRegistry]:
    """Make the registry insist on compatibility, and register what is new."""
    for each in planned:
        registry.insist(each.kind.subject, LEVEL)
    return [
        replace(each, id=registry.register(each.kind.subject, each.kind.text), new=True) if each.id is None else each
        for each in planned
    ]


def _problems(catalogue: Catalogue, kind: Type) -> list[ReleaseProblem]:
    older = of(catalogue, kind.name)
    newest = older[-1].version if older else 0
    found: list[tuple[int | None, str]] = [(None, what) for what in _unable_to_evolve(kind)]
    if newest > kind.version:
        found.append((newest, f"the catalogue says version {kind.version}, and {newest} is released"))
    if kind.version > newest + 1:
        found.append((None, f"version {kind.version} comes before {newest + 1} was released"))
    for each in older:
        if each.version == kind.version and not avro.same(each.text, kind.text):
            found.append((each.version, f"it changed since its release: set version = {kind.version + 1}"))
        found += [(each.version, what) for what in compatibility.both_ways(kind.schema, each.schema)]
        found += [(each.version, what) for what in _misread(kind, each)]
    return [ReleaseProblem(kind.name, version, what) for version, what in found]


def _unable_to_evolve(kind: Type) -> Iterator[str]:
    """Yield what would make the next version break this one: missing docs and enum defaults."""
    for path, definition in avro.walk(kind.schema, kind.subject.rpartition(".")[2]):
        if not definition.get("doc") and definition["type"] in {"record", "enum"}:
            yield f"{path} has no doc"
        if definition["type"] == "enum" and "default" not in definition:
            yield f"{path} has no default: its readers would fail at the next symbol"
        for field in definition.get("fields", ()):
            if not field.get("doc"):
                yield f"{path}.{field['name']} has no doc"


def _misread(kind: Type, old: Release) -> Iterator[str]:
    """Decode the released bytes with the current schema, and yield every field whose value differs."""
    from fastavro import schemaless_reader

    for n, (sample, record) in enumerate(old.samples, 1):
        try:
            data = schemaless_reader(BytesIO(record), old.schema, kind.schema)
            now = json_form.to_json(kind.schema, data)
        except Exception as error:  # the library may raise anything for bytes that it cannot read
            yield f"sample {n} cannot be read any more: {type(error).__name__} {error}"
            continue
        for name, value in sample.items():
            if name in now and not _kept(value, now[name]):
                yield f"field {name} of sample {n} is not read as it was written"


def _kept(old: Any, new: Any) -> bool:
    """Return True if the values are equal, but for fields that nested records have in addition now."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and _kept(value, new[name]) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_kept, old, new))
    return bool(old == new)


def _read(name: str, file: Path) -> Release:
    try:
        samples = [
            (each["data"], base64.b64decode(each["avro"], validate=True))
            for each in json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        ]
        made = Release(name, int(file.stem), file.read_text(encoding="utf-8"), samples)
        _ = made.schema
    except (OSError, ValueError, KeyError, TypeError, avro.BadSchema) as error:
        raise Misconfigured(
            f"version {file.stem} of {name} cannot be read: {error}", setting="schemas.path",
            remedy=f"a released version is never changed: restore {file} and the .json beside it",
        ) from error  # fmt: skip
    return made


def _bytes(kind: Type, sample: Any) -> bytes:
    from fastavro import schemaless_writer

    stream = BytesIO()
    schemaless_writer(stream, kind.schema, json_form.from_json(kind.schema, sample))
    return stream.getvalue()
