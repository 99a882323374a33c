"""A crossing to look at: orders are appended, some are rolled back, the relay publishes, and the topic is read."""

import random
import threading
import time
from dataclasses import dataclass

import psycopg

from ferryman.message import Message
from ferryman.outbox import append, append_many
from ferryman.relay.service import drain
from ferryman.runtime.settings import Settings
from ferryman.testing.topics import new_topic, read_topic

TOPIC = "orders"
_CUSTOMERS = 50


@dataclass(frozen=True, slots=True)
class Crossing:
    """What went in, what came out, and whether that is the same."""

    committed: int
    rolled_back: int
    read: int
    missing: int
    doubled: int
    of_rolled_back: int
    out_of_order: int
    seconds: float

    @property
    def good(self) -> bool:
        return self.committed == self.read and not (
            self.missing or self.doubled or self.of_rolled_back or self.out_of_order
        )


def cross(settings: Settings, url: str, bootstrap: str, *, orders: int) -> Crossing:
    """Appends, publishes and reads back; the seconds are those of the relay."""
    new_topic(bootstrap, TOPIC)
    committed, rolled_back = _append(url, orders)
    began = time.monotonic()
    drain(settings, threading.Event())
    seconds = time.monotonic() - began
    came = [(_text(record.key()), int(_text(record.value()))) for record in read_topic(bootstrap, TOPIC)]
    last: dict[str, int] = {}
    out_of_order = 0
    for key, number in came:
        out_of_order += number < last.get(key, 0)
        last[key] = number
    return Crossing(
        committed=len(committed),
        rolled_back=len(rolled_back),
        read=len(came),
        missing=len(committed - set(came)),
        doubled=len(came) - len(set(came)),
        of_rolled_back=len(rolled_back & set(came)),
        out_of_order=out_of_order,
        seconds=seconds,
    )


def _append(url: str, orders: int) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """(customer, number) of what was committed and of what was rolled back, a tenth."""
    committed, rolled_back = set(), set()
    dice = random.Random(1)
    with psycopg.connect(url) as connection:
        for first in range(0, orders, 100):
            batch = [(f"customer-{dice.randrange(_CUSTOMERS)}", number) for number in range(first, first + 100)]
            append_many(connection, [_order(*each) for each in batch])
            connection.commit()
            committed |= set(batch)
            lost = (f"customer-{dice.randrange(_CUSTOMERS)}", orders + first)
            append(connection, _order(*lost))
            connection.rollback()
            rolled_back.add(lost)
    return committed, rolled_back


def _order(customer: str, number: int) -> Message:
    return Message("order.placed", str(number).encode(), key=customer, topic=TOPIC)


def _text(value: bytes | None) -> str:
    return (value or b"").decode()
