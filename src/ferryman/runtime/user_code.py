"""Errors in a user's code, for logs and rows: their words, without what databases quote, and the user's line."""

import re
import sysconfig
import traceback
from pathlib import Path

import psycopg

from ferryman.runtime import postgres
from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient
from ferryman.runtime.redaction import redact, stored_error
from ferryman.runtime.user_functions import WrongAnswer, short_path

# The parts of an error that quote another's words or values: SQLAlchemy adds "[SQL: ...]", or the error before.
_QUOTED = re.compile(r"\n(?:DETAIL|HINT|CONTEXT|LINE \d+): |\[(?:SQL|parameters): |Original exception was: ")
_ABORTED = "25P02"
_OURS = f"{Path(__file__).parents[1]}/"
_LIBRARIES = tuple(f"{path}/" for path in {sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})


def words_of(error: BaseException) -> str:
    """Return an error for logs and receipts, without the statements, parameters and rows that databases quote (N14)."""
    inner = getattr(error, "orig", None)  # SQLAlchemy's errors hold the driver's, and quote the statement
    error = inner if isinstance(inner, BaseException) else error
    if isinstance(error, psycopg.Error):
        return f"{type(error).__name__}: {postgres.said(error)}" + (f" ({error.sqlstate})" if error.sqlstate else "")
    words = _QUOTED.split(str(error), 1)[0].rstrip()
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def line_of(error: BaseException, *, called_by_us: bool = True) -> str | None:
    """Return the file, line and function of the innermost call in the user's code, or None.

    A user's code may be installed like a library. It is known then by who called it: we did.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{short_path(error.filename)}:{error.lineno}"
    calls = [
        each for each in traceback.extract_tb(error.__traceback__)
        if not each.filename.startswith((_OURS, "<"))
    ]  # fmt: skip
    own = [each for each in calls if not each.filename.startswith(_LIBRARIES)]
    if not own and calls and called_by_us:
        own = [each for each in calls if each.filename == calls[0].filename]
    return f"{short_path(own[-1].filename)}:{own[-1].lineno} {own[-1].name}" if own else None


def told(error: BaseException) -> str:
    """Return the words of an error that a user's function raised, and the line if it is known."""
    error = raised(error)
    line = error.line if isinstance(error, WrongAnswer) else line_of(error)
    words = words_of(error).removeprefix(f"{WrongAnswer.__name__}: ")
    return redact(words) + (f", at {line}" if line else "")


def passing(what: str, error: BaseException) -> FerrymanError | None:
    """Return the error to retry for if it may pass, or if a person has to set something right; None if it is a bug.

    The remedies of our own errors are for our own tables, so this one names the user's line.
    """
    found, words = raised(error), stored_error(f"{what} failed: {told(error)}")
    if isinstance(found, TimeoutError | ConnectionError):
        return Transient(words)
    if isinstance(found, psycopg.Error):
        if found.sqlstate == _ABORTED or (found.sqlstate is None and not isinstance(found, psycopg.OperationalError)):
            return None  # an error before it was caught, or psycopg was called wrongly
        found = postgres.translate(found)
    match found:
        case Misconfigured():
            return Misconfigured(words, remedy="create the table, or grant the right, that your code needs there")
        case Transient():
            return Transient(words)
    return None


def raised(error: BaseException) -> BaseException:
    """Return the error as the user's function raised it: ours may be a translation, whose remedy is for our tables."""
    inner = error.__cause__
    return inner if isinstance(error, FerrymanError) and isinstance(inner, psycopg.Error) else error
