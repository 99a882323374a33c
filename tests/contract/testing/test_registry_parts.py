"""A schema registry of our own is Apicurio with its Confluent API, or a folder."""

import json
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ferryman.testing import java
from ferryman.testing.parts import NotHere
from ferryman.testing.registry import FileRegistry, answers, find


def test_real_registry_returns_a_schema_by_its_id(ferryman_registry: str) -> None:
    if urlsplit(ferryman_registry).scheme == "file":
        pytest.skip("no real registry is available here")
    schema = json.dumps({"type": "record", "name": "Probe", "fields": [{"name": "id", "type": "string"}]})
    request = urllib.request.Request(
        f"{ferryman_registry}/subjects/probe-value/versions",
        data=json.dumps({"schema": schema}).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        number = json.load(answer)["id"]
    with urllib.request.urlopen(f"{ferryman_registry}/schemas/ids/{number}", timeout=10) as answer:
        assert json.loads(json.load(answer)["schema"])["name"] == "Probe"


def test_folder_is_the_registry_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java(_: int) -> None:
        raise NotHere("this machine has no Java")

    monkeypatch.setattr(java, "find", no_java)
    part, climb = find(reach="machine")
    folder = Path(urlsplit(part.url).path)
    assert isinstance(part, FileRegistry)
    assert folder.is_dir()
    assert "no Java" in str(climb)
    part.close()
    assert not folder.exists()


def test_answers_is_false_if_nobody_listens() -> None:
    assert not answers("http://127.0.0.1:1/apis")
