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
    """An index of the same columns may have another name: on a database, the check of the live table finds it."""
    chain = ROOT / "migrations" / machine.schema
    due = f"CREATE INDEX {machine.name}_due ON"
    without = "".join(line for line in guards(machine).splitlines(keepends=True) if not line.startswith(due))
    files = [file.read_text() for file in chain.glob("*.sql")]
    assert any(guards(machine) in each or (without in each and due not in each) for each in files)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.name)
def test_docs_contain_the_drawing_of_the_machine(machine: Machine) -> None:
    assert drawing(machine) in (ROOT / "docs" / "machines.md").read_text()
