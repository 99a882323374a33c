"""One suite for every registry: a server by our client and by Confluent's, a folder, the catalogue, what remembers."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from ferryman.schemas import avro
from ferryman.schemas.registry import Refused, Registry, UnknownSchema
from ferryman.schemas.registry.cache import CachedRegistry
from ferryman.schemas.registry.folder import FolderRegistry
from support.registries import BAD, CLIENTS, NOBODY, connecting, incompatible, version


@pytest.fixture
def subject() -> str:
    return f"shop.Of{uuid4().hex}"


@pytest.fixture(params=[*CLIENTS, "folder", "remembered folder", "remembered server"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    kind = request.param
    if kind in {"folder", "remembered folder"}:
        (tmp_path / "registry").mkdir()
        plain = FolderRegistry(tmp_path / "registry")
        yield plain if kind == "folder" else CachedRegistry(plain, tmp_path / "cache")
        return
    url = request.getfixturevalue("ferryman_registry")
    if urlsplit(url).scheme == "file":
        pytest.skip("no real registry is to be had here")
    with connecting(kind if kind in CLIENTS else CLIENTS[0]) as connected:
        yield connected(url) if kind in CLIENTS else CachedRegistry(connected(url), tmp_path / "cache")


def test_a_registered_schema_is_given_back_by_its_id(registry: Registry, subject: str) -> None:
    number = registry.register(subject, version(subject, 1))
    assert 0 < number < 2**31
    assert avro.parse(registry.schema(number)) == avro.parse(version(subject, 1)), "spelt otherwise perhaps"


def test_registering_again_gives_the_same_id(registry: Registry, subject: str) -> None:
    text = version(subject, 1)
    number = registry.register(subject, text)
    assert registry.register(subject, text) == number
    assert registry.register(subject, json.dumps(json.loads(text), separators=(",", ":"))) == number


def test_an_older_version_is_registered_again_after_a_newer_one(registry: Registry, subject: str) -> None:
    """As a rollback does."""
    registry.insist(subject, "FULL_TRANSITIVE")
    old, _ = (registry.register(subject, version(subject, n)) for n in (1, 2))
    assert registry.objections(subject, version(subject, 1)) == []
    assert registry.register(subject, version(subject, 1)) == old


def test_a_schema_is_looked_up_where_it_was_registered_and_nowhere_else(registry: Registry, subject: str) -> None:
    text = version(subject, 1)
    assert registry.lookup(subject, text) is None
    number = registry.register(subject, text)
    assert registry.lookup(subject, text) == number
    assert registry.lookup(subject, json.dumps(json.loads(text))) == number
    assert registry.lookup(subject, version(subject, 2)) is None
    assert registry.lookup(f"{subject}Else", text) is None


def test_the_same_schema_under_two_subjects_is_looked_up_under_both(registry: Registry, subject: str) -> None:
    text = version(subject, 1)
    number = registry.register(subject, text)
    assert registry.register(f"{subject}Else", text) == number
    assert registry.lookup(f"{subject}Else", text) == number


@pytest.mark.parametrize("number", [NOBODY, 2**31, 2**32 - 1])
def test_an_id_that_nobody_has_is_an_unknown_schema(registry: Registry, subject: str, number: int) -> None:
    registry.register(subject, version(subject, 1))
    with pytest.raises(UnknownSchema, match=str(number)):
        registry.schema(number)


def test_nothing_stands_against_the_first_schema_of_a_subject(registry: Registry, subject: str) -> None:
    registry.insist(subject, "FULL_TRANSITIVE")
    assert registry.objections(subject, version(subject, 1)) == []


def test_what_breaks_its_readers_meets_objections_and_is_refused(registry: Registry, subject: str) -> None:
    registry.register(subject, version(subject, 1))
    registry.insist(subject, "FULL_TRANSITIVE")
    assert registry.objections(subject, version(subject, 2)) == []
    assert registry.objections(subject, incompatible(subject))
    with pytest.raises(Refused) as raised:
        registry.register(subject, incompatible(subject))
    assert raised.value.remedy
    assert registry.lookup(subject, incompatible(subject)) is None


def test_several_versions_stand_beside_one_another_and_the_oldest_counts_too(registry: Registry, subject: str) -> None:
    registry.insist(subject, "FULL_TRANSITIVE")
    numbers = [registry.register(subject, version(subject, n)) for n in range(1, 5)]
    assert len(set(numbers)) == 4
    for n, number in enumerate(numbers, 1):
        assert registry.lookup(subject, version(subject, n)) == number
        assert len(avro.parse(registry.schema(number))["fields"]) == n + 1
    assert registry.objections(subject, incompatible(subject))


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_is_no_schema_meets_objections_and_is_refused(registry: Registry, subject: str, text: str) -> None:
    for _ in ("an empty subject", "one that has a version"):
        assert "no Avro schema" in registry.objections(subject, text)[0]
        with pytest.raises(Refused):
            registry.register(subject, text)
        registry.register(subject, version(subject, 1))
