"""An adopter's consumer as a process: each message takes effect once."""

import signal
import time
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.consuming import Shop, asked
from support.launch import Launched, Launcher
from support.published import poll_until, readyz
from support.published import said as logged

Database = psycopg.Connection[tuple[Any, ...]]
pytestmark = pytest.mark.real_kafka


@pytest.fixture
def shop(ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database) -> Shop:
    return Shop(ferryman, ferryman_kafka, ferryman_database_url, ferryman_db)


def test_each_message_takes_effect_once_and_is_reported(shop: Shop) -> None:
    for number in range(300):
        shop.send(2, number % 10)
    shop.flush()
    wallet = shop.start()
    wallet.until(lambda: shop.settled(300), "verdicts")
    shop.books_balance()
    assert shop.verdicts() == {"DONE": 300}
    assert len(shop.reports()) == len(set(shop.reports())) == 300
    wallet.send(signal.SIGTERM)
    assert wallet.wait() == 0, wallet.transcript()


def test_a_duplicate_has_no_effect_and_is_answered_with_the_same_result(shop: Shop) -> None:
    """N3, N5, N6."""
    first = shop.send(5)
    shop.flush()
    wallet = shop.start()
    wallet.until(lambda: shop.settled(1), "a verdict")
    for _ in range(3):
        shop.send(5, id=first)
    last = shop.send(7)
    shop.flush()
    wallet.until(lambda: shop.settled(2), "the last verdict")
    shop.books_balance()
    reported = shop.reports()
    assert len(reported) == 5
    assert len(set(reported)) == 2
    assert shop.one("SELECT count(*) FROM effect WHERE payment = %s", str(last)) == 1


def test_metrics_and_health_show_verdicts_and_lag(shop: Shop) -> None:
    """Verdicts, retries, batches, rebalances, and the lag, which is 0 once everything is handled."""
    first = shop.send(5)
    for number in range(1, 10):
        shop.send(1, number)
    shop.send(2_000_000, 0)
    shop.send(1, 1, do="raise")
    shop.send(5, id=first)
    shop.raw(b'{"wallet": "w0", "amount": 6}', id=first, key=b"w0")
    shop.flush()
    wallet = shop.start(FERRYMAN_CONSUMER__TRIES="2")
    wanted = {"done": 10, "refused": 1, "duplicate": 1, "conflict": 1, "rejected": 1}

    def told() -> dict[str, float]:
        return {
            sample.labels.get("verdict", sample.name.removeprefix("ferryman_consumer_")): sample.value
            for family in text_string_to_metric_families(asked(wallet, "/metrics"))
            for sample in family.samples
            if sample.labels.get("consumer") == shop.name and not sample.name.endswith(("_bucket", "_created"))
        }

    wallet.until(lambda: shop.settled(12), "verdicts")
    wallet.until(lambda: wanted.items() <= told().items() and told()["lag_messages"] == 0, "the metrics")
    found = told()
    assert found["retries_total"] >= 1
    assert found["batch_messages_sum"] >= sum(wanted.values())
    assert found["batch_seconds_count"] >= 1
    assert found["batch_seconds_sum"] > 0
    assert (found["rebalances_total"], found["partitions"]) == (1, 3)
    assert found["lag_seconds"] == 0
    assert abs(found["last_poll_timestamp_seconds"] - time.time()) < 30


def test_a_trace_goes_on_from_a_message_to_its_reports(shop: Shop) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    traced = uuid4()
    body = b'{"wallet": "w1", "amount": 1}'
    shop.raw(body, id=traced, key=b"w1", headers={"traceparent": trace.encode()})
    shop.raw(body, key=b"w1")
    shop.flush()
    wallet = shop.start()
    wallet.until(lambda: shop.settled(2), "verdicts")
    headers = shop.db.execute("SELECT headers FROM ferryman.outbox WHERE topic = 'results'").fetchall()
    assert sorted(each.get("traceparent", "") for (each,) in headers) == ["", trace]


def test_a_refused_message_has_its_reason_in_the_receipt(shop: Shop) -> None:
    shop.send(2_000_000)
    shop.flush()
    wallet = shop.start()
    wallet.until(lambda: shop.settled(1), "a verdict")
    assert shop.verdicts() == {"REFUSED": 1}
    assert shop.one("SELECT reason FROM ferryman.inbox") == "INSUFFICIENT_FUNDS"
    assert [kind for _, kind in shop.reports()] == ["payment.failed"]


BROKEN = {
    "raise": "ValueError: a bug",
    "swallow": "it swallowed a database error",
    "commit": "commit",
    "rollback": "rollback",
    "COMMIT": "it ended the transaction: only the runtime commits",
    "BEGIN AGAIN": "it ended the transaction: only the runtime commits",
    "cursor": "it left 1 cursors open",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_handler_that_breaks_the_transaction_harms_only_its_own_message(shop: Shop, how: str) -> None:
    """N9, N10."""
    shop.send_amid(20, do=how)
    wallet = shop.start(FERRYMAN_CONSUMER__TRIES="2")
    wallet.until(lambda: shop.settled(41), "verdicts")
    assert shop.verdicts() == {"DONE": 40, "REJECTED": 1}
    assert BROKEN[how].lower() in shop.one("SELECT error FROM ferryman.inbox WHERE status = 'REJECTED'").lower()
    shop.books_balance()
    assert shop.one("SELECT count(*) FROM ferryman.outbox WHERE topic = %s", f"{shop.topic}.dlt") == 1


REFUSED = {
    "long key": "its key has 3000 bytes",
    "impossible topic": "Kafka refuses its topic",
    "large payload": "its payload has 1000001 bytes",
    "half a character": "surrogates not allowed",
    "null byte": "invalid byte sequence",
    "reason that is not a string": "its reason 5 is not a string",
    "id that is not a UUID": "badly formed hexadecimal UUID string",
    "content type that is bytes": "its content_type is not text but a bytes",
    "report that is not a message": "a report must be a ferryman.Message, not str",
    "retry without a time": "another try after None",
}
BEHIND = {
    "deferred": "duplicate key value violates unique constraint",
    "savepoint": "wrong nesting level",
    "raise half a character": "ValueError: ?",
    "close": "it closed the connection",
}


def test_what_is_refused_after_a_handler_is_its_fault_and_harms_no_neighbour(
    ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> None:
    """N9, N10: the outbox refuses a report, a deferred constraint the COMMIT, or psycopg a value."""
    shop = Shop(ferryman, ferryman_kafka, ferryman_database_url, ferryman_db, partitions=1)
    bad: list[dict[str, Any]] = [{"report": each} for each in REFUSED] + [{"do": each} for each in BEHIND]
    for number in range(500 - len(bad)):
        if number % 30 == 20 and bad:
            shop.send(1, 3, **bad.pop())
        shop.send(1, number % 10)
    assert not bad
    shop.flush()
    wallet = shop.start(FERRYMAN_CONSUMER__TRIES="1")
    wallet.until(lambda: shop.settled(500), "verdicts", 60)
    assert shop.verdicts() == {"DONE": 500 - len(REFUSED | BEHIND), "REJECTED": len(REFUSED | BEHIND)}
    rejected = shop.db.execute("SELECT error, code FROM ferryman.inbox_rejected").fetchall()
    for said in (REFUSED | BEHIND).values():
        assert [code for error, code in rejected if said in error] == ["BUG"], said
    shop.books_balance()


def test_a_handlers_row_factory_does_not_reach_the_runtime(shop: Shop) -> None:
    shop.send(1, 1, do="rows as dicts")
    shop.send(1, 1)
    shop.send(1, 2)
    shop.flush()
    wallet = shop.start()
    wallet.until(lambda: shop.settled(3), "verdicts")
    assert shop.verdicts() == {"DONE": 3}
    shop.books_balance()


@pytest.mark.parametrize("how", ["unreachable", "another database"])
def test_an_unreachable_service_holds_up_only_its_own_message_for_a_time(shop: Shop, how: str) -> None:
    """N8, N10: the consumer's own connection works, so this is not an outage of its database."""
    shop.send_amid(10, do=how)
    wallet = shop.start(FERRYMAN_CONSUMER__RETRY_SECONDS="1")
    wallet.until(lambda: shop.settled(21), "verdicts")
    assert shop.verdicts() == {"DONE": 20, "REJECTED": 1}
    assert shop.one("SELECT code FROM ferryman.inbox_rejected") == "TIMED_OUT"
    assert "interrupted" not in wallet.stderr


def test_a_message_that_ends_its_session_holds_up_only_its_partition_for_a_time(shop: Shop) -> None:
    """N8, N10: a timeout of the server, or a query that ends its backend, looks as if the database went away."""
    ending = shop.send_amid(10, do="end its session")
    wallet = shop.start(FERRYMAN_CONSUMER__RETRY_SECONDS="1")
    wallet.until(lambda: shop.settled(21), "verdicts")
    assert shop.verdicts() == {"DONE": 20, "REJECTED": 1}
    row = shop.db.execute("SELECT id, code, error FROM ferryman.inbox_rejected").fetchone()
    assert row is not None
    assert row[:2] == (ending, "TIMED_OUT")
    assert "was lost while a handler ran" in row[2]
    shop.books_balance()


def test_a_session_timeout_shorter_than_the_deadline_is_refused(shop: Shop) -> None:
    wallet = shop.start(FERRYMAN_CONSUMER__DEADLINE_SECONDS="60")
    assert wallet.wait() == 3
    for named in ("consumer.deadline_seconds", "database.idle_in_transaction_timeout_seconds"):
        assert named in wallet.stderr


def _waits(wallet: Launched) -> bool:
    return "every message that waits fails alike" in readyz(wallet)


def test_a_table_that_every_message_misses_is_waited_for_and_rejects_nothing(shop: Shop) -> None:
    """N8, N9, N11: code deployed before its migration loses no message, however often it is started."""
    for number in range(12):
        shop.send(1, number % 10, do="forget to migrate")
    shop.flush()
    for _ in range(2):
        wallet = shop.start(FERRYMAN_CONSUMER__TRIES="1")
        poll_until(partial(_waits, wallet), "readiness that says why")
        assert "a_table_that_comes_with_the_next_version" in readyz(wallet)
        wallet.send(signal.SIGTERM)
        assert wallet.wait() == 0, wallet.transcript()
    assert shop.verdicts() == {}
    wallet = shop.start(FERRYMAN_CONSUMER__TRIES="1")
    wallet.until(lambda: "handling failed" in wallet.stderr, "a first try")
    shop.db.execute("CREATE TABLE a_table_that_comes_with_the_next_version ()")
    wallet.until(lambda: shop.settled(12), "verdicts")
    assert shop.verdicts() == {"DONE": 12}
    wallet.until(lambda: readyz(wallet) == "ready", "readiness")
    shop.books_balance()


def test_a_message_whose_data_asks_for_what_is_not_there_harms_no_neighbour(shop: Shop) -> None:
    """N10, N11: a number for a text, a row of another tenant, a table named after the message."""
    for number in range(20):
        shop.send(1, number % 10)
    for value in (b"7", b"true", b"[1]", b"7.5"):
        shop.raw(b'{"wallet": %s, "amount": 1}' % value)
    for how in ("forget to migrate", "forbidden"):
        shop.send(1, 3, do=how)
    for number in range(20):
        shop.send(1, number % 10)
    shop.flush()
    wallet = shop.start()
    wallet.until(lambda: shop.settled(46), "verdicts")
    assert shop.verdicts() == {"DONE": 40, "REJECTED": 6}
    assert shop.one("SELECT count(*) FROM ferryman.inbox_rejected WHERE code = 'BUG'") == 6
    named = [each["record"] for each in logged(wallet, "rejected")]
    assert len(named) == 6
    assert all(each.startswith(f"{shop.topic}[") for each in named)
    shop.books_balance()


def test_a_table_of_the_runtime_that_is_missing_stops_the_process(shop: Shop) -> None:
    """N9: that is no message's fault, and rejecting needs the table too."""
    shop.db.execute("ALTER TABLE ferryman.inbox RENAME TO elsewhere")
    shop.send(1, 1)
    shop.flush()
    wallet = shop.start()
    assert wallet.wait() == 3, wallet.transcript()
    assert "ferryman.inbox" in wallet.stderr
    assert "ferryman migrate" in wallet.stderr
