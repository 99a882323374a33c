"""Streams of commands for the wallet: the same again from the same numbers, on a topic or in memory."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from confluent_kafka import KafkaException, Producer

from ferryman.bench.parts import Bench
from ferryman.bench.scale import KEYS
from ferryman.relay.kafka import DEFAULTS, INSISTED
from ferryman.runtime.kafka import client_config
from ferryman.schemas import active, headers
from ferryman.schemas.codec import Codec

Connection = psycopg.Connection[tuple[Any, ...]]

KIND = "wallet.deduct"
_BEHIND = 5000
"""A duplicate comes so many messages after its first."""

_OPEN = """\
-- bench.open_wallets
SELECT count(wallet.open(md5('wallet-' || n)::uuid, 'EUR', 1000000000000)) FROM generate_series(0, %s) n
"""
_VACUUM = "-- bench.vacuum_wallets\nVACUUM (ANALYZE)"


class Spending(NamedTuple):
    """One message: a deduction of the smallest amount there is."""

    id: UUID
    request_id: UUID
    wallet_id: UUID

    @property
    def data(self) -> dict[str, Any]:
        return {"request_id": self.request_id, "step": "deduct", "attempt": 1, "wallet_id": self.wallet_id,
                "amount": 1, "currency": "EUR"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stream:
    """So many messages on so many wallets; of a doubled one, every second message has come before."""

    messages: int
    wallets: int = KEYS
    doubled: bool = False

    def __iter__(self) -> Iterator[Spending]:
        dice = random.Random(self.messages)
        wallets = [wallet_id(number) for number in range(self.wallets)]
        before: list[Spending] = []
        for number in range(self.messages):
            if self.doubled and number % 2 and len(before) > _BEHIND:
                yield before[len(before) - _BEHIND]
                continue
            made = Spending(_uuid(dice), _uuid(dice), wallets[dice.randrange(self.wallets)])
            if self.doubled:
                before.append(made)
            yield made


def wallet_id(number: int) -> UUID:
    """As `open_wallets` names them."""
    return UUID(md5(b"wallet-%d" % number, usedforsecurity=False).hexdigest())


def open_wallets(connection: Connection) -> None:
    """With enough for everything that is asked of them."""
    connection.execute(_OPEN, (KEYS - 1,))
    connection.execute(_VACUUM)


class Sender:
    """Puts commands on a topic, as the relay would."""

    def __init__(self, bench: Bench, topic: str, **ours: Any) -> None:
        self._topic = topic
        self._codec = codec(KIND)
        given = {**DEFAULTS, **INSISTED, "compression.type": "lz4", "queue.buffering.max.kbytes": 262_144, **ours}
        self._producer = Producer(client_config(bench.kafka, "bench", **given))
        self._failed: list[Any] = []

    def send(self, spending: Spending) -> None:
        said: list[tuple[str, str | bytes | None]] = [
            (headers.SPECVERSION, headers.CLOUDEVENTS), (headers.ID, str(spending.id)), (headers.SOURCE, "bench"),
            (headers.TYPE, KIND), (headers.TIME, "2026-01-31T12:00:00.000001Z"),
            (headers.CONTENT_TYPE, self._codec.type.content_type),
        ]  # fmt: skip
        payload, key = self._codec.encode(spending.data), str(spending.wallet_id)
        while True:
            try:
                self._producer.produce(self._topic, payload, key, headers=said, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.01)
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush(60)
        if self._failed:
            raise KafkaException(self._failed[0])

    def _delivered(self, error: Any, _message: Any) -> None:
        if error:
            self._failed.append(error)


def send_all(bench: Bench, topic: str, stream: Stream) -> None:
    sender = Sender(bench, topic)
    for spending in stream:
        sender.send(spending)
    sender.flush()


def codec(kind: str) -> Codec:
    """Of our own catalogue, which this process then uses."""
    found = (active.codecs() or active.use_schemas()).of(kind)
    assert found is not None
    return found


def _uuid(dice: random.Random) -> UUID:
    return UUID(int=dice.getrandbits(128), version=4)
