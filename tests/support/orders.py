"""A saga as an adopter writes it: an order asks the store for an item, then the bank for the money."""

from collections import namedtuple
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from ferryman import End, Go, Received, Saga, State
from ferryman.consumer.model import Record
from ferryman.consumer.wire import hash_of
from ferryman.schemas.headers import CORRELATION


class Order(NamedTuple):
    """The columns of shop.orders; the last three are the engine's."""

    id: UUID
    sku: str
    amount: int
    reservation: str | None = None
    state: str = "RESERVING"
    attempt: int = 1
    reason: str | None = None


def wider(**more: object) -> Any:
    """Return the class of a row that has more fields behind those of an order, each with its default."""
    defaults = {**Order._field_defaults, **more}
    make: Any = namedtuple  # noqa: PYI024 - a type checker knows only rows that are written out
    made = make("made", (*Order._fields, *more), defaults=defaults.values())
    made.__annotations__ = {**Order.__annotations__, **{name: type(value) for name, value in more.items()}}
    return made


def declared(row: type[Order] = Order) -> Saga[Order]:
    orders = Saga(
        "orders", row, table="shop.orders", of=lambda result: UUID(result.data["id"]), commands="shop.commands",
        results={"stock.*": "stock.results", "bank.*": "bank.results"},
        states={
            "RESERVING": State("The store is asked.", ask="stock.reserve", within=60, tries=3, then="RELEASING"),
            "CHARGING": State("The bank is asked.", ask="bank.charge", within=60, tries=3, then="CANCELLING"),
            "CANCELLING": State("The bank did not answer; only its answer ends this.", ask="bank.cancel", within=60),
            "RELEASING": State("The store takes the item back.", ask="stock.release", within=60),
            "DONE": End("Paid."),
            "CANCELLED": End("Nothing is reserved or charged."),
        },
    )  # fmt: skip
    orders.on("RESERVING", "stock.out", to="CANCELLED", reason="OUT_OF_STOCK")
    orders.on("CHARGING", "bank.refused", to="RELEASING", reason="NO_MONEY")
    orders.on("CANCELLING", "bank.cancelled", to="RELEASING", reason="TIMED_OUT")
    orders.on("RELEASING", "stock.released", to="CANCELLED")

    @orders.on("RESERVING", "stock.reserved", to="CHARGING")
    def reserved(_order: Order, result: Received) -> Go:
        return Go("CHARGING", set={"reservation": result.data["reservation"]})

    @orders.on("CHARGING", "bank.charged", to="DONE")
    def charged(order: Order, result: Received) -> Go | None:
        return Go("DONE") if result.data["amount"] == order.amount else None

    return orders


ORDERS = declared()


def cyclic() -> Saga[Order]:
    """Return an order that is charged again if the store keeps its item."""
    orders = declared(wider(visit=0))
    orders.on("RELEASING", "stock.kept", to="CHARGING")
    return orders


def answer(kind: str, order: UUID, *, topic: str | None = None, to: str | None = None, **more: object) -> Received:
    """Return a result of the store or the bank: to the command with this correlation."""
    data = {"id": str(order), **more}
    headers: list[tuple[str, bytes | None]] = [] if to is None else [(CORRELATION, to.encode())]
    record = Record(topic or f"{kind.partition('.')[0]}.results", 0, 0, str(order).encode(), b"", headers, 0)
    return Received(uuid4(), kind, data, str(order), record, hash_of(repr(data).encode()))
