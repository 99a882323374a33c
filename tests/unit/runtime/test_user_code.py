"""Errors in a user's code are told by their words and the user's line."""

import json

import psycopg
import pytest

from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.user_code import line_of, raised, told
from ferryman.runtime.user_functions import WrongAnswer


def fail_in_a_library() -> None:
    json.loads("not JSON")


def fail_in_the_database() -> None:
    with postgres.translated():
        raise psycopg.errors.UndefinedTable


def error_of(function: object) -> Exception:
    with pytest.raises(Exception) as found:  # noqa: PT011 - any error
        function()  # type: ignore[operator]
    error: Exception = found.value
    return error


def test_line_is_the_users_though_a_library_raised() -> None:
    line = line_of(error_of(fail_in_a_library)) or ""
    assert line.endswith(" fail_in_a_library")
    assert line.startswith("tests/unit/runtime/test_user_code.py:")


def test_error_without_a_line_of_the_users_has_none() -> None:
    assert line_of(ValueError()) is None
    assert told(ValueError()) == "ValueError"


def test_error_of_the_database_is_told_as_it_was_raised() -> None:
    """Our remedies are for our own tables."""
    error = error_of(fail_in_the_database)
    assert isinstance(error, FerrymanError)
    assert isinstance(raised(error), psycopg.errors.UndefinedTable)
    assert "migrate" not in told(error)


def test_words_hold_no_secret() -> None:
    """N14."""
    assert "geheim" not in told(ValueError("password=geheim"))


def test_wrong_answer_names_the_function_that_gave_it() -> None:
    assert told(WrongAnswer("it is None", fail_in_a_library)).startswith("it is None, at tests/unit/runtime/")
