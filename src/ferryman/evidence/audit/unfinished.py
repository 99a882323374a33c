"""An audit that did not come to its end: that says nothing of the books, and must not look as if they were wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.errors import QueryCanceled

from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient
from ferryman.runtime.exits import Exit


class Unfinished(Transient):
    """Run it again: what it has looked at so far is not all."""

    exit_code = Exit.PARTIAL


def cancelled(error: FerrymanError) -> bool:
    """Whether a statement took longer than it may."""
    return isinstance(error.__cause__, QueryCanceled)


@contextmanager
def finishing() -> Iterator[None]:
    """What ends an audit inside it has an exit code of its own: 1 is for books that are wrong."""
    try:
        yield
    except FerrymanError as error:
        if cancelled(error):
            raise Misconfigured(
                f"the audit did not finish: {error.message}", setting="database.statement_timeout_seconds",
                remedy="raise it for this command alone, and run it again",
            ) from error  # fmt: skip
        if error.exit_code is Exit.FAILURE:
            said = f"the audit did not finish: {error.message}"
            raise Unfinished(said, setting=error.setting, remedy=error.remedy or "run it again") from error
        raise
