"""The columns of a row: their names and types in SQL, and their form in a command."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from ferryman import End, Message, Misconfigured, Saga, State
from ferryman.message import stored
from ferryman.saga.admin import as_json
from ferryman.saga.columns import SQL_TYPES, fits, quoted
from ferryman.saga.machine import Columns

STATES = {"A": State("Asked.", ask="do.a", within=60, tries=1, then="Z"), "Z": End("Over.")}
KEY = UUID(int=7)


class Everything(NamedTuple):
    """A row with a column of every type that `ferryman saga sql` can write."""

    id: UUID
    number: int = 2**53 + 1
    flag: bool = True
    ratio: float = 0.1
    price: Decimal = Decimal("1.10")
    raw: bytes = b"\x00\xff"
    at: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    day: date = date(2026, 1, 2)
    wait: timedelta = timedelta(minutes=1)
    more: dict[str, Any] = {"price": Decimal("1.5"), "days": [date(2026, 1, 3)]}  # noqa: RUF012 - a row never changes
    parts: list[str] = ["a"]  # noqa: RUF012
    other: UUID | None = None
    state: str = "A"
    attempt: int = 1
    reason: str | None = None


def saga(row: Any = Everything, states: dict[str, Any] | None = None, **more: Any) -> Saga[Any]:
    given: dict[str, Any] = {"table": "t.rows", "commands": "c", "results": {"x.*": "r"}, "of": lambda _: KEY, **more}
    return Saga(given.pop("name", "every"), row, states=states or STATES, **given)


def test_command_has_a_form_in_json_for_every_type_of_a_column() -> None:
    command = saga().command(Everything(KEY))
    assert stored(command).payload.decode() == (
        '{"id":"00000000-0000-0000-0000-000000000007","number":9007199254740993,"flag":true,"ratio":0.1,'
        '"price":"1.10","raw":"AP8=","at":"2026-01-02T03:04:05+00:00","day":"2026-01-02","wait":60.0,'
        '"more":{"price":"1.5","days":["2026-01-03"]},"parts":["a"],"other":null}'
    )
    assert {kind for kind, _ in saga().types_of_fields.values()} == {*SQL_TYPES}


def test_row_has_a_form_in_json_for_every_type_of_a_column() -> None:
    """Bytes were printed as Python writes them."""
    shown = as_json({**Everything(KEY)._asdict(), "due_at": datetime.max.replace(tzinfo=UTC)})
    assert (shown["raw"], shown["price"], shown["wait"]) == ("AP8=", "1.10", 60.0)
    assert (shown["at"], shown["due_at"]) == ("2026-01-02T03:04:05+00:00", "infinity")


@pytest.mark.parametrize(("name", "said"), [("sku", "sku"), ("order", '"order"'), ("placedBy", '"placedBy"')])
def test_name_of_a_column_is_quoted_if_it_needs_it(name: str, said: str) -> None:
    assert quoted(name) == said


@pytest.mark.parametrize(
    ("kind", "live", "does"),
    [
        (str, "shop.colour", True), (str, "character varying", True), (str, "integer", False), (int, "text", False),
        (int, "smallint", True), (list, "text[]", True), (dict, "text", False), (object, "anything", True),
    ],
)  # fmt: skip
def test_type_of_a_live_column_fits_its_field_or_not(kind: Any, live: str, does: bool) -> None:
    assert fits(kind, live) is does


# --- rows and names that are refused


class Timed(NamedTuple):
    """A row that names a column of the engine."""

    id: UUID
    due_at: datetime | None = None
    state: str = "A"
    attempt: int = 1
    reason: str | None = None


class Counted(NamedTuple):
    """A row without a key."""

    attempt: int
    state: str = "A"
    reason: str | None = None


class Middle(NamedTuple):
    """A row with a field of another table before its columns."""

    id: UUID
    limit: int = 0
    state: str = "A"
    attempt: int = 1
    reason: str | None = None


class Last(NamedTuple):
    """A row with a field of another table behind its columns."""

    id: UUID
    state: str = "A"
    attempt: int = 1
    reason: str | None = None
    limit: int = 0


def _completed_twice() -> None:
    made = saga(Last)
    made.complete("limit")(lambda _, rows: rows)
    made.complete("limit")


def _started_by_a_result() -> object:
    made = saga()
    made.starts("x.came")(lambda _: Everything(KEY))
    made.on("A", "x.came", to="Z")
    return made.machine


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a column twice": (lambda: saga(Timed), "two of its columns are called due_at"),
    "two columns of one name": (lambda: saga(columns=Columns(state="number")), "two of its columns are called number"),
    "no key": (lambda: saga(Counted), "its key, attempt, is neither a UUID nor an int"),
    "of is a text": (lambda: saga(of="id"), "`id` is not a function of (message)"),
    "a state that is a text": (lambda: saga(states={"A": "asked"}), "A is 'asked'"),
    "a table without its schema": (lambda: saga(table="rows").machine, "rows is not named as schema.table"),
    "a name that is too long": (lambda: saga(name="x" * 55).machine, "its name has more than 54 letters"),
    "a column that is a word of SQL": (
        lambda: saga(columns=Columns(reason="user")).machine, "its column user is a word of SQL",
    ),
    "a quote in a state": (
        lambda: saga(states={"A": State("A.", ("IT'S",)), "IT'S": End("Z.")}).machine, "is not the name of a state",
    ),
    "completed before the columns": (lambda: saga(Middle).complete("limit"), "are not the last fields of the row"),
    "completed twice": (_completed_twice, "limit cannot be completed"),
    "a column of the engine completed": (lambda: saga().complete("state"), "state cannot be completed"),
    "a rule of an end": (lambda: saga().on("Z", "x.came", to="Z"), "Z is an End, and has a rule for x.came"),
    "a timeout of an end": (lambda: saga().due("Z", to="A"), "Z is an End, and has a rule for timeouts"),
    "a start that a rule waits for": (_started_by_a_result, "x.came starts it, and a rule waits for it"),
    "within as text": (lambda: State("A.", ask="x", within="60"), "within='60'"),  # type: ignore[arg-type]
    "one way as text": (lambda: State("A.", "DONE"), "to='DONE'"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_row_name_or_rule_is_refused_with_the_reason(wrong: str) -> None:
    declare, said = WRONG[wrong]
    with pytest.raises(Misconfigured) as refused:
        declare()
    assert said in str(refused.value)


def test_function_that_asks_for_nothing_is_refused() -> None:
    made = saga(states={**STATES, "A": State("A.", ("Z",), ask=lambda _: None, within=1)})
    with pytest.raises(TypeError, match="`ask` of every in A returned None: return a Message"):
        made.command(Everything(KEY))
    right = saga(states={**STATES, "A": State("A.", ("Z",), ask=lambda _: Message("m", {}, key="k"), within=1)})
    assert right.command(Everything(KEY)).topic == "c"
