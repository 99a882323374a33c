"""`after_commit`: told beside the loop, at most once, and on nobody's way."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from structlog.testing import capture_logs

from ferryman.consumer import metrics
from ferryman.consumer.api import Consumer, Handled
from ferryman.consumer.telling import Telling

MESSAGE = UUID("00000000-0000-0000-0000-000000000001")
ONE = cast(Handled, (SimpleNamespace(id=MESSAGE), "done"))


def untold(consumer: str) -> float:
    return float(cast(Any, metrics.UNTOLD.labels(consumer))._value.get())


def test_what_was_committed_is_told_in_its_order_before_the_end() -> None:
    consumer, told = Consumer("told", ["t"]), list[Any]()

    @consumer.after_commit
    def tell(handled: Sequence[Handled]) -> None:
        told.extend(handled)

    telling = Telling(consumer.name, consumer.told)
    for number in range(50):
        telling.tell([cast(Handled, number)])
    telling.close()
    assert told == list(range(50))
    assert untold("told") == 0


def test_a_function_that_fails_is_counted_and_the_next_is_told() -> None:
    told = list[Sequence[Handled]]()

    def fail(_: Sequence[Handled]) -> None:
        raise ValueError("a bug")

    telling = Telling("failing", [fail, told.append])
    telling.tell([ONE])
    telling.tell([ONE])
    telling.close()
    assert told == [[ONE], [ONE]]
    assert untold("failing") == 2


def test_a_slow_function_delays_nobody_and_what_does_not_fit_is_not_told() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Sequence[Handled]) -> None:
        begun.set()
        go_on.wait(10)

    telling = Telling("slow", [slow], most=2)
    telling.tell([ONE])
    assert begun.wait(5)
    with capture_logs() as logs:
        for _ in range(5):
            telling.tell([ONE])
        assert untold("slow") == 3
        telling.close(0.05)
    assert untold("slow") == 5
    assert [(each["event"], each["ids"]) for each in logs] == [("not told", [str(MESSAGE)] * n) for n in (1, 1, 1, 2)]
    go_on.set()


def test_how_much_waits_to_be_told_is_bounded_by_messages() -> None:
    """N12: a batch may have hundreds, each with all its data."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Sequence[Handled]) -> None:
        begun.set()
        go_on.wait(10)

    telling = Telling("large", [slow], most=10)
    telling.tell([ONE])
    assert begun.wait(5)
    for _ in range(3):
        telling.tell([ONE] * 4)
    assert untold("large") == 4
    go_on.set()
    telling.close()
    assert untold("large") == 4


def test_without_a_function_there_is_no_thread() -> None:
    before = threading.active_count()
    telling = Telling("silent", [])
    telling.tell([ONE])
    telling.close()
    assert threading.active_count() == before
