"""`after_commit` functions: called beside the loop, at most once, and without delaying it."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from structlog.testing import capture_logs

from ferryman.consumer import metrics
from ferryman.consumer.after_commit import AfterCommitThread
from ferryman.consumer.api import Consumer, Handled
from ferryman.consumer.model import Record

MESSAGE = UUID("00000000-0000-0000-0000-000000000001")


def handled(value: bytes = b"") -> Handled:
    return cast(Handled, (SimpleNamespace(id=MESSAGE, record=Record("t", 0, 0, None, value, [], 0)), "done"))


ONE = handled()


def untold(consumer: str) -> float:
    return float(cast(Any, metrics.UNTOLD.labels(consumer))._value.get())


def test_all_calls_are_made_in_order_before_the_process_ends() -> None:
    consumer, told = Consumer("told", ["t"]), list[Any]()

    @consumer.after_commit
    def tell(handled: Sequence[Handled]) -> None:
        told.extend(handled)

    calls = AfterCommitThread(consumer.name, consumer.callbacks)
    sent = [handled(b"%d" % number) for number in range(50)]
    for each in sent:
        calls.submit([each])
    calls.close()
    assert told == sent
    assert untold("told") == 0


def test_a_function_that_fails_is_counted_and_the_next_one_is_called() -> None:
    told = list[Sequence[Handled]]()

    def fail(_: Sequence[Handled]) -> None:
        raise ValueError("a bug")

    calls = AfterCommitThread("failing", [fail, told.append])
    calls.submit([ONE])
    calls.submit([ONE])
    calls.close()
    assert told == [[ONE], [ONE]]
    assert untold("failing") == 2


def test_a_slow_function_delays_nobody_and_calls_that_do_not_fit_are_dropped() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Sequence[Handled]) -> None:
        begun.set()
        go_on.wait(10)

    calls = AfterCommitThread("slow", [slow], most=2)
    calls.submit([ONE])
    assert begun.wait(5)
    with capture_logs() as logs:
        for _ in range(5):
            calls.submit([ONE])
        assert untold("slow") == 3
        calls.close(0.05)
    assert untold("slow") == 5
    assert [(each["event"], each["ids"]) for each in logs] == [("not told", [str(MESSAGE)] * n) for n in (1, 1, 1, 2)]
    go_on.set()


def test_the_queue_is_bounded_by_its_number_of_messages() -> None:
    """N12: a batch may have hundreds, each with all its data."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Sequence[Handled]) -> None:
        begun.set()
        go_on.wait(10)

    calls = AfterCommitThread("large", [slow], most=10)
    calls.submit([ONE])
    assert begun.wait(5)
    for _ in range(3):
        calls.submit([ONE] * 4)
    assert untold("large") == 4
    go_on.set()
    calls.close()
    assert untold("large") == 4


def test_the_queue_is_bounded_by_its_bytes_too() -> None:
    """N12: 10,000 large messages took gigabytes while a function hung."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Sequence[Handled]) -> None:
        begun.set()
        go_on.wait(10)

    calls = AfterCommitThread("heavy", [slow], most_bytes=1000)
    calls.submit([ONE])
    assert begun.wait(5)
    for _ in range(3):
        calls.submit([handled(b"x" * 2000)])
    assert untold("heavy") == 2, "a batch that is larger than the bound waits alone"
    go_on.set()
    calls.close()


def test_a_consumer_without_functions_has_no_thread() -> None:
    before = threading.active_count()
    calls = AfterCommitThread("silent", [])
    calls.submit([ONE])
    calls.close()
    assert threading.active_count() == before
