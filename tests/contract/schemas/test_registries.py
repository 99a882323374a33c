"""One suite for every registry: a server and a folder, each with and without a cache."""

import json
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from ferryman.schemas import avro
from ferryman.schemas.registry import SchemaRefused, SchemaRegistry, UnknownSchema
from ferryman.schemas.registry.cache import CachedRegistry
from ferryman.schemas.registry.confluent import ConfluentRegistry
from ferryman.schemas.registry.local import FolderRegistry
from support.registries import BAD, NOBODY, incompatible, version


@pytest.fixture
def subject() -> str:
    return f"shop.Of{uuid4().hex}"


@pytest.fixture(params=["server", "folder", "cached folder", "cached server"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> SchemaRegistry:
    kind: str = request.param
    plain: SchemaRegistry
    if kind.endswith("folder"):
        (tmp_path / "registry").mkdir()
        plain = FolderRegistry(tmp_path / "registry")
    else:
        url = request.getfixturevalue("ferryman_registry")
        if urlsplit(url).scheme == "file":
            pytest.skip("there is no real registry here")
        plain = ConfluentRegistry(url)
    return CachedRegistry(plain, tmp_path / "cache") if kind.startswith("cached") else plain


def test_a_registered_schema_is_returned_by_its_id(registry: SchemaRegistry, subject: str) -> None:
    number = registry.register(subject, version(subject, 1))
    assert 0 < number < 2**31
    assert avro.parse(registry.schema(number)) == avro.parse(version(subject, 1)), "the text may differ in spelling"


def test_registering_again_gives_the_same_id(registry: SchemaRegistry, subject: str) -> None:
    text = version(subject, 1)
    number = registry.register(subject, text)
    assert registry.register(subject, text) == number
    assert registry.register(subject, json.dumps(json.loads(text), separators=(",", ":"))) == number


def test_an_older_version_is_registered_again_after_a_newer_one(registry: SchemaRegistry, subject: str) -> None:
    """A rollback does this."""
    registry.insist(subject, "FULL_TRANSITIVE")
    old, _ = (registry.register(subject, version(subject, n)) for n in (1, 2))
    assert registry.objections(subject, version(subject, 1)) == []
    assert registry.register(subject, version(subject, 1)) == old


def test_a_schema_is_found_only_under_the_subject_it_was_registered_for(registry: SchemaRegistry, subject: str) -> None:
    text = version(subject, 1)
    assert registry.lookup(subject, text) is None
    number = registry.register(subject, text)
    assert registry.lookup(subject, text) == number
    assert registry.lookup(subject, json.dumps(json.loads(text))) == number
    assert registry.lookup(subject, version(subject, 2)) is None
    assert registry.lookup(f"{subject}Else", text) is None


def test_a_schema_registered_for_two_subjects_is_found_under_both(registry: SchemaRegistry, subject: str) -> None:
    text = version(subject, 1)
    number = registry.register(subject, text)
    assert registry.register(f"{subject}Else", text) == number
    assert registry.lookup(f"{subject}Else", text) == number


@pytest.mark.parametrize("number", [NOBODY, 2**31, 2**32 - 1])
def test_an_id_without_a_schema_is_unknown(registry: SchemaRegistry, subject: str, number: int) -> None:
    registry.register(subject, version(subject, 1))
    with pytest.raises(UnknownSchema, match=str(number)):
        registry.schema(number)


def test_the_first_schema_of_a_subject_meets_no_objections(registry: SchemaRegistry, subject: str) -> None:
    registry.insist(subject, "FULL_TRANSITIVE")
    assert registry.objections(subject, version(subject, 1)) == []


def test_an_incompatible_schema_meets_objections_and_is_refused(registry: SchemaRegistry, subject: str) -> None:
    registry.register(subject, version(subject, 1))
    registry.insist(subject, "FULL_TRANSITIVE")
    assert registry.objections(subject, version(subject, 2)) == []
    assert registry.objections(subject, incompatible(subject))
    with pytest.raises(SchemaRefused) as raised:
        registry.register(subject, incompatible(subject))
    assert raised.value.remedy
    assert registry.lookup(subject, incompatible(subject)) is None


def test_several_versions_are_kept_and_each_is_compared(registry: SchemaRegistry, subject: str) -> None:
    registry.insist(subject, "FULL_TRANSITIVE")
    numbers = [registry.register(subject, version(subject, n)) for n in range(1, 5)]
    assert len(set(numbers)) == 4
    for n, number in enumerate(numbers, 1):
        assert registry.lookup(subject, version(subject, n)) == number
        assert len(avro.parse(registry.schema(number))["fields"]) == n + 1
    assert registry.objections(subject, incompatible(subject))


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_an_invalid_schema_meets_objections_and_is_refused(registry: SchemaRegistry, subject: str, text: str) -> None:
    for _ in ("an empty subject", "one that has a version"):
        assert "not a valid Avro schema" in registry.objections(subject, text)[0]
        with pytest.raises(SchemaRefused):
            registry.register(subject, text)
        registry.register(subject, version(subject, 1))
