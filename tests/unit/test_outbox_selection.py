"""What people type about entries, and the selections that are made of it."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import click
import pytest

from ferryman.cli.options import DurationType, MomentType
from ferryman.cli.outbox_options import ReferenceType
from ferryman.relay.operator.selection import Selection

NOON = datetime(2025, 11, 18, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("typed", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("3d", 259200), ("1w", 604800), ("1h30m", 5400)]
)
def test_a_duration_is_a_number_and_a_unit(typed: str, seconds: int) -> None:
    assert DurationType().convert(typed, None, None) == timedelta(seconds=seconds)
    assert MomentType().convert(typed, None, None) == timedelta(seconds=seconds)


@pytest.mark.parametrize("typed", ["", "2", "h", "2x", "-2h", "2 h", "2h5", "9" * 30 + "d"])
def test_what_is_no_duration_is_refused(typed: str) -> None:
    with pytest.raises(click.BadParameter):
        DurationType().convert(typed, None, None)


def test_a_time_without_a_zone_is_of_this_machine() -> None:
    found = MomentType().convert("2025-11-18T12:00", None, None)
    assert found.tzinfo is not None
    assert found.replace(tzinfo=None) == datetime(2025, 11, 18, 12)  # noqa: DTZ001 - as it was typed
    assert MomentType().convert("2025-11-18T12:00Z", None, None) == NOON


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="2h"):
        MomentType().convert("yesterday", None, None)


def test_an_entry_is_named_by_its_id_or_its_position() -> None:
    some = "0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11"
    assert ReferenceType().convert(some, None, None) == UUID(some)
    assert ReferenceType().convert("4711", None, None) == 4711
    for typed in ("-1", "4711x", "²", str(2**63)):
        with pytest.raises(click.BadParameter):
            ReferenceType().convert(typed, None, None)


def test_a_selection_stands_in_the_audit_as_it_was_asked_for() -> None:
    asked = Selection(positions=(3, 4), topic="orders", statuses=("FAILED",), since=NOON)
    assert asked.as_json() == {
        "positions": [3, 4],
        "topic": "orders",
        "statuses": ["FAILED"],
        "since": "2025-11-18T12:00:00+00:00",
    }
    assert Selection.from_json(asked.as_json()) == asked


@pytest.mark.parametrize(
    ("asked", "covers"),
    [
        (Selection(), True),
        (Selection(positions=(7,)), True),
        (Selection(positions=(8,)), False),
        (Selection(topic="orders", key="k", type="t"), True),
        (Selection(topic="users"), False),
        (Selection(key="other"), False),
        (Selection(type="other"), False),
        (Selection(since=NOON), True),
        (Selection(until=NOON), False),
    ],
)
def test_a_selection_covers_what_satisfies_all_of_it(asked: Selection, covers: bool) -> None:
    assert asked.covers(7, "orders", "k", "t", NOON) is covers
