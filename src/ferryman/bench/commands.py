"""Streams of commands for the wallet: the same numbers always give the same commands, on a topic or in memory."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5
from typing import Any, NamedTuple
from uuid import UUID

from confluent_kafka import KafkaException, Producer

from ferryman.bench import meters
from ferryman.bench.meters import Connection
from ferryman.bench.servers import KEYS, Bench
from ferryman.relay.kafka import DEFAULTS, INSISTED, record_headers
from ferryman.relay.model import Entry
from ferryman.runtime.kafka import client_config
from ferryman.schemas import active
from ferryman.schemas.codec import Codec

_TYPE = "wallet.deduct"
_CREATED_US = 1_769_860_800_000_001
_DUPLICATE_AFTER = 5000
"""The number of messages between a message and its duplicate."""

_OPEN = """\
-- bench.open_wallets
SELECT count(wallet.open(md5('wallet-' || n)::uuid, 'EUR', 1000000000000)) FROM generate_series(0, %s) n
"""
_UNBALANCED = "-- bench.unbalanced\nSELECT count(*) FROM wallet.unbalanced"
_VACUUM = "-- bench.vacuum_wallets\nVACUUM (ANALYZE)"


class Deduction(NamedTuple):
    """A command that deducts the smallest amount there is."""

    id: UUID
    request_id: UUID
    wallet_id: UUID

    @property
    def data(self) -> dict[str, Any]:
        """The message's data."""
        return {"request_id": self.request_id, "step": "deduct", "attempt": 1, "wallet_id": self.wallet_id,
                "amount": 1, "currency": "EUR"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stream:
    """So many messages on so many wallets. In a doubled one, every second message is a duplicate."""

    messages: int
    wallets: int = KEYS
    doubled: bool = False

    def __iter__(self) -> Iterator[Deduction]:
        dice = random.Random(self.messages)
        wallets = [wallet_id(number) for number in range(self.wallets)]
        before: list[Deduction] = []
        for number in range(self.messages):
            if self.doubled and number % 2 and len(before) > _DUPLICATE_AFTER:
                yield before[len(before) - _DUPLICATE_AFTER]
                continue
            made = Deduction(random_uuid(dice), random_uuid(dice), wallets[dice.randrange(self.wallets)])
            if self.doubled:
                before.append(made)
            yield made


def wallet_id(number: int) -> UUID:
    """Return the id of a wallet of `open_wallets`."""
    return UUID(md5(b"wallet-%d" % number, usedforsecurity=False).hexdigest())


def random_uuid(dice: random.Random) -> UUID:
    """Return a uuid that depends on the dice alone."""
    return UUID(int=dice.getrandbits(128), version=4)


def open_wallets(connection: Connection) -> None:
    """Open all wallets, each with enough money for every command."""
    connection.execute(_OPEN, (KEYS - 1,))
    connection.execute(_VACUUM)


def unbalanced_wallets(connection: Connection) -> int:
    """Return how many wallets do not agree with their ledger."""
    return int(meters.row(connection, _UNBALANCED)[0])


class Sender:
    """A producer that puts commands on a topic as the relay would."""

    def __init__(self, bench: Bench, topic: str, **ours: Any) -> None:
        self._topic = topic
        self._codec = codec(_TYPE)
        given = {**DEFAULTS, **INSISTED, "compression.type": "lz4", "queue.buffering.max.kbytes": 262_144, **ours}
        self._producer = Producer(client_config(bench.kafka, "bench", **given))
        self._failed: list[Any] = []

    def send(self, command: Deduction) -> None:
        """Produce one command."""
        content_type, payload = self._codec.type.content_type, self._codec.encode(command.data)
        entry = Entry(
            0, str(command.id), self._topic, str(command.wallet_id), _TYPE, payload, None, content_type, _CREATED_US, 0
        )
        said = record_headers(entry, "bench")
        while True:
            try:
                self._producer.produce(self._topic, payload, entry.key, headers=said, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.01)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all commands are delivered."""
        self._producer.flush(60)
        if self._failed:
            raise KafkaException(self._failed[0])

    def _delivered(self, error: Any, _message: Any) -> None:
        if error:
            self._failed.append(error)


def send_all(bench: Bench, topic: str, stream: Stream) -> None:
    """Put a whole stream on a topic."""
    sender = Sender(bench, topic)
    for command in stream:
        sender.send(command)
    sender.flush()


def codec(name: str) -> Codec:
    """Return the codec of a type of our own catalogue, which this process uses from then on."""
    found = (active.codecs() or active.use_schemas()).of(name)
    assert found is not None
    return found
