"""The cache: answers of a registry hold during its outage, also for a process that starts then."""

import json
from pathlib import Path

import pytest

from ferryman.runtime.errors import Unreachable
from ferryman.schemas.registry import UnknownSchema, content_id, open_registry
from ferryman.schemas.registry.cache import CachedRegistry
from ferryman.schemas.registry.local import FolderRegistry

SUBJECT = "shop.Placed"


def text(name: str = "id") -> str:
    return json.dumps({"type": "record", "name": SUBJECT, "fields": [{"name": name, "type": "string"}]})


class Counted:
    """A registry that can be away, and records what it is asked."""

    def __init__(self, **known: int) -> None:
        self.known = {text(name): number for name, number in known.items()}
        self.away = False
        self.asked: list[object] = []

    def schema(self, number: int) -> str:
        self._heard(number)
        for each, its in self.known.items():
            if its == number:
                return each
        raise UnknownSchema(f"no {number}")

    def lookup(self, subject: str, text: str) -> int | None:
        self._heard(text)
        return self.known.get(text) if subject == SUBJECT else None

    def register(self, subject: str, text: str) -> int:
        self._heard(text)
        return self.known.setdefault(text, max(self.known.values(), default=0) + 1)

    def objections(self, subject: str, text: str) -> list[str]:
        self._heard(text)
        return ["as always"]

    def insist(self, subject: str, level: str) -> None:
        self._heard(level)

    def _heard(self, what: object) -> None:
        self.asked.append(what)
        if self.away:
            raise Unreachable("nobody answers")


@pytest.fixture
def inner() -> Counted:
    return Counted(id=7, other=1234)


def test_a_known_schema_is_not_asked_for_again(inner: Counted) -> None:
    registry = CachedRegistry(inner)
    for _ in range(3):
        assert registry.schema(7) == text()
        assert registry.lookup(SUBJECT, text()) == 7
    assert len(inner.asked) == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_known_schemas_and_ids_stay_usable_during_an_outage(inner: Counted, tmp_path: Path, restarted: bool) -> None:
    registry = CachedRegistry(inner, tmp_path / "cache")
    registry.schema(7)
    registry.lookup(SUBJECT, text("other"))
    inner.away = True
    again = CachedRegistry(inner, tmp_path / "cache") if restarted else registry
    assert again.schema(7) == text()
    assert again.lookup(SUBJECT, text("other")) == 1234


def test_a_new_id_waits_for_the_registry_and_is_unknown_only_when_it_says_so(inner: Counted, tmp_path: Path) -> None:
    registry = CachedRegistry(inner, tmp_path)
    inner.away = True
    with pytest.raises(Unreachable):
        registry.schema(8)
    with pytest.raises(Unreachable):
        registry.lookup(SUBJECT, text())
    inner.away = False
    with pytest.raises(UnknownSchema):
        registry.schema(8)
    assert registry.lookup(SUBJECT, text()) == 7


def test_a_missing_schema_is_asked_for_again(inner: Counted, tmp_path: Path) -> None:
    registry = CachedRegistry(inner, tmp_path)
    assert registry.lookup(SUBJECT, text("new")) is None
    with pytest.raises(UnknownSchema):
        registry.schema(1235)
    inner.known[text("new")] = 1235
    assert registry.lookup(SUBJECT, text("new")) == 1235
    assert registry.schema(1235) == text("new")


def test_an_id_is_remembered_for_its_subject_only(inner: Counted, tmp_path: Path) -> None:
    registry = CachedRegistry(inner, tmp_path)
    assert registry.lookup(SUBJECT, text()) == 7
    assert registry.lookup("shop.Else", text()) is None


def test_a_registered_schema_is_known_without_asking(inner: Counted, tmp_path: Path) -> None:
    number = CachedRegistry(inner, tmp_path).register(SUBJECT, text("new"))
    inner.away = True
    again = CachedRegistry(inner, tmp_path)
    assert again.lookup(SUBJECT, text("new")) == number
    assert again.schema(number) == text("new")


def test_registering_replaces_the_answers_of_a_registry_that_was_set_up_again(inner: Counted, tmp_path: Path) -> None:
    before = CachedRegistry(inner, tmp_path)
    before.lookup(SUBJECT, text("other"))
    before.schema(7)
    anew = Counted(first=6)
    assert CachedRegistry(anew, tmp_path).register(SUBJECT, text("other")) == 7
    anew.away = True
    again = CachedRegistry(anew, tmp_path)
    assert again.lookup(SUBJECT, text("other")) == 7
    assert again.schema(7) == text("other")


def test_objections_and_levels_are_always_asked(inner: Counted) -> None:
    registry = CachedRegistry(inner)
    for _ in range(2):
        assert registry.objections(SUBJECT, text()) == ["as always"]
        registry.insist(SUBJECT, "FULL_TRANSITIVE")
    assert len(inner.asked) == 4


@pytest.mark.parametrize("place", ["a missing folder", "a file", "a read-only file system"])
def test_a_cache_folder_that_cannot_be_used_is_ignored(inner: Counted, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    where = {"a missing folder": tmp_path / "x" / "y", "a file": tmp_path / "file"}
    registry = CachedRegistry(inner, where.get(place, Path("/proc/ferryman")))
    assert registry.schema(7) == text()
    assert registry.lookup(SUBJECT, text()) == 7
    assert registry.register(SUBJECT, text("new")) == 1235


def cut(content: bytes) -> list[bytes]:
    return [content[:n] for n in range(len(content))]


GARBAGE = [b"", b"\0" * 20, b"\xff\xfe", b"null", b"[]", b"7", b'"7"', b"{}", b'{"subject": "shop.Placed"}']


def test_a_damaged_file_of_the_cache_is_asked_for_and_written_again(inner: Counted, tmp_path: Path) -> None:
    """The file may end at any byte: half of an id would be another id."""
    seen = CachedRegistry(inner, tmp_path)
    seen.schema(1234)
    seen.lookup(SUBJECT, text("other"))
    whole = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(whole) == 2
    for file, content in whole.items():
        for left in (*cut(content), *GARBAGE):
            file.write_bytes(left)
            again = CachedRegistry(inner, tmp_path)
            assert again.schema(1234) == text("other")
            assert again.lookup(SUBJECT, text("other")) == 1234
            assert file.read_bytes() == content


@pytest.mark.parametrize("number", ["true", "-1", "2147483648", '"1234"', "1.5", "null"])
def test_a_kept_number_that_is_not_a_valid_id_is_asked_for_again(inner: Counted, tmp_path: Path, number: str) -> None:
    CachedRegistry(inner, tmp_path).lookup(SUBJECT, text())
    (file,) = tmp_path.iterdir()
    file.write_text(f'{{"subject": "{SUBJECT}", "id": {number}}}')
    assert CachedRegistry(inner, tmp_path).lookup(SUBJECT, text()) == 7


def test_two_registries_share_a_cache_folder_but_no_ids(tmp_path: Path) -> None:
    for port in ("1", "2"):
        open_registry(f"http://me:secret@127.0.0.1:{port}/", cache=tmp_path / "cache")
    one, other = (
        open_registry(f"http://me:{secret}@127.0.0.1:{port}/", cache=tmp_path / "cache")
        for port, secret in (("1", "a"), ("2", "a"))
    )
    changed = open_registry("http://me:b@127.0.0.1:1", cache=tmp_path / "cache")
    assert isinstance(one, CachedRegistry)
    assert isinstance(other, CachedRegistry)
    assert isinstance(changed, CachedRegistry)
    assert one._folder != other._folder
    assert one._folder == changed._folder


def test_known_schemas_stay_usable_when_the_folder_is_gone(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    registry = CachedRegistry(FolderRegistry(tmp_path / "r"))
    number = registry.register(SUBJECT, text())
    (tmp_path / "r").rename(tmp_path / "elsewhere")
    assert number == content_id(text()) == registry.lookup(SUBJECT, text())
    assert registry.schema(number) == text()
    with pytest.raises(Unreachable):
        registry.schema(number + 1)
