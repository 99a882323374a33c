"""Revisions whose SQL stands in a file of its own, beside them."""

from pathlib import Path

from alembic import context, op


def execute(revision: str) -> None:
    """Runs the `.sql` beside the revision's own file (pass `__file__`), whole: one statement may hold semicolons."""
    text = Path(revision).with_suffix(".sql").read_text(encoding="utf-8")
    if context.is_offline_mode():
        op.execute(text)
    else:
        driver = op.get_bind().connection.driver_connection
        assert driver is not None
        driver.execute(text)
