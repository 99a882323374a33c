"""Registries without a server: a folder and the catalogue itself; and the registry that a URL means."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ferryman import use_schemas
from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient, Unreachable
from ferryman.schemas import active, releases
from ferryman.schemas.catalogue import Catalogue
from ferryman.schemas.registry import SchemaRefused, SchemaRegistry, UnknownSchema, content_id, local, open_registry
from ferryman.schemas.registry.local import CatalogueRegistry, FolderRegistry
from support import catalogues
from support.registries import NOBODY, schema, version


@pytest.fixture
def subject() -> str:
    return f"shop.Of{uuid4().hex}"


def folder_at(path: Path) -> FolderRegistry:
    path.mkdir(exist_ok=True)
    return FolderRegistry(path)


def test_the_same_schema_has_the_same_id_in_every_folder(tmp_path: Path, subject: str) -> None:
    one, other = folder_at(tmp_path / "one"), folder_at(tmp_path / "other")
    other.register(f"{subject}Else", version(f"{subject}Else", 3))
    assert one.register(subject, version(subject, 1)) == other.register(subject, version(subject, 1))


def test_concurrent_registrations_get_one_id_and_leave_whole_files(tmp_path: Path, subject: str) -> None:
    """Several processes register, each with threads."""
    texts = [schema(subject, catalogues.field("n", "int", default=n)) for n in range(3)]
    folder_at(tmp_path / "r")
    program = (
        "import json, sys, pathlib\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from ferryman.schemas.registry.local import FolderRegistry\n"
        "folder, subject, texts = json.load(sys.stdin)\n"
        "registry = FolderRegistry(pathlib.Path(folder))\n"
        "with ThreadPoolExecutor(6) as pool:\n"
        "    print(json.dumps(list(pool.map(lambda n: registry.register(subject, texts[n % 3]), range(60)))))\n"
    )
    said = json.dumps([str(tmp_path / "r"), subject, texts])
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(subprocess.run, [sys.executable, "-c", program], input=said, text=True, capture_output=True)
            for _ in range(3)
        ]
        done = [run.result() for run in runs]
    for each in done:
        assert each.returncode == 0, each.stderr
        assert json.loads(each.stdout) == [content_id(texts[n % 3]) for n in range(60)]
    files = sorted(file.relative_to(tmp_path / "r") for file in (tmp_path / "r").rglob("*") if file.is_file())
    ids = sorted(map(content_id, texts))
    assert {str(file) for file in files} == {
        *(f"ids/{n}.avsc" for n in ids), *(f"subjects/{subject}/{n}" for n in ids)
    }  # fmt: skip
    for text in texts:
        assert (tmp_path / "r" / "ids" / f"{content_id(text)}.avsc").read_text() == text


def test_other_users_may_read_the_files(tmp_path: Path, subject: str) -> None:
    number = folder_at(tmp_path / "r").register(subject, version(subject, 1))
    assert (tmp_path / "r" / "ids" / f"{number}.avsc").stat().st_mode & 0o044 == 0o044


def ask_all(registry: SchemaRegistry, subject: str, number: int) -> Iterator[FerrymanError]:
    asks: list[Callable[[], Any]] = [
        lambda: registry.schema(number),
        lambda: registry.lookup(subject, version(subject, 1)),
        lambda: registry.objections(subject, version(subject, 1)),
        lambda: registry.register(subject, version(subject, 1)),
    ]
    for ask in asks:
        with pytest.raises(FerrymanError) as raised:
            ask()
        yield raised.value


def test_a_folder_that_vanished_is_unreachable_and_its_schemas_are_not_unknown(tmp_path: Path, subject: str) -> None:
    """Recovery needs no hand edit (N11): messages written while it was there must not be rejected."""
    registry = folder_at(tmp_path / "r")
    number = registry.register(subject, version(subject, 1))
    (tmp_path / "r").rename(tmp_path / "elsewhere")
    for error in ask_all(registry, subject, number):
        assert isinstance(error, Unreachable)
        assert (error.setting, error.remedy) == ("registry_url", "make the folder, or mount it")
    assert not (tmp_path / "r").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "r")
    assert registry.schema(number)


def test_a_mount_point_without_its_mount_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="nothing was ever registered"):
        folder_at(tmp_path / "r").schema(7)


def test_a_file_in_place_of_the_folder_is_unreachable(tmp_path: Path, subject: str) -> None:
    (tmp_path / "r").write_text("")
    for error in ask_all(FolderRegistry(tmp_path / "r"), subject, 7):
        assert isinstance(error, Unreachable)


def test_a_folder_without_permission_is_a_misconfiguration(
    tmp_path: Path, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = folder_at(tmp_path / "r")
    number = registry.register(subject, version(subject, 1))

    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("read_text", "is_dir", "exists"):
        monkeypatch.setattr(Path, name, forbidden)
    for error in ask_all(registry, subject, number):
        assert isinstance(error, Misconfigured)
        assert error.remedy == "let this user into the folder"


@pytest.mark.parametrize("left", ["", "{", '{"type": "record"', "\0\0\0", '{"type": "string"}'])
def test_a_damaged_file_is_a_transient_error_and_registering_writes_it_again(
    tmp_path: Path, subject: str, left: str
) -> None:
    """The id follows from the intact content, so the file is never taken for another schema."""
    registry = folder_at(tmp_path / "r")
    number = registry.register(subject, version(subject, 1))
    file = tmp_path / "r" / "ids" / f"{number}.avsc"
    file.write_text(left)
    with pytest.raises(Transient, match="is damaged"):
        registry.schema(number)
    file.write_bytes(version(subject, 2).encode())
    with pytest.raises(Transient, match="is damaged"):
        registry.schema(number)
    assert registry.lookup(subject, version(subject, 1)) is None, "publishing registers what is not there"
    assert registry.register(subject, version(subject, 1)) == number
    assert registry.schema(number) == version(subject, 1)


def test_two_schemas_that_would_have_one_id_are_refused(
    tmp_path: Path, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is rare, one in two thousand million, but it must never be silent."""
    monkeypatch.setattr(local, "content_id", lambda _: 7)
    registry = folder_at(tmp_path / "r")
    assert registry.register(subject, version(subject, 1)) == 7
    for ask in (registry.lookup, registry.register):
        with pytest.raises(SchemaRefused, match="the id 7 already"):
            ask(subject, version(subject, 2))
    assert registry.lookup(f"{subject}Else", version(subject, 2)) is None
    with pytest.raises(SchemaRefused, match="two schemas have the id 7"):
        CatalogueRegistry(catalogue(tmp_path / "c")).schema(7)


def test_a_subject_stays_in_its_folder(tmp_path: Path, subject: str) -> None:
    registry = folder_at(tmp_path / "r")
    registry.register("../../out", version(subject, 1))
    assert registry.lookup("../../out", version(subject, 1))
    assert [file.name for file in tmp_path.iterdir()] == ["r"]


# The catalogue


def catalogue(place: Path) -> Catalogue:
    """Return a catalogue with one type in its second version; the first is released."""
    first = catalogues.made(place)
    releases.release(first, first.types["order.placed"])
    fields = [*catalogues.PLACED["fields"], catalogues.field("channel", "string", default="web")]
    return catalogues.made(place, catalogues.record(*fields), version=2)


def test_the_catalogue_knows_current_and_released_schemas_by_the_ids_of_a_folder(tmp_path: Path) -> None:
    known = catalogue(tmp_path / "c")
    registry, kind = CatalogueRegistry(known), known.types["order.placed"]
    old = releases.of(known, "order.placed")[0].text
    for n, text in enumerate((old, kind.text)):
        number = registry.lookup(kind.subject, text)
        assert number == folder_at(tmp_path / f"{n}").register("x.Y", text)
        assert number
        assert registry.schema(number) == text
    assert registry.lookup("shop.Else", old) is None
    assert registry.lookup("shop.Placed", version("shop.Placed", 1)) is None
    with pytest.raises(UnknownSchema):
        registry.schema(NOBODY)


# The registry that a URL means


def test_without_a_url_the_catalogue_is_the_registry(tmp_path: Path) -> None:
    catalogue(tmp_path)
    assert isinstance(use_schemas(tmp_path).registry, CatalogueRegistry)
    active.forget()


@pytest.mark.parametrize("form", ["file://{}", "file://localhost{}", "file:{}"])
def test_a_file_url_is_a_folder(tmp_path: Path, subject: str, form: str) -> None:
    (tmp_path / "a folder").mkdir()
    url = form.format((tmp_path / "a folder").as_uri().removeprefix("file://"))
    open_registry(url).register(subject, version(subject, 1))
    assert (tmp_path / "a folder" / "subjects" / subject).is_dir()


@pytest.mark.parametrize("url", ["file:", "file://", "file://folder", "file://server/folder", "file:folder"])
def test_a_file_url_without_a_folder_is_a_misconfiguration(url: str) -> None:
    with pytest.raises(Misconfigured, match="file:///folder"):
        open_registry(url)
