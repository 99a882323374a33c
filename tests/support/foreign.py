"""The sample readers of docs/readers, run as other teams do: in processes that do not have our package."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ferryman.testing import java, kafka
from ferryman.testing.parts import NotHere
from ferryman.testing.registry import API

READERS = Path(__file__).parents[2] / "docs" / "readers"
LANGUAGES = ("Python", "Java")
_NATIVE = "/apis/registry/v3"
_OLDEST_JAVA = 17
_SECONDS = 60
_WITHOUT_US = """
import runpy, sys
sys.modules["ferryman"] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_PYTHON = (sys.executable, "-I", "-W", "error", "-c", _WITHOUT_US)


class Said(NamedTuple):
    """The records that a reader printed, by topic, partition and offset, and its last line of errors."""

    records: list[dict[str, Any]]
    words: str

    @property
    def by_id(self) -> dict[str, dict[str, Any]]:
        return {record["headers"]["ce_id"]: record for record in self.records}


class Foreign(NamedTuple):
    """The sample readers, with the cluster and the registry that they use."""

    java: Sequence[str]
    kafka: str
    registry: str

    def read(self, language: str, *topics: str) -> Said:
        """Return all records of the topics, as one of the readers prints them."""
        if language == "Java":
            program, registry = [*self.java, str(READERS / "Reader.java")], self.registry.replace(API, _NATIVE)
        else:
            program, registry = [*_PYTHON, str(READERS / "reader.py")], self.registry
        printed, words = _run([*program, self.kafka, registry, *topics])
        records = [json.loads(line) for line in printed.splitlines()]
        records.sort(key=lambda each: (each["topic"], each["partition"], each["offset"]))
        return Said(records, words.splitlines()[-1])

    def java_partitions(self, topic: str, keys: Sequence[str]) -> list[int]:
        """Return the partition that Java's own producer chooses for each key."""
        program = [*self.java, str(Path(__file__).with_name("Produce.java")), self.kafka, topic]
        partitions: list[int] = json.loads(_run(program, json.dumps(keys))[0])
        return partitions


def java_or_skip() -> list[str]:
    """Return the command of Java with the jars of the readers' pom; skip if there is none, unless it is required."""
    try:
        program, jars = java.find(_OLDEST_JAVA), java.artifacts(READERS / "pom.xml")
    except NotHere as why:
        if os.environ.get(kafka.REQUIRE_REAL):
            raise
        pytest.skip(str(why))
    return [str(program), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]


def _run(command: Sequence[str], given: str = "") -> tuple[str, str]:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, f"{Path(command[0]).name} exited with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr
