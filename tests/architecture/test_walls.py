"""The import contracts and the rules of a module hold, and each contract is shown to fail."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ferryman"
ROOMS = ("relay", "consumer", "saga", "services", "schemas", "migrations")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BIN = Path(sys.executable).parent

# For each contract, a module and an import that it forbids.
BREACHES = {
    "rooms": ("runtime/version.py", "import ferryman.cli.app"),
    "services-are-adopters": ("services/wallet/rules.py", "import ferryman.consumer.model"),
    "orchestrator-sends-nothing": ("services/webhooks/machine.py", "import http.client"),
    "celery-is-an-extra": ("services/runner/events.py", "import celery"),
    "runtime-is-light": ("runtime/version.py", "import sqlalchemy"),
    "http-is-an-extra": ("saga/answers.py", "import fastapi"),
    "product-needs-no-test-tools": ("doctor/model.py", "import pytest"),
}


def modules() -> list[Path]:
    """Return every module of the product, through the links."""
    found = [Path(folder, name) for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names]
    return sorted(path for path in found if path.suffix == ".py" and not path.name[0].isdigit())


def strings(module: Path) -> list[ast.Constant]:
    tree = ast.parse(module.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@pytest.mark.parametrize("contract", [contract["id"] for contract in PYPROJECT["tool"]["importlinter"]["contracts"]])
def test_each_import_contract_can_fail(contract: str, tmp_path: Path) -> None:
    """A forbidden import in a copy of the tree breaks exactly this contract."""
    copy = tmp_path / "src" / "ferryman"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    module, breach = BREACHES[contract]
    (copy / module).write_text(f"{(copy / module).read_text()}\n{breach}\n")
    done = subprocess.run(
        [BIN / "lint-imports", "--no-cache", "--contract", contract],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 broken" in done.stdout


@pytest.mark.parametrize("room", ROOMS)
def test_ruff_refuses_the_bare_import_of_a_room(room: str) -> None:
    done = subprocess.run(
        [BIN / "ruff", "check", "--select", "TID251", "--stdin-filename", "src/ferryman/probe.py", "-"],
        input=f"import {room}\nfrom {room} import x\n", cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.count(f"import ferryman.{room}") == 2


def test_every_top_level_room_is_linked_into_the_package() -> None:
    rooms = {name for name in ROOMS if (ROOT / name).is_dir()}
    links = {path.name: os.readlink(path) for path in PACKAGE.iterdir() if path.is_symlink()}
    assert links == {room: f"../../{room}" for room in rooms}


def test_only_the_wiring_reads_the_environment() -> None:
    """The testing kit may read it too: it looks for servers, not for settings."""
    readers = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        if "os.environ" in path.read_text() and "testing" not in path.relative_to(PACKAGE).parts
    }
    assert readers == {"cli/wiring.py"}


def test_every_sql_statement_begins_with_its_name() -> None:
    """Then pg_stat_activity and pg_stat_statements show our names."""
    verbs = ("SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH ", "LOCK ", "TRUNCATE ")
    unnamed = [
        f"{path.relative_to(PACKAGE)}:{text.lineno}"
        for path in modules()
        if "testing" not in path.relative_to(PACKAGE).parts
        for text in strings(path)
        if str(text.value).lstrip().startswith(verbs)
    ]
    assert unnamed == []


def test_no_module_is_longer_than_four_hundred_lines() -> None:
    assert [str(path.relative_to(PACKAGE)) for path in modules() if len(path.read_text().splitlines()) > 400] == []


def test_every_module_has_a_docstring() -> None:
    assert [
        str(path.relative_to(PACKAGE)) for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))
    ] == []
