"""A machine is data, and an inconsistent one is refused when it is created."""

import re
from dataclasses import replace
from typing import Any

import pytest

from ferryman import Misconfigured
from ferryman.saga.guards import guards
from ferryman.saga.machine import Columns, Machine, State, drawing


def machine(**states: tuple[str, ...]) -> Machine:
    return Machine("order", "shop.orders", "id", {name: State(f"it is {name}", to) for name, to in states.items()})


ORDER = machine(NEW=("PAID", "DROPPED"), PAID=("SENT",), SENT=(), DROPPED=())


def test_states_that_are_entered_again_are_known() -> None:
    looping = machine(NEW=("SENT",), SENT=("WAITING", "OVER"), WAITING=("SENT",), OVER=())
    assert looping.recurring == {"SENT", "WAITING"}
    assert ORDER.recurring == frozenset()


def test_what_may_be_follows_from_the_states() -> None:
    assert (ORDER.initial, ORDER.terminals) == ("NEW", ("SENT", "DROPPED"))
    assert ORDER.may("NEW", "PAID")
    assert ORDER.may("NEW", "NEW")
    assert not ORDER.may("NEW", "SENT")
    assert not ORDER.may("SENT", "SENT")
    assert not ORDER.may("SENT", "NEW")


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        ({}, "it has no states"),
        ({"OVER": ()}, "it begins with OVER, and nothing leads out of it"),
        ({"NEW": ("PAID",)}, "NEW leads to PAID, which is not one of its states"),
        ({"NEW": ("NEW", "OVER"), "OVER": ()}, "NEW leads to itself"),
        ({"NEW": ("OVER",), "OVER": (), "LOST": ("OVER",)}, "nothing leads to LOST"),
        ({"NEW": ("OVER", "A"), "OVER": (), "A": ("B",), "B": ("A",)}, "nothing ends what is in A, B"),
    ],
)
def test_an_inconsistent_machine_is_refused(states: dict[str, tuple[str, ...]], problem: str) -> None:
    with pytest.raises(Misconfigured, match=problem):
        machine(**states)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": "an order"}, "'an order' is not a lower-case name"),
        ({"table": 'shop."orders"'}, "is not a lower-case name"),
        ({"columns": Columns(state="State")}, "'State' is not a lower-case name"),
        ({"archive": "drop; --"}, "is not a lower-case name"),
        ({"key_type": "text"}, "its keys are text, which is neither uuid nor bigint"),
    ],
)
def test_a_machine_whose_names_would_need_quotes_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(problem)):
        replace(ORDER, **given)


def test_its_guards_have_its_own_words() -> None:
    text = guards(replace(ORDER, columns=Columns("status", due_at="next_at"), archive="archive_orders"))
    for said in ("CHECK (status IN", "(next_at) WHERE next_at IS NOT NULL", "shop.archive_orders("):
        assert said in text
    assert "state" not in text.replace("order_states", "").replace("STATEMENT", "")


def test_the_drawing_shows_every_transition_and_the_meaning_of_each_state() -> None:
    drawn = drawing(ORDER)
    for line in ("[*] --> NEW", "NEW --> DROPPED", "PAID --> SENT", "SENT --> [*]", "| `PAID` | it is PAID | `SENT` |"):
        assert line in drawn
    assert "| `SENT` | it is SENT | nothing: it is over |" in drawn


def test_its_guards_name_its_table_and_every_way() -> None:
    text = guards(ORDER)
    assert text.startswith("-- the machine order: begin\n")
    assert text.endswith("\n-- the machine order: end")
    assert "('NEW', 'DROPPED')" in text
    assert "ON shop.orders" in text
    assert "shop.archive(" in text
