"""Tables of commands: what a person reads at a terminal, and what a pipe is given."""

import sys

import click
import pytest

from ferryman.cli.output import table

ID = "96ca04f4-d1e7-48c8-8f12-7efaa8cd2b40"
HEADINGS = ("id", "destination", "next attempt", "error")
ROW = (ID, "ann@example.com", "", "the mail server answered the recipient with 550 5.1.1 unknown")


def test_terminal_shows_ids_whole_and_folds_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that is cut off cannot be copied into the next command."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "70")
    shown = table(HEADINGS, [ROW])
    assert ID in shown
    assert "…" not in shown
    assert "next" not in shown  # a column without content takes no room
    assert max(len(click.unstyle(line)) for line in shown.splitlines()) <= 70


def test_pipe_is_given_every_column_in_one_line() -> None:
    shown = table(HEADINGS, [ROW])
    assert "next attempt" in shown
    assert ROW[3] in shown
