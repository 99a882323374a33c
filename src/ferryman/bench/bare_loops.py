"""The denominators: a bare client in a tight loop, from memory, in a process of its own as what it stands beside.

For a drain, confluent-kafka with the relay's configuration produces the same records. Its queue has librdkafka's own
size: the relay keeps a smaller one to bound its memory, which the loop does not need.

For the wallet's consumer, psycopg runs the same transactions. It runs the same statements through the same functions
and writes the same rows: the wallet's rules decide, and a result is encoded with the balance that it reports. The loop
does without Kafka, decoding, the search for duplicates and the checks of a batch.

For a courier, an aiohttp session posts the same bodies with the same headers, as many at once.
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import aiohttp
import psycopg
from confluent_kafka import Producer

from ferryman import outbox
from ferryman.bench.commands import Deduction, Stream, codec
from ferryman.bench.meters import Connection
from ferryman.channels.http.request import HttpRequest, request_of
from ferryman.channels.model import Post
from ferryman.consumer.model import Record
from ferryman.consumer.store import receipts
from ferryman.consumer.store.receipts import DEFAULT_LIMITS, HANDLED, InboxVerdict
from ferryman.consumer.wire import hash_of, kept_reports
from ferryman.message import Stored
from ferryman.relay.kafka import ANY_PARTITION, DEFAULTS, INSISTED, record_headers
from ferryman.relay.model import Entry
from ferryman.relay.store import claims
from ferryman.runtime.service import collect_less
from ferryman.schemas.codec import Codec
from ferryman.services.wallet import store
from ferryman.services.wallet.rules import Command, Operation

NAME = "bare"
MOST_IN_MEMORY = 100_000

_ENTRIES = f"""\
-- bench.entries
SELECT {claims.COLUMNS} FROM ferryman.outbox o ORDER BY o.position LIMIT %s
"""  # noqa: S608 - only our own columns are put in

_BODIES = """\
-- bench.bodies
SELECT id::text, convert_to(payload::text, 'UTF8') FROM bench.hooks ORDER BY created_at, id LIMIT %s
"""

_RELAY = {name: value for name, value in {**DEFAULTS, **INSISTED}.items() if not name.startswith("queue.")}

BareRecord = tuple[str, bytes, str, list[tuple[str, str | bytes | None]]]


def records(database_url: str, most: int) -> list[BareRecord]:
    """Return the records that the relay would send for the first entries."""
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(_ENTRIES, (most,), binary=True).fetchall()
    entries = [Entry(*row) for row in rows]
    return [(each.topic, each.payload or b"", each.key, list(record_headers(each, "bench"))) for each in entries]


def produce(task: dict[str, Any]) -> float:
    """Produce the first entries again and again. Return the seconds until so many were acknowledged."""
    entries: int = task["entries"]
    batch = records(task["database_url"], min(MOST_IN_MEMORY, entries))
    gc.freeze()
    producer = Producer({**_RELAY, **task["kafka"], "log_level": 3})
    producer.list_topics(batch[0][0], timeout=10)  # the cluster is known before the clock starts
    send, poll = producer.produce, producer.poll
    began = time.perf_counter()
    for first in range(0, entries, len(batch)):
        for topic, payload, key, headers in batch[: entries - first]:
            while True:
                try:
                    send(topic, payload, key, ANY_PARTITION, None, None, 0, headers)
                    break
                except BufferError:
                    poll(0.005)
        poll(0)
    left = producer.flush(60)
    seconds = time.perf_counter() - began
    if left:
        raise RuntimeError(f"{left} messages were not acknowledged")
    return seconds


class BareBatch(NamedTuple):
    """The input of one transaction, made before the clock starts."""

    ids: list[UUID]
    commands: list[Command]
    records: list[tuple[UUID, bytes, Record]]
    """The id of each message's result, the hash of its payload, and its place in Kafka."""


def prepared(deductions: Sequence[Deduction], first: int) -> BareBatch:
    """Return a batch of these commands, the first of which has this offset."""
    return BareBatch(
        [each.id for each in deductions],
        [Command("DEDUCT", each.request_id, "deduct", each.wallet_id, 1, "EUR") for each in deductions],
        [
            (uuid5(each.id, "0"), hash_of(each.id.bytes), Record("payments.commands", at % 6, at, b"", b"", [], 0))
            for at, each in enumerate(deductions, first)
        ],
    )


def transact(connection: Connection, batch: BareBatch, codec: Codec) -> None:
    """Decide the batch's commands, and write everything that the consumer would write, in one transaction."""
    with connection.transaction():
        receipts.find(connection, NAME, batch.ids, DEFAULT_LIMITS)
        books = store.locked(connection, batch.commands)
        operations = [books.decide(command) for command in batch.commands]
        store.book(connection, books)
        results = [_result(each, made[0], codec) for each, made in zip(operations, batch.records, strict=True)]
        outbox.append_stored(connection, results)
        verdicts = [
            InboxVerdict(identity, HANDLED, "DONE", None, digest, "wallet.deduct", record, kept_reports([result]))
            for identity, result, (_, digest, record) in zip(batch.ids, results, batch.records, strict=True)
        ]
        receipts.record(connection, NAME, verdicts)


def _result(operation: Operation, identity: UUID, codec: Codec) -> Stored:
    said = {
        "request_id": operation.request_id, "step": operation.step, "attempt": 1, "wallet_id": operation.wallet_id,
        "kind": operation.kind, "amount": operation.amount, "currency": operation.currency,
        "balance": operation.balance, "applied_at": operation.decided_at,
    }  # fmt: skip
    payload, kind = codec.encode(said), codec.type
    return Stored(kind.topic, str(operation.request_id), kind.name, payload, None, identity, None, kind.content_type)


def handle(task: dict[str, Any]) -> float:
    """Transact a whole stream of commands in batches. Return the seconds."""
    results = codec("wallet.succeeded")
    commands, size = list(Stream(task["messages"], task["wallets"])), task["batch"]
    batches = [prepared(commands[first : first + size], first) for first in range(0, len(commands), size)]
    with psycopg.connect(task["database_url"], autocommit=True) as connection:
        collect_less()
        began = time.perf_counter()
        for batch in batches:
            transact(connection, batch, results)
        return time.perf_counter() - began


def post(task: dict[str, Any]) -> float:
    """Post the body of every row. Return the seconds until the last answer."""
    with psycopg.connect(task["database_url"]) as connection:
        rows = connection.execute(_BODIES, (task["rows"],)).fetchall()
    requests = list[tuple[HttpRequest, bytes]]()
    for identity, body in rows:
        post = Post(task["url"], body, identity, secrets=tuple(task["secrets"]))
        request = request_of(post, most_body_bytes=1 << 20, at=int(time.time()))
        assert isinstance(request, HttpRequest)
        requests.append((request, body))
    collect_less()
    return asyncio.run(_posted(requests, task["at_once"]))


async def _posted(requests: Sequence[tuple[HttpRequest, bytes]], at_once: int) -> float:
    left = iter(requests)

    async def post_each(session: aiohttp.ClientSession) -> None:
        for request, body in left:
            async with session.post(request.url, data=body, headers=request.headers, allow_redirects=False) as response:
                await response.read()
                response.raise_for_status()

    connector = aiohttp.TCPConnector(limit=0)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar, auto_decompress=False) as session:
        began = time.perf_counter()
        await asyncio.gather(*(post_each(session) for _ in range(at_once)))
        return time.perf_counter() - began


if __name__ == "__main__":
    task = json.load(sys.stdin)
    print(json.dumps({"seconds": {"produce": produce, "handle": handle, "post": post}[task["loop"]](task)}))
