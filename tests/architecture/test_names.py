"""Names are unique: one class name has one meaning in the whole product, and few files share a name."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePath

import pytest

from support.sources import product_files, tree

MOST_SHARED = 5
SHARED_CLASSES: dict[str, str] = {
    "Retry": "the public answer of a handler; the relay's outcome of that name moves to the channels",
}
"""Class names that may be defined twice, each with its reason: at most five."""

MOST_FILES_OF_A_NAME = 2
SHARED_FILE_NAMES = {"kafka.py": 5, "metrics.py": 4, "model.py": 4, "postgres.py": 3, "service.py": 6, "store.py": 3}
"""File names that more files may share, each with the present number: lower these."""


def classes(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the files that define each class at their top level."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, module in trees.items():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    return found


def shared_classes(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    return {name: paths for name, paths in classes(trees).items() if len(paths) > 1}


def file_names(paths: Iterable[str]) -> Counter[str]:
    """Count the files of each name; packages and revisions of migrations have no name of their own."""
    names = [PurePath(path).name for path in paths]
    return Counter(name for name in names if name not in ("__init__.py", "__main__.py") and not name[0].isdigit())


def crowded(paths: Iterable[str], allowed: Mapping[str, int]) -> dict[str, int]:
    """Return the names that too many files have."""
    return {name: count for name, count in file_names(paths).items() if count > allowed.get(name, MOST_FILES_OF_A_NAME)}


def product_trees() -> dict[str, ast.Module]:
    return {path: tree(path) for path in product_files()}


def test_every_class_name_is_defined_once() -> None:
    shared = shared_classes(product_trees())
    assert {name: paths for name, paths in shared.items() if name not in SHARED_CLASSES} == {}


def test_few_class_names_may_be_shared() -> None:
    assert len(SHARED_CLASSES) <= MOST_SHARED


def test_no_file_name_is_used_three_times() -> None:
    assert crowded(product_files(), SHARED_FILE_NAMES) == {}


TWO = {"relay/a.py": ast.parse("class Entry: ..."), "saga/b.py": ast.parse("x = 1\nclass Entry(tuple): ...")}
ONE = {"relay/a.py": ast.parse("class Entry: ..."), "saga/b.py": ast.parse("def f():\n    class Entry: ...")}


def test_class_that_is_defined_twice_is_found() -> None:
    assert shared_classes(TWO) == {"Entry": ["relay/a.py", "saga/b.py"]}
    assert shared_classes(ONE) == {}


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["relay/a.py", "saga/a.py", "src/ferryman/cli/a.py"], {"a.py": 3}),
        (["relay/a.py", "saga/a.py"], {}),
        (["relay/__init__.py", "saga/__init__.py", "consumer/__init__.py"], {}),
        (["relay/b.py", "saga/b.py", "consumer/b.py"], {}),
        (["relay/b.py", "saga/b.py", "consumer/b.py", "schemas/b.py"], {"b.py": 4}),
    ],
)
def test_file_name_that_is_used_too_often_is_found(paths: list[str], found: dict[str, int]) -> None:
    assert crowded(paths, {"b.py": 3}) == found
