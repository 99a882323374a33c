"""N1, N3, N5, N6, N9, N11: the whole pipeline under load while parts of it are killed at random, by a seed.

Slow, because real servers and processes are killed and started again.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import psycopg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from psycopg import conninfo

from ferryman.schemas import active
from ferryman.testing.kafka import LocalKafka
from ferryman.testing.parts import started
from ferryman.testing.postgres import FAST, LocalPostgres, binaries
from ferryman.testing.proxy import FaultProxy
from ferryman.testing.proxy import Faults as WireFaults
from support.launch import Launcher
from support.pipeline import Pipeline, new_pipeline
from support.published import poll_until

pytestmark = [pytest.mark.real_kafka, pytest.mark.serial, pytest.mark.slow]

PROCESSES = ("relay", "wallet", "payments", "fulfilment")
READERS = ("wallet", "payments", "fulfilment")
GROUPS = {
    "wallet": "payments.commands",
    "payments": "wallet.results",
    "payments-fulfilments": "fulfilments.results",
    "fulfilment": "fulfilments.commands",
}


@dataclass
class Servers:
    """Kafka, and a PostgreSQL for each database, so that each can be killed alone."""

    kafka: LocalKafka
    orchestrators: LocalPostgres
    wallets: LocalPostgres
    wires: tuple[FaultProxy, FaultProxy]
    """The proxies before the two databases, for the orchestrator and the wallet."""


@pytest.fixture
def servers() -> Iterator[Servers]:
    kafka, *databases = started(LocalKafka()), *(started(LocalPostgres(binaries(), FAST)) for _ in range(2))
    places = [conninfo.conninfo_to_dict(each.url) for each in databases]
    wires = [FaultProxy(f"{place['host']}:{place['port']}") for place in places]
    with wires[0], wires[1]:
        yield Servers(kafka, databases[0], databases[1], (wires[0], wires[1]))
    for each in (kafka, *databases):
        each.close()


@pytest.fixture
def pipeline(ferryman: Launcher, servers: Servers) -> Iterator[Pipeline]:
    with new_pipeline(ferryman, servers.kafka.url, servers.orchestrators.url, servers.wallets.url) as made:
        for name, wire in zip(("payments", "wallet"), servers.wires, strict=True):
            made.wires[name] = wire.port
        yield made
    active.forget()


def begin_anew(kafka: str, group: str, topic: str) -> None:
    """Reset a group's offsets as soon as the cluster has noticed that its members are gone."""
    admin = AdminClient({"bootstrap.servers": kafka})
    known = admin.list_topics(timeout=10).topics
    places = [TopicPartition(topic, number, 0) for number in known[topic].partitions]

    def done() -> bool:
        [answer] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
        try:
            return not any(place.error for place in answer.result(30).topic_partitions)
        except KafkaException:
            return False

    poll_until(done, f"{group} at its beginning")


class Faults:
    """The faults; the system recovers from each by itself (N11)."""

    def __init__(self, pipeline: Pipeline, servers: Servers, seed: int) -> None:
        self.pipeline, self.servers, self.dice = pipeline, servers, random.Random(seed)
        self.done: list[str] = []
        self._left: list[Callable[[], str]] = []
        self.all: tuple[Callable[[], str], ...] = (
            *(partial(self.kill, name) for name in PROCESSES), self.crash_orchestrators, self.crash_wallets,
            self.kill_broker, self.cut, self.lose_answers, self.double, self.replay, self.second_wallet, self.late,
        )  # fmt: skip

    def strike(self) -> None:
        if not self._left:  # each of them, before any comes again
            self._left = self.dice.sample(self.all, len(self.all))
        said = self._left.pop()()
        self.done.append(said)
        print(said)  # with the seed it says how to come here again

    def kill(self, name: str) -> str:
        """Kill a process at any moment, and start another."""
        self.pipeline.kill(name)
        self.pipeline.start(name)
        return f"kill -9 {name}"

    def crash_orchestrators(self) -> str:
        return self._crash(self.servers.orchestrators, "the orchestrator's PostgreSQL")

    def crash_wallets(self) -> str:
        return self._crash(self.servers.wallets, "the wallet's PostgreSQL")

    def _crash(self, server: LocalPostgres, name: str) -> str:
        server.crash()
        server.start()
        return f"crash of {name}"

    def kill_broker(self) -> str:
        self.servers.kafka.kill()
        self.servers.kafka.start()
        return "kill -9 Kafka"

    def cut(self) -> str:
        """Cut every connection at once, during any statement or COMMIT."""
        for url in (self.pipeline.orchestrator_url, self.pipeline.wallet_url, self.pipeline.fulfilment_url):
            with psycopg.connect(url, autocommit=True) as db:
                db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        return "connections cut"

    def lose_answers(self) -> str:
        """Let requests through but not answers, so that nobody knows whether a COMMIT succeeded."""
        for _ in range(10):
            for wire in self.servers.wires:
                wire.faults = WireFaults(cut_after_bytes=0, cut_direction="to_client")
            time.sleep(self.dice.random() * 0.05)
            for wire in self.servers.wires:
                wire.heal()
            time.sleep(self.dice.random() * 0.5)
        return "answers lost on the wire"

    def replay(self) -> str:
        """Reset each group to offset 0, so that everything in its topics is redelivered."""
        self.pipeline.kill_others()
        for name in READERS:
            self.pipeline.kill(name)
        for group, topic in GROUPS.items():
            begin_anew(self.pipeline.kafka, group, topic)
        self.pipeline.start(*READERS)
        return "everything from offset 0"

    def double(self) -> str:
        """Publish old messages again in any order, as a relay that has lost its position."""
        url = self.dice.choice((self.pipeline.orchestrator_url, self.pipeline.wallet_url))
        with psycopg.connect(url) as db:
            entries = db.execute(
                "SELECT topic, key, type, payload, headers, id, content_type FROM ferryman.outbox "
                "WHERE random() < 0.2 ORDER BY random() LIMIT 500"
            ).fetchall()
        self._produce(entries)
        return f"{len(entries)} messages doubled and out of order"

    def _produce(self, entries: list[tuple[object, ...]]) -> None:
        producer = Producer({"bootstrap.servers": self.pipeline.kafka, "log_level": 0})
        for topic, key, kind, payload, _, identity, content_type in entries:
            headers = {"ce_specversion": "1.0", "ce_id": str(identity), "ce_type": str(kind), "ce_source": "/replayed",
                       "content-type": str(content_type)}  # fmt: skip
            producer.produce(str(topic), payload, str(key), headers=headers)  # type: ignore[arg-type]
        producer.flush(20)

    def second_wallet(self) -> str:
        """Let another member join the group and leave it."""
        self.pipeline.start_another("wallet")
        return "a second wallet"

    def late(self) -> str:
        """Make every pending payment time out, so that cancellations race deductions."""
        with psycopg.connect(self.pipeline.orchestrator_url, autocommit=True) as db:
            db.execute("UPDATE payments.requests SET due_at = now() WHERE state IN ('DEDUCTING', 'FULFILLING')")
        return "everything is late"


def break_at_random(pipeline: Pipeline, servers: Servers, seed: int, *, rounds: int) -> None:
    """Inject every fault once in each round, in random order.

    Operations time out and are repeated, but not so often that repetition overloads the wallet.
    """
    patience = {"ANSWER_SECONDS": "60", "AGAIN_SECONDS": "1", "LONGEST_SECONDS": "20", "MOST_ATTEMPTS": "1000"}
    pipeline.env |= {f"FERRYMAN_PAYMENTS__{name}": value for name, value in patience.items()}
    pipeline.open_wallets(20)
    pipeline.start(*PROCESSES)
    striking = Faults(pipeline, servers, seed)
    with pipeline.load(seed) as load:
        load.await_sent(50)
        for _ in range(rounds * len(striking.all)):
            striking.strike()
            load.await_sent(striking.dice.randrange(100), 60)
    poll_until(lambda: pipeline.pending() == 0, f"end of every payment after {striking.done}", 120)
    pipeline.assert_money_moved_once()
    assert sum(pipeline.statuses().values()) == load.sent
    audited(pipeline, load.sent)


def audited(pipeline: Pipeline, payments: int) -> None:
    """Run an audit until it covers all payments, and assert that it finds nothing wrong."""

    def said() -> bool:
        audit = pipeline.ferryman.run("audit", "--json", env=pipeline.both())
        assert audit.wait() == 0, audit.transcript()
        assert audit.json["verdict"] == "ok"
        return bool(sum(audit.json["counts"]["requests"].values()) == payments)

    poll_until(said, f"audit of {payments} payments")


@pytest.mark.timeout(300)
def test_whatever_dies_under_load_money_moves_once(pipeline: Pipeline, servers: Servers, seed: int) -> None:
    """Run the short form of the proof below."""
    break_at_random(pipeline, servers, seed, rounds=1)


@pytest.mark.prove
def test_whatever_dies_for_minutes_under_load_money_moves_once(pipeline: Pipeline, servers: Servers, seed: int) -> None:
    """Slow, to hit rare moments."""
    break_at_random(pipeline, servers, seed, rounds=5)
