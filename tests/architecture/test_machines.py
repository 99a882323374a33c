"""The guards in the migrations and the drawings in the docs match the machines in the code."""

from pathlib import Path

import pytest

from ferryman.runtime.system import load
from ferryman.saga.guards import guards
from ferryman.saga.machine import Machine, drawing
from ferryman.services import systems

MACHINES = [load(each) for system in systems() for each in system.machines]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_migration_contains_the_guards_of_the_machine(machine: Machine) -> None:
    chain = ROOT / "migrations" / machine.schema
    assert any(guards(machine) in file.read_text() for file in chain.glob("*.sql"))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_docs_contain_the_drawing_of_the_machine(machine: Machine) -> None:
    assert drawing(machine) in (ROOT / "docs" / "machines.md").read_text()
