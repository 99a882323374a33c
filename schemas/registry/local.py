"""Registries without a server: a folder that machines share, and the catalogue itself. Ids follow from the schemas."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from ferryman.runtime.errors import Misconfigured, Transient, Unreachable
from ferryman.schemas import avro, compatibility, releases
from ferryman.schemas.catalogue import Catalogue
from ferryman.schemas.registry import SchemaRefused, UnknownSchema, content_id, flaws, refuse_flaws


class CatalogueRegistry:
    """The catalogue as its own registry: it knows every current and every released schema.

    Nothing has to run, and every process with the same catalogue knows the same ids. A process with an older catalogue
    does not know what a newer one writes: where versions are mixed for longer than a deployment, use a registry.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    @cached_property
    def _texts(self) -> dict[int, str]:
        found: dict[int, str] = {}
        released = [each.text for each in releases.every(self._catalogue)]
        for text in (*released, *(each.text for each in self._catalogue.types.values())):
            number = content_id(text)
            if not avro.same(found.setdefault(number, text), text):
                raise SchemaRefused(f"two schemas have the id {number}", remedy="change a word in the doc of the newer")
        return found

    def schema(self, number: int) -> str:
        try:
            return self._texts[number]
        except KeyError:
            raise UnknownSchema(f"the catalogue has no schema with id {number}") from None

    def lookup(self, subject: str, text: str) -> int | None:
        number = content_id(text)
        there = self._texts.get(number)
        return number if there and avro.same(there, text) and avro.parse(there)["name"] == subject else None


class FolderRegistry:
    """A folder: `ids/NUMBER.avsc` holds each schema once, and `subjects/SUBJECT/NUMBER` says whose it is.

    Files are written whole. Two that register at the same moment are compared with what is there, not with each other.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def schema(self, number: int) -> str:
        file = self._schema(number)
        with self._usable():
            try:
                text = file.read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                if not file.parent.is_dir():  # a mount point without its mount looks like this too
                    raise self._away("it is not there, or nothing was ever registered in it") from None
                raise UnknownSchema(f"the registry {self._folder} has no schema with id {number}") from None
        with suppress(SchemaRefused):
            if content_id(text) == number:
                return text
        raise Transient(
            f"{file} is damaged", setting="registry_url", remedy="restore it, or `ferryman schemas publish`"
        )

    def lookup(self, subject: str, text: str) -> int | None:
        number = content_id(text)
        with self._usable():
            there = (self._subject(subject) / str(number)).exists()
        return number if there and self._has(number, text) else None

    def register(self, subject: str, text: str) -> int:
        refuse_flaws(text)
        if objections := self.objections(subject, text):
            raise SchemaRefused(
                f"{subject} would break its readers: {'; '.join(objections)}", remedy="make it compatible"
            )
        number = content_id(text)
        of_subject = self._subject(subject) / str(number)
        with self._usable():
            if not self._has(number, text):
                write_whole(self._schema(number), text)
            if not of_subject.exists():
                write_whole(of_subject, "")
        return number

    def objections(self, subject: str, text: str) -> list[str]:
        if found := flaws(text):
            return found
        if self.lookup(subject, text) is not None:  # it may be older than others that are there
            return []
        older = [avro.parse(self.schema(number)) for number in self._numbers(subject) if number != content_id(text)]
        return [each for one in older for each in compatibility.both_ways(avro.parse(text), one)]

    def insist(self, subject: str, level: str) -> None:
        """Do nothing: FULL_TRANSITIVE always holds."""

    def _has(self, number: int, text: str) -> bool:
        """Return False for a damaged file too, so that publishing writes it again."""
        try:
            there = self.schema(number)
        except (UnknownSchema, Transient):
            return False
        if not avro.same(there, text):
            raise SchemaRefused(f"another schema has the id {number} already", remedy="change a word of its doc")
        return True

    def _numbers(self, subject: str) -> list[int]:
        folder = self._subject(subject)
        with self._usable():
            names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())  # files that are being written have other names

    def _schema(self, number: int) -> Path:
        return self._folder / "ids" / f"{number}.avsc"

    def _subject(self, subject: str) -> Path:
        return self._folder / "subjects" / quote(subject, safe="")

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            if not self._folder.is_dir():
                raise self._away("the folder does not exist")
            yield
        except PermissionError as error:
            raise Misconfigured(
                f"the registry {self._folder} cannot be used: {error.strerror}", setting="registry_url",
                remedy="let this user into the folder",
            ) from error  # fmt: skip
        except OSError as error:
            raise self._away(error.strerror or str(error)) from error

    def _away(self, why: str) -> Unreachable:
        return Unreachable(
            f"the registry {self._folder} cannot be used: {why}", setting="registry_url",
            remedy="make the folder, or mount it",
        )  # fmt: skip


def write_whole(file: Path, text: str) -> None:
    """Write a file that readers see whole or not at all, also after a power cut. The last of several writers wins."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".new-{uuid4().hex}")
    try:
        with new.open("x", encoding="utf-8") as stream:  # with the rights that the umask gives, for others to read
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    finally:
        with suppress(OSError):
            new.unlink()
