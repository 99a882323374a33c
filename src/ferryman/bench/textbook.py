"""The pipeline that textbooks describe, as a denominator: each of its roles is a process, written with bare clients.

A request and its outbox row are one transaction. A relay selects 500 rows FOR UPDATE SKIP LOCKED, sends them, and
updates their status. A consumer takes a transaction for each message, which inserts its id into an inbox. Messages are
JSON. It has the steps of ours: client, relay, wallet, relay, orchestrator.
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition

from ferryman.bench import programs
from ferryman.bench.meters import Connection
from ferryman.bench.servers import KEYS, PARTITIONS, Bench

_TABLES = """\
-- bench.textbook
CREATE SCHEMA textbook;
CREATE TABLE textbook.requests (id uuid PRIMARY KEY, wallet integer NOT NULL, status text NOT NULL DEFAULT 'PENDING',
                                changed_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE textbook.outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message uuid NOT NULL,
                              topic text NOT NULL, key text NOT NULL, payload jsonb NOT NULL,
                              status text NOT NULL DEFAULT 'PENDING', created_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON textbook.outbox (id) WHERE status = 'PENDING';
CREATE TABLE textbook.inbox (message uuid PRIMARY KEY, received_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE textbook.wallets (id integer PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0));
CREATE TABLE textbook.ledger (request uuid PRIMARY KEY, wallet integer NOT NULL, amount bigint NOT NULL);
INSERT INTO textbook.wallets SELECT n, 1000000000 FROM generate_series(0, {wallets}) n
"""
_REQUEST = "-- bench.textbook_request\nINSERT INTO textbook.requests (id, wallet) VALUES (%s, %s)"
_ANNOUNCE = """\
-- bench.textbook_announce
INSERT INTO textbook.outbox (message, topic, key, payload) VALUES (%s, %s, %s, %s)
"""
_CLAIM = """\
-- bench.textbook_claim
SELECT id, message, topic, key, payload FROM textbook.outbox WHERE status = 'PENDING'
ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED
"""
_SENT = "-- bench.textbook_sent\nUPDATE textbook.outbox SET status = 'SENT' WHERE id = ANY (%s)"
_RECEIVE = "-- bench.textbook_receive\nINSERT INTO textbook.inbox (message) VALUES (%s) ON CONFLICT DO NOTHING"
_DEDUCT = "-- bench.textbook_deduct\nUPDATE textbook.wallets SET balance = balance - 1 WHERE id = %s RETURNING balance"
_BOOK = "-- bench.textbook_book\nINSERT INTO textbook.ledger (request, wallet, amount) VALUES (%s, %s, -1)"
_SUCCEED = """\
-- bench.textbook_succeed
UPDATE textbook.requests SET status = 'SUCCEEDED', changed_at = now() WHERE id = %s AND status = 'PENDING'
"""
_LEFT = "-- bench.textbook_left\nSELECT count(*) FROM textbook.requests WHERE status <> 'SUCCEEDED'"

_IDLE_SECONDS = 0.01
_MOST_AT_ONCE = 500


def rate(bench: Bench, payments: int, *, per_transaction: int, connections: int) -> float:
    """Return how many payments a second go through the textbook's pipeline."""
    with bench.database() as ours, bench.database() as theirs, bench.topic() as commands, bench.topic() as results:
        for url in (ours, theirs):
            with psycopg.connect(url) as connection:
                connection.execute(_TABLES.format(wallets=KEYS - 1))
        common = {
            "kafka": bench.kafka_settings()["bootstrap_servers"], "payments": payments,
            "commands": commands, "results": results,
        }  # fmt: skip
        with (
            _role(bench, "relay", ours, common),
            _role(bench, "wallet", theirs, common),
            _role(bench, "relay", theirs, common),
            _role(bench, "orchestrator", ours, common) as orchestrator,
        ):
            sending = {"per_transaction": per_transaction, "connections": connections}
            patience = 120 + payments / 50
            with _role(bench, "clients", ours, {**common, **sending}) as clients:
                began = clients.result(patience)["at"]
            ended = orchestrator.result(patience)["at"]
        with psycopg.connect(ours) as connection:
            [left] = connection.execute(_LEFT).fetchall()
        assert left == (0,), f"{left[0]} payments did not succeed"
    return payments / float(ended - began)


def _role(bench: Bench, role: str, url: str, task: dict[str, Any]) -> AbstractContextManager[programs.Program]:
    return programs.own_program(bench, "textbook", {"role": role, "database_url": url, **task})


def request(task: dict[str, Any]) -> float:
    """Record all requests and announce them. Return when that began."""
    many, size = task["connections"], task["per_transaction"]

    def send(share: int) -> None:
        payments = [(uuid4(), number % KEYS) for number in range(share, task["payments"], many)]
        with psycopg.connect(task["database_url"]) as connection, connection.cursor() as cursor:
            for first in range(0, len(payments), size):
                batch = payments[first : first + size]
                cursor.executemany(_REQUEST, batch)
                said = [(uuid4(), task["commands"], str(wallet), _json(each, wallet)) for each, wallet in batch]
                cursor.executemany(_ANNOUNCE, said)
                connection.commit()

    began = time.time()
    with ThreadPoolExecutor(many) as threads:
        list(threads.map(send, range(many)))
    return began


def relay(task: dict[str, Any]) -> None:
    """Send what is pending, for ever."""
    producer = Producer({"bootstrap.servers": task["kafka"], "acks": "all", "enable.idempotence": True, "linger.ms": 5})
    with psycopg.connect(task["database_url"]) as connection:
        while True:
            rows = connection.execute(_CLAIM).fetchall()
            for _, message, topic, key, payload in rows:
                producer.produce(topic, json.dumps(payload), key, headers=[("id", str(message).encode())])
            producer.flush()
            if rows:
                connection.execute(_SENT, ([row[0] for row in rows],))
            connection.commit()
            if not rows:
                time.sleep(_IDLE_SECONDS)


def consume(task: dict[str, Any], topic: str, handle: Callable[[Connection, dict[str, Any]], None]) -> float:
    """Handle messages one by one, until all payments were. Return when that was."""
    config = {"bootstrap.servers": task["kafka"], "group.id": uuid4().hex, "enable.auto.commit": False}
    consumer, left = Consumer(config), task["payments"]
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    with psycopg.connect(task["database_url"], autocommit=True) as connection:
        while left:
            messages = consumer.consume(_MOST_AT_ONCE, 0.1)
            for message in messages:
                headers: Any = dict(message.headers() or [])
                with connection.transaction():
                    if connection.execute(_RECEIVE, (headers["id"].decode(),)).rowcount:
                        handle(connection, json.loads(message.value() or b""))
                        left -= 1
            if messages:
                consumer.commit(asynchronous=True)
    ended = time.time()
    consumer.close()
    return ended


def deduct(topic: str, connection: Connection, command: dict[str, Any]) -> None:
    """Take the money, and report it on this topic."""
    wallet, asked = command["wallet"], command["request"]
    connection.execute(_DEDUCT, (wallet,))
    connection.execute(_BOOK, (asked, wallet))
    connection.execute(_ANNOUNCE, (uuid4(), topic, asked, _json(asked, wallet)))


def succeed(connection: Connection, result: dict[str, Any]) -> None:
    """Note that a request succeeded."""
    connection.execute(_SUCCEED, (result["request"],))


def _json(asked: UUID | str, wallet: int) -> str:
    return json.dumps({"request": str(asked), "wallet": wallet, "amount": 1, "currency": "EUR"})


if __name__ == "__main__":
    given = json.load(sys.stdin)
    roles: dict[str, Callable[[], float | None]] = {
        "clients": lambda: request(given),
        "relay": lambda: relay(given),
        "wallet": lambda: consume(given, given["commands"], partial(deduct, given["results"])),
        "orchestrator": lambda: consume(given, given["results"], succeed),
    }
    print(json.dumps({"at": roles[given["role"]]()}))
