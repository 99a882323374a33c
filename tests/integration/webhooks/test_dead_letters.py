"""Dead letters in the hands of an operator, under the role alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest

from ferryman import use_schemas
from ferryman.schemas import active
from ferryman.services.webhooks.dead_letters import (
    DISCARDED,
    LIST,
    REQUEUED,
    WAITING,
    LetterFilter,
    count_letters,
    discard,
    list_letters,
    next_letters,
    requeue,
    show_letter,
)
from ferryman.testing import stack
from support.published import poll_until
from support.webhooking import MONITOR, OPERATOR, Database, DeliveryDesk, subscribe, waits_for_a_lock

URL = "https://example.com/hooks"
BY_ANN = {"who": "ann", "reason": "it is up again"}


@pytest.fixture
def desk(ferryman_db: Database) -> Iterator[DeliveryDesk]:
    use_schemas()
    yield DeliveryDesk(ferryman_db)
    active.forget()


@pytest.fixture
def operator(ferryman_database_url: str) -> Iterator[Database]:
    login = stack.login(ferryman_database_url, f"operator_{uuid4().hex[:8]}", OPERATOR)
    with psycopg.connect(login, autocommit=True) as db:
        yield db


def dead(desk: DeliveryDesk, code: str = "GONE", event_type: str = "order.paid") -> int:
    """Return a delivery that was given up after its first attempt."""
    saga = desk.routed(subscribe(desk.db, URL, event_type, max_retry_limit=1))
    desk.apply(desk.end(saga, code))
    return saga


def ids(db: Database, **wanted: object) -> list[int]:
    found, _ = list_letters(db, LetterFilter(**wanted))  # type: ignore[arg-type]
    return [each.id for each in found]


def test_letters_are_listed_by_each_of_their_properties_newest_first(desk: DeliveryDesk, operator: Database) -> None:
    gone = dead(desk, "GONE")
    late = dead(desk, "TIMED_OUT", event_type="order.refunded")
    subscription = list_letters(operator)[0][0].subscription_id
    assert ids(operator) == [late, gone]
    for wanted in ({"code": "TIMED_OUT"}, {"event_type": "order.refunded"}, {"subscription": subscription},
                   {"ids": (late,)}, {"since": list_letters(operator)[0][0].created_at}):  # fmt: skip
        assert ids(operator, **wanted) == [late], wanted
    assert ids(operator, until=list_letters(operator)[0][0].created_at) == [gone]
    counts = count_letters(operator, LetterFilter())
    assert (counts.by_code, counts.disabled) == ({"GONE": 1, "TIMED_OUT": 1}, 0)


def test_pages_have_each_letter_once(desk: DeliveryDesk, operator: Database) -> None:
    sagas = [dead(desk) for _ in range(3)]
    first, further = list_letters(operator, limit=2)
    last, nothing = list_letters(operator, before=further, limit=2)
    assert [each.id for each in (*first, *last)] == sagas[::-1]
    assert nothing is None


def test_a_letter_shows_every_attempt_and_its_other_generations(desk: DeliveryDesk, operator: Database) -> None:
    """From the log of attempts: a job whose worker was lost has two."""
    saga = desk.routed(subscribe(desk.db, URL, max_retry_limit=2))
    desk.apply(desk.end(saga, "SERVER_FAILED"))
    desk.due()
    desk.db.execute(
        "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome) SELECT 'webhook-worker', id::text, "
        "clock_timestamp(), 'lost' FROM webhooks.webhook_delivery_jobs WHERE saga_id = %s AND attempt = 2", (saga,),
    )  # fmt: skip
    desk.apply(desk.end(saga, "GONE"))
    new = requeue(operator, [saga], **BY_ANN)[saga]
    story = show_letter(operator, saga)
    assert story is not None
    tried = [(job.attempt, [(each.outcome, each.code) for each in job.attempts]) for job in story.jobs]
    assert tried == [(1, [("failed", "SERVER_FAILED")]), (2, [("lost", None), ("failed", "GONE")])]
    assert [(each.id, each.generation, each.status) for each in story.generations] == [
        (saga, 0, "DeadLettered"), (new, 1, "Pending"),
    ]  # fmt: skip
    assert (story.letter.state, story.letter.requeued_as) == (REQUEUED, new)
    assert show_letter(operator, new) is None


def test_an_operator_sees_no_attempts_of_other_outboxes(desk: DeliveryDesk, operator: Database) -> None:
    dead(desk)
    desk.db.execute(
        "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome) VALUES ('mails', '1', now(), 'failed')"
    )
    assert operator.execute("SELECT outbox FROM ferryman.outbox_attempt").fetchall() == [("webhook-worker",)]


def test_a_letter_is_requeued_once_and_leaves_those_that_wait(desk: DeliveryDesk, operator: Database) -> None:
    """And its generation after the next can die and be requeued too."""
    saga = dead(desk)
    [(old, new)] = requeue(operator, [saga, 4711], **BY_ANN).items()
    assert (old, desk.stands(new)) == (saga, ("Pending", 0, None))
    assert requeue(operator, [saga], **BY_ANN) == {}
    assert ids(operator) == []
    desk.due()
    desk.apply(desk.end(new, "GONE"))
    assert ids(operator) == [new]
    assert list(requeue(operator, [saga, new], **BY_ANN)) == [new]


def test_a_letter_that_is_discarded_waits_no_more_and_can_be_requeued(desk: DeliveryDesk, operator: Database) -> None:
    kept, put_aside = dead(desk), dead(desk)
    assert discard(operator, [put_aside, 4711], who="ann", reason="a test") == [put_aside]
    assert discard(operator, [put_aside], who="bob", reason="again") == []
    assert ids(operator) == [kept]
    assert ids(operator, state=DISCARDED) == [put_aside]
    letter = list_letters(operator, LetterFilter(state=DISCARDED))[0][0]
    assert (letter.who or "").startswith("ann (operator_")
    assert letter.reason == "a test"
    assert list(requeue(operator, [put_aside], **BY_ANN)) == [put_aside]
    assert discard(operator, [put_aside], **BY_ANN) == []
    audit = desk.db.execute("SELECT act, filter -> 'dead', entries FROM ferryman.outbox_audit ORDER BY id").fetchall()
    assert audit == [("discard", [put_aside], 1), ("requeue", [put_aside], 1)]


def test_nothing_is_requeued_to_a_disabled_subscription(desk: DeliveryDesk, operator: Database) -> None:
    """It would be dead again at once."""
    saga = dead(desk)
    desk.db.execute("UPDATE webhooks.subscriptions SET active = false")
    assert requeue(operator, [saga], **BY_ANN) == {}
    assert count_letters(operator, LetterFilter()).disabled == 1
    desk.db.execute("UPDATE webhooks.subscriptions SET active = true")
    assert list(requeue(operator, [saga], **BY_ANN)) == [saga]


def test_an_act_leaves_out_letters_that_came_after_it_was_planned(desk: DeliveryDesk, operator: Database) -> None:
    """A delivery that dies again at once is not requeued for ever."""
    first = dead(desk)
    counts = count_letters(operator, LetterFilter())
    dead(desk)
    found = next_letters(operator, LetterFilter(), after=0, last=counts.last, most=10)
    assert [each.id for each in found] == [first]
    assert next_letters(operator, LetterFilter(), after=found[-1].number, last=counts.last, most=10) == []


def test_requeue_and_discard_at_once_decide_about_a_letter_once(
    desk: DeliveryDesk, operator: Database, ferryman_database_url: str
) -> None:
    """N6: the second waits for the first, and finds that there is nothing left to do."""
    saga = dead(desk)
    with psycopg.connect(ferryman_database_url) as first, ThreadPoolExecutor() as threads:
        assert list(requeue(first, [saga], **BY_ANN)) == [saga]
        again = threads.submit(lambda: requeue(operator, [saga], **BY_ANN))
        poll_until(lambda: waits_for_a_lock(first), "the second one's wait")
        aside = threads.submit(lambda: discard(desk.db, [saga], **BY_ANN))
        first.commit()
        assert (again.result(10), aside.result(10)) == ({}, [])
    assert [each.state for each in list_letters(operator, LetterFilter(state=None))[0]] == [REQUEUED]


def test_a_monitor_sees_letters_and_decides_about_none(desk: DeliveryDesk, ferryman_database_url: str) -> None:
    saga = dead(desk)
    login = stack.login(ferryman_database_url, f"monitor_{uuid4().hex[:8]}", MONITOR)
    with psycopg.connect(login, autocommit=True) as db:
        story = show_letter(db, saga)
        assert story is not None
        assert story.letter.state == WAITING
        assert len(story.jobs[0].attempts) == 1
        for act in (requeue, discard):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                act(db, [saga], **BY_ANN)


def test_letters_that_wait_are_found_by_an_index_of_their_own(desk: DeliveryDesk) -> None:
    """However many others there are: those are kept until they are archived."""
    dead(desk)
    values = {**LetterFilter().values(), "before": None, "most": 50}
    with psycopg.ClientCursor(desk.db) as cursor:
        cursor.execute("SET enable_seqscan = off")
        plan = cursor.execute(f"EXPLAIN {LIST}", values).fetchall()
    assert any("dead_letters_waiting" in line for (line,) in plan), plan
    assert not any("Filter" in line for (line,) in plan), plan
