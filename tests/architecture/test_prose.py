"""The prose of the code is plain: docstrings are whole sentences, and those of functions begin with a verb."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ferryman.runtime.redaction import MASK, redact
from support.sources import ROOT, Docstring, docstrings, files, product_files, tree

NOT_A_SENTENCE = ("What", "Those", "Of", "Who", "Where", "As", "Whether", "How")
"""A docstring that begins with one of these is half a sentence, or a riddle."""


def first_word(docstring: Docstring) -> str:
    return docstring.text.split(maxsplit=1)[0].rstrip(",.:;")


def is_half_a_sentence(docstring: Docstring) -> bool:
    return first_word(docstring) in NOT_A_SENTENCE


def test_no_docstring_begins_with_a_relative_clause() -> None:
    found = [str(each) for path in files() for each in docstrings(tree(path), path) if is_half_a_sentence(each)]
    assert found == []


SAMPLES = {
    "module": '"""{} is here."""',
    "class": 'class A:\n    """{} is here."""',
    "function": 'def f():\n    """{} is here."""',
    "method": 'class A:\n    async def f(self):\n        """{} is here."""',
    "attribute": 'class A:\n    x: int\n    """{} is here."""',
    "constant": 'X = 1\n"""{} is here."""',
}


@pytest.mark.parametrize("word", NOT_A_SENTENCE)
@pytest.mark.parametrize("kind", SAMPLES)
def test_relative_clause_is_found_in_every_kind_of_docstring(kind: str, word: str) -> None:
    [found] = docstrings(ast.parse(SAMPLES[kind].format(word)))
    assert is_half_a_sentence(found)
    assert not is_half_a_sentence(next(docstrings(ast.parse(SAMPLES[kind].format("Return")))))


def test_string_that_documents_nothing_is_no_docstring() -> None:
    assert list(docstrings(ast.parse('x = f()\nprint()\n"""What."""\n'))) == []


IMPERATIVE = {
    'def name() -> str:\n    """Return the name."""\n': True,
    'def name() -> str:\n    """Returns the name."""\n': False,
    'def name() -> str:\n    """The name."""\n': False,
    'class A:\n    @property\n    def name(self) -> str:\n        """The name."""\n': True,
    'class A:\n    @cached_property\n    def name(self) -> str:\n        """The name."""\n': True,
    'class A:\n    """The name."""\n': True,
    'def test_name() -> None:\n    """The name is long."""\n': True,
}


@pytest.mark.parametrize("source", IMPERATIVE)
def test_ruff_asks_functions_for_a_verb(source: str) -> None:
    """The linter refuses function docstrings that name a thing, except for properties and tests."""
    ruff = Path(sys.executable).with_name("ruff")
    imported = "from functools import cached_property\n\n\n" if "cached" in source else ""
    done = subprocess.run(
        [ruff, "check", "--output-format", "concise", "--stdin-filename", "src/ferryman/demo/sample.py", "-"],
        input=f"{imported}{source}", cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ("D401" not in done.stdout) == IMPERATIVE[source], done.stdout


VALUE = "VALUE"


def texts(found: ast.AST) -> list[str]:
    """Return the texts of a module, each with a word in the place of a value."""
    return [
        "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        if isinstance(node, ast.JoinedStr) else str(node.value)
        for node in ast.walk(found)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]  # fmt: skip


def is_masked(text: str) -> bool:
    """Return True if redaction masks words of ours, and not only a value."""
    return redact(text).replace(MASK, VALUE) != text


def test_no_text_of_ours_reads_like_a_secret() -> None:
    """Say "no token, so nobody ..." instead of "no token: nobody ...": the words behind would be masked in logs."""
    paths = [path for path in product_files() if not path.endswith("runtime/redaction.py")]
    assert [f"{path}: {text}" for path in paths for text in texts(tree(path)) if is_masked(text)] == []


def test_text_that_reads_like_a_secret_is_found() -> None:
    assert [text for text in texts(ast.parse('f"Bearer {x}"; "no token: nobody"; "no token"')) if is_masked(text)] == [
        "no token: nobody"
    ]
