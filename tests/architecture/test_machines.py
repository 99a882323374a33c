"""The guards in the migrations and the drawings in the docs are those of the machines in the code."""

from pathlib import Path

import pytest

from ferryman.saga.ddl import guards
from ferryman.saga.drawing import drawing
from ferryman.saga.machine import Machine
from ferryman.services.machines import MACHINES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_its_migration_has_its_guards(machine: Machine) -> None:
    chain = ROOT / "migrations" / machine.schema
    assert any(guards(machine) in file.read_text() for file in chain.glob("*.sql"))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_its_drawing_is_in_the_docs(machine: Machine) -> None:
    assert drawing(machine) in (ROOT / "docs" / "machines.md").read_text()
