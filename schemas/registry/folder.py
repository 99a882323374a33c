"""A folder as a registry, for machines that share one: ids follow from the schemas, and files are written whole.

Two that register at the same moment are compared with what is there, not with each other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ferryman.runtime.errors import Misconfigured, Transient, Unreachable
from ferryman.schemas import avro, compatibility
from ferryman.schemas.registry import Refused, UnknownSchema, answers
from ferryman.schemas.registry.numbers import stable
from ferryman.schemas.registry.whole import write_whole


class FolderRegistry:
    """`ids/NUMBER.avsc` has each schema once; `subjects/SUBJECT/NUMBER` says whose it is."""

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
        if not _intact(text, number):
            raise Transient(
                f"{file} is damaged", setting="registry_url", remedy="restore it, or `ferryman schemas publish`"
            )  # fmt: skip
        return text

    def lookup(self, subject: str, text: str) -> int | None:
        number = stable(text)
        with self._usable():
            self._must_be_there()
            there = (self._subject(subject) / str(number)).exists()
        return number if there and self._has(number, text) else None

    def register(self, subject: str, text: str) -> int:
        answers.must_be_a_schema(text)
        if objections := self.objections(subject, text):
            raise Refused(f"{subject} would break its readers: {'; '.join(objections)}", remedy="make it compatible")
        number = stable(text)
        of_subject = self._subject(subject) / str(number)
        with self._usable():
            if not self._has(number, text):
                write_whole(self._schema(number), text)
            if not of_subject.exists():
                write_whole(of_subject, "")
        return number

    def objections(self, subject: str, text: str) -> list[str]:
        if flaws := answers.flaws(text):
            return flaws
        if self.lookup(subject, text) is not None:  # older perhaps than others that are there
            return []
        older = [avro.parse(self.schema(number)) for number in self._numbers(subject) if number != stable(text)]
        return [each for one in older for each in compatibility.both_ways(avro.parse(text), one)]

    def insist(self, subject: str, level: str) -> None:
        """It always does, on what FULL_TRANSITIVE says."""

    def _has(self, number: int, text: str) -> bool:
        """Not where its file is damaged, so that publishing writes it anew."""
        try:
            there = self.schema(number)
        except (UnknownSchema, Transient):
            return False
        if avro.plain(there) != avro.plain(text):
            raise Refused(f"another schema has the id {number} already", remedy="change a word of its doc")
        return True

    def _numbers(self, subject: str) -> list[int]:
        folder = self._subject(subject)
        with self._usable():
            self._must_be_there()
            names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())  # not what is being written

    def _schema(self, number: int) -> Path:
        return self._folder / "ids" / f"{number}.avsc"

    def _subject(self, subject: str) -> Path:
        return self._folder / "subjects" / quote(subject, safe="")

    def _must_be_there(self) -> None:
        if not self._folder.is_dir():
            raise self._away("there is no such folder")

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
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


def _intact(text: str, number: int) -> bool:
    try:
        return stable(text) == number
    except Refused:
        return False
