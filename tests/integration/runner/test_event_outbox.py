"""The table of the durable dispatcher: how events get into it, and what a delivery writes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import psycopg
import pytest

from ferryman import Misconfigured
from ferryman.cli import wiring
from ferryman.relay.described.service import DescribedOutbox
from ferryman.runtime.postgres import Connection
from ferryman.services.runner.events import AnotherEvent, enqueue
from ferryman.testing import stack
from ferryman.testing.receiver import Answer, Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def deliver_once(database_url: str, url: str, **settings: str) -> None:
    """Take one drain's turns at what is due now."""
    named = {f"FERRYMAN_RUNNER__{name.upper()}": value for name, value in settings.items()}
    environment = {
        "FERRYMAN_DATABASE_URL": database_url, "FERRYMAN_HTTP__ALLOW": '["127.0.0.0/8"]', "FERRYMAN_RUNNER__URL": url,
        "FERRYMAN_RUNNER__SECRET": "s", "FERRYMAN_RUNNER__BASE_SECONDS": "60", **named,
    }  # fmt: skip
    [service] = wiring.services(["runner"], wiring.load_settings(environment).settings)
    assert isinstance(service, DescribedOutbox)
    with closing(service.way):
        service.drain(threading.Event(), lambda _: None)


def test_the_same_event_is_recorded_once_and_another_payload_is_refused(ferryman_db: Connection) -> None:
    first = enqueue(ferryman_db, "file.uploaded", "file-1", {"a": 1, "b": [2]})
    assert enqueue(ferryman_db, "file.uploaded", "file-1", {"b": [2], "a": 1}) == first
    with pytest.raises(AnotherEvent, match="file-1"):
        enqueue(ferryman_db, "file.uploaded", "file-1", {"a": 2})
    assert enqueue(ferryman_db, "file.removed", "file-1", {"a": 1}) != first
    assert ferryman_db.execute("SELECT count(*) FROM runner.event_outbox").fetchone() == (2,)
    with pytest.raises(psycopg.errors.UniqueViolation):
        ferryman_db.execute("INSERT INTO runner.event_outbox (event_type, idempotency_key, payload) "
                            "VALUES ('file.uploaded', 'file-1', '{}')")  # fmt: skip


def test_an_event_is_recorded_with_its_transaction_or_not_at_all(ferryman_db: Connection) -> None:
    """N2."""
    with ferryman_db.transaction(force_rollback=True):
        enqueue(ferryman_db, "file.uploaded", "file-1", {})
    assert ferryman_db.execute("SELECT count(*) FROM runner.event_outbox").fetchone() == (0,)


def test_the_same_event_of_two_transactions_at_once_is_recorded_once(
    ferryman_database_url: str, ferryman_db: Connection
) -> None:
    found: list[UUID] = []
    with psycopg.connect(ferryman_database_url) as other, ferryman_db.transaction():
        first = enqueue(ferryman_db, "file.uploaded", "file-1", {})
        waiting = threading.Thread(target=lambda: found.append(enqueue(other, "file.uploaded", "file-1", {})))
        waiting.start()
    waiting.join(10)
    assert found == [first]


def test_a_writer_records_events_and_reads_none(ferryman_db: Connection) -> None:
    ferryman_db.execute("SET ROLE ferryman_runner_writer")
    enqueue(ferryman_db, "file.uploaded", "file-1", {"secret": 1})
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ferryman_db.execute("SELECT payload FROM runner.event_outbox")


def test_the_dispatcher_needs_its_role_and_no_other(
    ferryman_database_url: str, ferryman_db: Connection, receiver: Receiver
) -> None:
    enqueue(ferryman_db, "file.uploaded", "file-1", {})
    with pytest.raises(Misconfigured, match="GRANT ferryman_runner TO plain"):
        deliver_once(stack.login(ferryman_database_url, "plain"), receiver.url)
    deliver_once(stack.login(ferryman_database_url, "runner", "ferryman_runner"), receiver.url)
    assert len(receiver.requests) == 1


def test_an_event_says_sending_while_it_is_sent(
    ferryman_database_url: str, ferryman_db: Connection, receiver: Receiver
) -> None:
    during: list[object] = []

    def answer(_: object) -> Answer:
        during.extend(ferryman_db.execute("SELECT status, attempt_count FROM runner.event_outbox").fetchall())
        return Answer(200)

    receiver.answer = answer
    enqueue(ferryman_db, "file.uploaded", "file-1", {})
    deliver_once(ferryman_database_url, receiver.url)
    assert during == [("SENDING", 1)]


def test_a_failed_event_comes_again_when_it_is_due_and_not_before(
    ferryman_database_url: str, ferryman_db: Connection, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Answer(503)
    enqueue(ferryman_db, "file.uploaded", "file-1", {})
    for moved, requests in (("0 s", 1), ("0 s", 1), ("3 min", 2)):
        ferryman_db.execute("UPDATE runner.event_outbox SET next_attempt_at = next_attempt_at - %s::interval", (moved,))
        deliver_once(ferryman_database_url, receiver.url)
        assert len(receiver.requests) == requests


def test_an_outage_counts_as_a_failure_and_gives_nothing_up(
    ferryman_database_url: str, ferryman_db: Connection
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    enqueue(ferryman_db, "file.uploaded", "file-1", {})
    ferryman_db.execute("UPDATE runner.event_outbox SET attempt_count = 5000")
    deliver_once(ferryman_database_url, f"http://127.0.0.1:{port}")
    [row] = ferryman_db.execute(
        "SELECT status, attempt_count, last_error, round(extract(epoch FROM next_attempt_at - updated_at)) "
        "FROM runner.event_outbox"
    ).fetchall()
    assert row == ("FAILED", 5001, "no connection: ECONNREFUSED", 3600)


def test_jitter_spreads_events_that_failed_together(
    ferryman_database_url: str, ferryman_db: Connection, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Answer(503)
    for number in range(20):
        enqueue(ferryman_db, "file.uploaded", f"file-{number}", {})
    deliver_once(ferryman_database_url, receiver.url, jitter="0.5")
    waits = [
        wait for (wait,) in ferryman_db.execute(
            "SELECT extract(epoch FROM next_attempt_at - updated_at)::float8 FROM runner.event_outbox"
        ).fetchall()
    ]  # fmt: skip
    assert all(60 <= wait <= 120 for wait in waits)
    assert max(waits) - min(waits) > 10
