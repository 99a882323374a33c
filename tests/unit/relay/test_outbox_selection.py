"""The options that select entries, and the selections made of them."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import click
import pytest

from ferryman.cli.options import DURATION, ENTRY_REFERENCE, MOMENT
from ferryman.relay.admin.entries import EntrySelection

NOON = datetime(2025, 11, 18, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("typed", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("3d", 259200), ("1w", 604800), ("1h30m", 5400)]
)
def test_duration_is_a_number_and_a_unit(typed: str, seconds: int) -> None:
    assert DURATION.convert(typed, None, None) == timedelta(seconds=seconds)
    assert MOMENT.convert(typed, None, None) == timedelta(seconds=seconds)


@pytest.mark.parametrize("typed", ["", "2", "h", "2x", "-2h", "2 h", "2h5", "9" * 30 + "d"])
def test_invalid_duration_is_refused(typed: str) -> None:
    with pytest.raises(click.BadParameter):
        DURATION.convert(typed, None, None)


def test_time_without_a_zone_is_in_this_machines_zone() -> None:
    found = MOMENT.convert("2025-11-18T12:00", None, None)
    assert found.tzinfo is not None
    assert found.replace(tzinfo=None) == datetime(2025, 11, 18, 12)  # noqa: DTZ001 - as it was typed
    assert MOMENT.convert("2025-11-18T12:00Z", None, None) == NOON


def test_invalid_time_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="2h"):
        MOMENT.convert("yesterday", None, None)


def test_entry_is_named_by_its_id_or_its_position() -> None:
    some = "0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11"
    assert ENTRY_REFERENCE.convert(some, None, None) == UUID(some)
    assert ENTRY_REFERENCE.convert("4711", None, None) == 4711
    for typed in ("-1", "4711x", "²", str(2**63)):
        with pytest.raises(click.BadParameter):
            ENTRY_REFERENCE.convert(typed, None, None)


def test_selection_is_audited_as_it_was_asked_for() -> None:
    asked = EntrySelection(positions=(3, 4), topic="orders", statuses=("FAILED",), since=NOON)
    assert asked.as_json() == {
        "positions": [3, 4],
        "topic": "orders",
        "statuses": ["FAILED"],
        "since": "2025-11-18T12:00:00+00:00",
    }
    assert EntrySelection.from_json(asked.as_json()) == asked
    assert EntrySelection(key="").as_json() == {"key": ""}


@pytest.mark.parametrize(
    ("asked", "covers"),
    [
        (EntrySelection(), True),
        (EntrySelection(positions=(7,)), True),
        (EntrySelection(positions=(8,)), False),
        (EntrySelection(topic="orders", key="k", type="t"), True),
        (EntrySelection(topic="users"), False),
        (EntrySelection(key="other"), False),
        (EntrySelection(type="other"), False),
        (EntrySelection(since=NOON), True),
        (EntrySelection(until=NOON), False),
    ],
)
def test_selection_covers_entries_that_meet_all_conditions(asked: EntrySelection, covers: bool) -> None:
    assert asked.covers(7, "orders", "k", "t", NOON) is covers
