"""From one declaration follow ways, commands, timeouts and consumers of a saga; a wrong one is refused."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

from ferryman import End, Go, Message, Misconfigured, Saga, State
from ferryman.runtime.errors import FerrymanError
from ferryman.saga.admin import key_of
from ferryman.saga.machine import drawing
from support import deliveries
from support.orders import Order, answer, cyclic, declared, wider

ORDER = Order(UUID(int=1), "book", 500)


def test_ways_follow_from_the_rules_the_timeouts_and_the_ends() -> None:
    machine = declared().machine
    assert machine.transitions == (
        ("RESERVING", "CHARGING"), ("RESERVING", "RELEASING"), ("RESERVING", "CANCELLED"),
        ("CHARGING", "CANCELLING"), ("CHARGING", "RELEASING"), ("CHARGING", "DONE"),
        ("CANCELLING", "RELEASING"), ("RELEASING", "CANCELLED"),
    )  # fmt: skip
    assert machine.terminals == ("DONE", "CANCELLED")
    assert (machine.key, machine.key_type) == ("id", "uuid")


def test_drawing_has_the_events_on_its_arrows() -> None:
    drawn = drawing(declared().machine)
    assert "RESERVING --> RELEASING: timeout" in drawn
    assert "CHARGING --> DONE: bank.charged" in drawn


def test_each_topic_of_results_has_a_consumer_of_its_own() -> None:
    consumers = {each.name: each.topics for each in declared().consumers()}
    assert consumers == {"orders-stock.results": ("stock.results",), "orders-bank.results": ("bank.results",)}


def test_command_has_the_columns_of_the_service_and_an_id_of_its_attempt() -> None:
    saga = declared()
    first = saga.command(ORDER)
    assert (first.type, first.topic, first.key) == ("stock.reserve", "shop.commands", str(ORDER.id))
    assert first.data == {"id": ORDER.id, "sku": "book", "amount": 500, "reservation": None}
    assert saga.command(ORDER).id == first.id
    others = [ORDER._replace(attempt=2), ORDER._replace(id=UUID(int=2)), ORDER._replace(state="RELEASING")]
    assert len({first.id, *(saga.command(each).id for each in others)}) == 4


def test_command_may_be_made_by_a_function_and_keeps_what_it_says() -> None:
    mine = uuid4()

    def ask(order: Order) -> Message:
        return Message("stock.reserve", {"attempt": order.attempt}, key=order.sku, id=mine, topic="elsewhere")

    saga = shop({"NEW": State("New.", ask=ask, within=1, tries=1, then="OVER"), "OVER": End("Over.")})
    made = saga.command(ORDER._replace(state="NEW", attempt=3))
    assert (made.data, made.key, made.id, made.topic) == ({"attempt": 3}, "book", mine, "elsewhere")
    named = State("New.", ask=lambda row: Message("x", {}, key=row.sku, id=mine), within=1, tries=1, then="OVER")
    made = shop({"NEW": named, "OVER": End("Over.")}).command(ORDER._replace(state="NEW"))
    assert (made.id, made.topic) == (mine, "c")


def test_command_of_a_function_has_a_form_in_json_as_any_other() -> None:
    """A Decimal in it failed every result that led to its state, and each was rejected."""

    def ask(order: Order) -> Message:
        return Message("stock.reserve", {"price": Decimal("1.50"), "at": [date(2026, 11, 20)]}, key=order.sku)

    saga = shop({"NEW": State("New.", ask=ask, within=1, tries=1, then="OVER"), "OVER": End("Over.")})
    assert saga.command(ORDER._replace(state="NEW")).data == {"price": "1.50", "at": ["2026-11-20"]}


def test_visits_that_the_engine_counts_are_not_in_the_command() -> None:
    again = cyclic()
    row = again.row(uuid4(), "book", 1, state="CHARGING", visit=3)
    given = {"id": row[0], "sku": "book", "amount": 1, "reservation": None}
    assert again.command(row).data == given
    own = declared(wider(visit=0))
    assert own.command(own.row(*row)).data == {**given, "visit": 3}


def test_function_that_takes_the_header_of_the_visits_is_refused() -> None:
    """Late answers of an earlier visit counted for the next one: nothing told them apart."""
    saga = cyclic()
    again = saga.row(uuid4(), "book", 1, state="CHARGING", visit=3)
    mine = {"ce_correlationid": "mine"}
    for name in ("CHARGING", "RESERVING"):
        asks = replace(saga.states[name], ask=lambda row: Message("bank.charge", {}, key=row.sku, headers=mine))
        saga.states[name] = asks
    with pytest.raises(ValueError, match="`ask` of orders in CHARGING gives ce_correlationid"):
        saga.command(again)
    assert saga.command(again._replace(state="RESERVING")).headers == mine


def test_due_saga_asks_again_with_doubled_waits_then_goes_on_or_waits_for_a_person() -> None:
    saga = declared()
    assert [saga.states["RESERVING"].wait_seconds(each) for each in (1, 2, 3)] == [60, 120, 240]
    assert saga.states["RESERVING"].wait_seconds(30) == 3600
    again = saga.on_due(ORDER._replace(attempt=2))
    assert isinstance(again, Go)
    assert (again.state, again.again) == ("RESERVING", True)
    over = saga.on_due(ORDER._replace(attempt=3))
    assert isinstance(over, Go)
    assert (over.state, over.reason) == ("RELEASING", "TIMED_OUT")
    assert saga.on_due(ORDER._replace(state="CANCELLING", attempt=999)).again  # type: ignore[union-attr]


def test_command_that_is_exhausted_without_a_way_on_waits_for_a_person() -> None:
    saga = shop({"NEW": State("New.", ("OVER",), ask="x", within=1, tries=2), "OVER": End("Over.")})
    left = saga.on_due(ORDER._replace(state="NEW", attempt=2))
    assert isinstance(left, Go)
    assert (left.state, left.due, left.again) == ("NEW", None, False)


def test_result_that_fits_nothing_is_no_step() -> None:
    saga = declared()
    charging = ORDER._replace(state="CHARGING")
    assert saga.on_result(charging, answer("bank.charged", ORDER.id, amount=1)) is None
    assert saga.on_result(ORDER, answer("bank.charged", ORDER.id, amount=500)) is None
    assert isinstance(saga.on_result(charging, answer("bank.refused", ORDER.id)), Go)


def test_rule_that_leads_elsewhere_than_it_says_is_refused_when_it_does() -> None:
    saga = shop({"NEW": State("New."), "A": State("A.", ("OVER",)), "OVER": End("Over.")})
    saga.on("NEW", "x.came", to="A")(lambda _order, _result: Go("OVER"))
    with pytest.raises(ValueError, match=r"the rule for x\.came in NEW leads to OVER, which its `to` does not name"):
        saga.on_result(ORDER._replace(state="NEW"), answer("x.came", ORDER.id))


def shop(states: dict[str, State], **more: Any) -> Saga[Any]:
    given: dict[str, Any] = {"commands": "c", "results": {"x.*": "x.results"}, "row": Order, **more}
    row = given.pop("row")
    return Saga("shop", row, table="shop.orders", of=lambda result: UUID(result.data["id"]), states=states, **given)


def untyped(states: dict[str, State], **more: Any) -> Any:
    """Return it for functions that a type checker refuses."""
    return shop(states, **more)


TWO = {"NEW": State("New."), "OVER": End("Over.")}


class NoRow(NamedTuple):
    """A row without the engine's columns."""

    id: UUID


class TextKey(NamedTuple):
    """A row whose key is a text."""

    id: str
    state: str
    attempt: int
    reason: str | None


def twice(saga: Saga[Any]) -> None:
    saga.on("NEW", "x.came", to="OVER")
    saga.on("NEW", "x.came", to="OVER")


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "two rules": (lambda: twice(shop(TWO)), "two rules for x.came in NEW"),
    "unknown state": (lambda: shop(TWO).on("OLD", "x.came", to="OVER"), "names OLD, which is not one of its states"),
    "unknown target": (lambda: shop(TWO).on("NEW", "x.came", to="GONE"), "names GONE, which is not one of its states"),
    "no topic of a result": (lambda: shop(TWO).on("NEW", "y.came", to="OVER"), "y.came comes from no topic"),
    "nothing leads there": (
        lambda: shop({**TWO, "LOST": State("Lost.", ("OVER",)), "NEW": State("New.", ("OVER",))}).machine,
        "nothing leads to LOST",
    ),
    "nothing ends it": (lambda: shop(TWO).machine, "NEW is no End, and nothing leads out of it"),
    "an end that goes on": (
        lambda: _and_more(shop({**TWO, "NEW": State("New.", ("OVER",))})), "OVER is an End",
    ),
    "undecided": (
        lambda: _undecided(shop({**TWO, "A": End("A.")})), "may lead to OVER, A, and does not say when",
    ),
    "ask without a topic": (
        lambda: shop({"NEW": State("New.", ask="x"), "OVER": End("Over.")}, commands=None), "there is no topic for it",
    ),
    "a row without its columns": (lambda: shop(TWO, row=NoRow), "NoRow is not a row of a saga: it has no field"),
    "a text as key": (lambda: shop(TWO, row=TextKey), "its key, id, is neither a UUID nor an int"),
    "then to nowhere": (
        lambda: shop({"NEW": State("New.", within=1, then="GONE"), "OVER": End("Over.")}), "leads to GONE",
    ),
    "then without a time": (lambda: State("New.", then="OVER"), "no `within`"),
    "no time": (lambda: State("New.", ask="x", within=0), "within=0"),
    "asks for ever and then": (lambda: State("New.", ask="x", within=1, then="OVER"), "asks for ever"),
    "two rules for a timeout": (
        lambda: shop({"NEW": State("New.", within=1, then="OVER"), "OVER": End("Over.")}).due("NEW", to="OVER"),
        "a rule for timeouts, and `then`",
    ),
    "started by an unknown type": (lambda: shop(TWO).starts("y.came"), "y.came cannot start it"),
    "a rule without parameters": (
        lambda: shop(TWO).on("NEW", "x.came", to="OVER")(lambda: Go("OVER")), "a function of (row, result)",
    ),
    "an asynchronous rule": (lambda: untyped(TWO).on("NEW", "x.came", to="OVER")(_later), "`_later` is asynchronous"),
    "a timeout of a result": (
        lambda: shop(TWO).due("NEW", to="OVER")(lambda _row, _result: None), "a function of (row)",
    ),
    "a start without a message": (lambda: untyped(TWO).starts("x.came")(lambda: ORDER), "a function of (message)"),
    "undoing without a result": (lambda: untyped(TWO).on_late(lambda _row: ()), "a function of (row, result)"),
    "completing without rows": (
        lambda: untyped(TWO, row=wider(limit=0)).complete("limit")(lambda _db: []), "a function of (db, rows)",
    ),
    "an event of nothing": (lambda: shop(TWO, event=lambda: "x"), "a function of (message)"),
    "a command of nothing": (
        lambda: shop({"NEW": State("New.", ask=lambda: None, within=1), "OVER": End("Over.")}), "a function of (row)",
    ),
    "asks again without counting": (
        lambda: _entered_again(declared()).machine, "CHARGING asks, and may be entered again",
    ),
    "counts in a text": (
        lambda: _entered_again(declared(wider(visit=""))).machine, "CHARGING asks, and may be entered again",
    ),
    "a rule for timeouts that would ask without counting": (
        lambda: shop({"NEW": State("New.", ask="x", within=1, tries=2), "OVER": End("Over.")}).due("NEW", to="OVER"),
        "a rule for timeouts, and `then` or `tries`",
    ),
    "two functions that start it": (lambda: _started_twice(shop(TWO)), "x.came cannot start it"),
    "completes a field of the engine": (lambda: shop(TWO).complete("reason"), "reason cannot be completed"),
    "completes a column": (lambda: shop(TWO).complete("sku"), "sku cannot be completed"),
}  # fmt: skip


async def _later(_row: object, _result: object) -> Go:
    return Go("OVER")


def _entered_again(saga: Saga[Any]) -> Saga[Any]:
    saga.on("RELEASING", "stock.kept", to="CHARGING")
    return saga


def _started_twice(saga: Saga[Any]) -> None:
    for _ in range(2):
        saga.starts("x.came")(lambda _message: ORDER)


def _and_more(saga: Saga[Any]) -> object:
    saga.on("OVER", "x.came", to="NEW")
    return saga.machine


def _undecided(saga: Saga[Any]) -> object:
    saga.on("NEW", "x.came", to=("OVER", "A"))
    return saga.machine


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_declaration_is_refused_with_the_reason(wrong: str) -> None:
    declare, said = WRONG[wrong]
    with pytest.raises(Misconfigured, match=re.escape(said)):
        declare()


@pytest.mark.parametrize("text", ["x", "1.5", str(2**63), str(-(2**63) - 1)])
def test_key_that_no_row_can_have_is_refused(text: str) -> None:
    with pytest.raises(FerrymanError, match=r"is not the key of a saga of delivery. Remedy: give a bigint"):
        key_of(deliveries.declared(), text)


def test_rule_sets_neither_the_state_nor_the_visits_that_the_engine_counts() -> None:
    assert "visit" in declared(wider(visit=0)).settable
    assert cyclic().settable == {"sku", "amount", "reservation", "attempt", "reason"}


def test_rule_may_name_the_state_that_it_is_in() -> None:
    """It stays there, which is no way of the machine."""
    saga = shop(TWO)
    saga.on("NEW", "x.came", to=("OVER", "NEW"))(lambda _row, _result: Go("NEW", due=5.0))
    assert saga.machine.transitions == (("NEW", "OVER"),)


def test_participants_must_have_read_the_commands_for_time_to_count() -> None:
    saga = shop(TWO, results={"x.*": "x.results"}, participants={"c": "store", "other": "bank"})
    assert saga.listeners == [("shop", "x.results"), ("store", "c"), ("bank", "other")]
    assert saga.command_topics == ["c", "other"]
    assert shop(TWO).command_topics == ["c"]


@pytest.mark.parametrize("unknown", ["ignore", "reject"])
def test_consumers_treat_unknown_types_as_the_saga_says(unknown: str) -> None:
    saga = shop(TWO, unknown=unknown)
    saga.on("NEW", "x.came", to="OVER")
    assert [each.unknown for each in saga.consumers()] == [unknown]


def test_step_says_what_it_does() -> None:
    assert repr(Go("DONE", set={"a": 1}, due=3.0)) == "Go('DONE', set={'a': 1}, due=3.0)"
    assert repr(Go("DONE")) == "Go('DONE')"
