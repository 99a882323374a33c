"""The Python files of the repository, for tests that read them: their rooms, docstrings and classes."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("relay", "consumer", "saga", "schemas", "services", "migrations")
TIERS = ("unit", "contract", "integration", "acceptance")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Docstring(NamedTuple):
    """A docstring, with the code that it documents: a function, a class, a module, or the assignment above it."""

    file: str
    line: int
    text: str
    owner: ast.AST

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text.strip().splitlines()[0]}"


@cache
def files() -> list[str]:
    """Return the path of every Python file of the repository, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted(path for path in listed.stdout.splitlines() if (ROOT / path).exists())


def product_files() -> list[str]:
    """Return the files that users install."""
    return [path for path in files() if path.split("/")[0] in (*ROOMS, "src")]


def room(path: str) -> str:
    """Return the room of a file. The tests of a room belong to it."""
    top, *rest = path.split("/")
    if top == "src":
        return rest[1] if len(rest) > 2 else "ferryman"
    if top == "tests" and rest[0] in TIERS:
        return rest[1]
    return f"tests/{rest[0]}" if top == "tests" and len(rest) > 1 else top


def tree(path: str) -> ast.Module:
    """Return the syntax tree of a file."""
    return _parsed(path, (ROOT / path).read_text())


@cache
def _parsed(path: str, source: str) -> ast.Module:
    return ast.parse(source, path)


def docstrings(module: ast.Module, file: str = "sample.py") -> Iterator[Docstring]:
    """Yield every docstring of a module: its own, and those of its classes, functions and attributes."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Module | ast.ClassDef | FunctionNode):
            continue
        before: ast.AST = node
        for number, statement in enumerate(node.body):
            text = _text(statement)
            if text is not None and (number == 0 or isinstance(before, ast.Assign | ast.AnnAssign)):
                yield Docstring(file, statement.lineno, text, before)
            before = statement


def _text(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return value if isinstance(value, str) and value.strip() else None
    return None
