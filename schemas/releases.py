"""Versions that were promised: each is kept with bytes that were written by it, and the next may not break them.

`released/TYPE/N.avsc` is the schema of version N, `N.json` has samples of it, as data and as the bytes that Avro made.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from ferryman.runtime.errors import Misconfigured, Permanent
from ferryman.schemas import avro, compatibility, natural
from ferryman.schemas.catalogue import Catalogue, Type


@dataclass(frozen=True, slots=True)
class Sample:
    """Data as JSON, and the bytes of its record."""

    data: Any
    record: bytes


@dataclass(frozen=True, slots=True)
class Release:
    """One version of one type."""

    type: str
    version: int
    text: str
    samples: Sequence[Sample]

    @property
    def schema(self) -> avro.Schema:
        return avro.parse(self.text)


@dataclass(frozen=True, slots=True)
class Problem:
    """What the gate refuses, and of which type."""

    type: str
    version: int | None
    what: str

    def __str__(self) -> str:
        against = f" (against version {self.version})" if self.version else ""
        return f"{self.type}: {self.what}{against}"


def of(catalogue: Catalogue, name: str) -> list[Release]:
    """The versions of a type, the oldest first."""
    folder = catalogue.folder / "released" / name
    files = sorted(folder.glob("*.avsc"), key=lambda file: int(file.stem)) if folder.is_dir() else []
    return [_read(name, file) for file in files]


def every(catalogue: Catalogue) -> Iterator[Release]:
    """Of all types, those too that are not in the catalogue any more."""
    folder = catalogue.folder / "released"
    for each in sorted(folder.iterdir()) if folder.is_dir() else []:
        yield from of(catalogue, each.name)


def gate(catalogue: Catalogue) -> list[Problem]:
    """What may not be released as it is."""
    found = [problem for kind in catalogue.types.values() for problem in _of_type(catalogue, kind)]
    gone = {each.type for each in every(catalogue)} - set(catalogue.types)
    return [*found, *(Problem(name, None, "it was released and is gone: mark it deprecated instead") for name in gone)]


def objections(catalogue: Catalogue, subject: str, text: str) -> list[str]:
    """Why a schema may not stand beside what was released under its name."""
    kind = catalogue.by_subject.get(subject)
    older = of(catalogue, kind.name) if kind else []
    return [each for one in older for each in compatibility.both_ways(avro.parse(text), one.schema)]


def release(catalogue: Catalogue, kind: Type) -> bool:
    """Freezes the current version; whether it was not frozen before."""
    if problems := _of_type(catalogue, kind):
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


def _of_type(catalogue: Catalogue, kind: Type) -> list[Problem]:
    older = of(catalogue, kind.name)
    newest = older[-1].version if older else 0
    found = [Problem(kind.name, None, what) for what in _unable_to_evolve(kind)]
    if newest > kind.version:
        found.append(Problem(kind.name, newest, f"the catalogue says version {kind.version}, and {newest} is released"))
    if kind.version > newest + 1:
        found.append(Problem(kind.name, None, f"version {kind.version} comes before {newest + 1} was released"))
    for each in older:
        if each.version == kind.version and avro.plain(each.text) != avro.plain(kind.text):
            found.append(
                Problem(kind.name, each.version, f"it changed since its release: say version = {kind.version + 1}")
            )
        found += [Problem(kind.name, each.version, what) for what in compatibility.both_ways(kind.schema, each.schema)]
        found += [Problem(kind.name, each.version, what) for what in _misread(kind, each)]
    return found


def _unable_to_evolve(kind: Type) -> Iterator[str]:
    """What the next version could not change without breaking this one."""
    for path, definition in avro.walk(kind.schema):
        if not definition.get("doc") and definition["type"] in {"record", "enum"}:
            yield f"{path} has no doc"
        if definition["type"] == "enum" and "default" not in definition:
            yield f"{path} has no default: its readers would fail at the next symbol"
        for field in definition.get("fields", ()):
            if not field.get("doc"):
                yield f"{path}.{field['name']} has no doc"


def _misread(kind: Type, old: Release) -> Iterator[str]:
    """Decodes what was written then, as we would now: every field that is still there must say the same."""
    from fastavro import schemaless_reader

    for n, sample in enumerate(old.samples, 1):
        try:
            data = schemaless_reader(BytesIO(sample.record), old.schema, kind.schema)
            now = natural.write(kind.schema, data)
        except Exception as error:  # whatever a library says of bytes that it cannot read
            yield f"sample {n} cannot be read any more: {type(error).__name__} {error}"
            continue
        for name, value in sample.data.items():
            if name in now and now[name] != value and not _grew(value, now[name]):
                yield f"field {name} of sample {n} is read otherwise than it was written"


def _grew(old: Any, new: Any) -> bool:
    """Whether a record inside has more fields now, and says the same in those that it had."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and (new[name] == value or _grew(value, new[name])) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(a == b or _grew(a, b) for a, b in zip(old, new, strict=True))
    return False


def _read(name: str, file: Path) -> Release:
    try:
        samples = [
            Sample(each["data"], base64.b64decode(each["avro"], validate=True))
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
    schemaless_writer(stream, kind.schema, natural.read(kind.schema, sample))
    return stream.getvalue()
