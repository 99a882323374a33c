"""`ferryman demo payments`, from the servers to the verdict."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ferryman import use_schemas
from ferryman.demo.cast import Cast, Servers
from ferryman.demo.client import Client, open_wallets
from ferryman.demo.scene import Moment, Scene
from ferryman.evidence.audit.model import Books, Window
from ferryman.evidence.audit.walk import begin
from ferryman.evidence.databases import open_databases
from ferryman.runtime.kafka import create_topics
from ferryman.runtime.settings import Settings
from ferryman.schemas import OURS
from ferryman.schemas.catalogue import load
from ferryman.services.payments.rules import Rules
from ferryman.testing import house, kafka, places

_TOPICS = ("payments.commands", "payments.events", "wallet.results", "fulfilments.commands", "fulfilments.results")


@dataclass(frozen=True, slots=True)
class Wanted:
    """How long payments flow, how many a second, and how often something is killed."""

    seconds: float = 20.0
    per_second: int = 200
    kill_every: float = 3.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it."""

    parts: tuple[str, ...]
    ready_seconds: float
    moment: Moment
    books: Books

    @property
    def good(self) -> bool:
        moment, counts = self.moment, self.books.counts
        audited = counts["requests.SUCCEEDED"] + counts["requests.FAILED"]
        return moment.pending == 0 and audited == moment.sent and not self.books.wrongs

    def as_json(self) -> dict[str, Any]:
        moment = self.moment
        return {
            "verdict": "ok" if self.good else "wrong",
            "parts": list(self.parts), "ready_seconds": round(self.ready_seconds, 2),
            "payments": {"requested": moment.sent, "succeeded": moment.succeeded, "failed": moment.failed,
                         "pending": moment.pending},
            "killed": moment.killed, "audit": self.books.as_json(),
        }  # fmt: skip


def run(
    wanted: Wanted, inherited: Mapping[str, str], show: Callable[[Moment], None], ready: Callable[..., None]
) -> Verdict:
    """Servers of its own, two databases, every process for real. `ready` is told of the servers."""
    began = time.monotonic()
    folder = places.scratch("demo")
    try:
        with house.open_house(embedded=True, registry_too=False) as rooms:
            servers = _servers(rooms)
            ready_seconds = time.monotonic() - began
            ready(rooms.climbs, ready_seconds)
            use_schemas()
            dice = random.Random(wanted.seed or time.time_ns())
            client = Client(
                servers.orchestrator_url, open_wallets(servers.wallet_url), Rules(), wanted.per_second, dice
            )
            with Cast(servers, folder, inherited) as cast:
                moment = Scene(cast, client, servers.orchestrator_url, show, dice).play(
                    wanted.seconds, wanted.kill_every
                )
                books = _audited(servers)
            return Verdict(tuple(map(str, rooms.climbs)), ready_seconds, moment, books)
    finally:
        places.discard(folder)


def _servers(rooms: house.House) -> Servers:
    """The house's database is the orchestrator's; the wallet gets one of its own."""
    wallet_url = house.new_database(rooms.database_url, "wallet")
    house.migrate(wallet_url)
    if not isinstance(rooms.kafka, kafka.BuiltInKafka):  # which makes a topic when it is asked for
        _create_topics(rooms.kafka.url)
    return Servers(rooms.database_url, wallet_url, rooms.kafka.url)


def _create_topics(bootstrap_servers: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    known, admin = load(OURS).topics, AdminClient({"bootstrap.servers": bootstrap_servers})
    create_topics(admin, [NewTopic(name, known[name].partitions, 1) for name in _TOPICS], 10)


def _audited(servers: Servers) -> Books:
    settings = Settings.model_validate({
        "database_url": servers.orchestrator_url,
        "payments": {"wallet_database_url": servers.wallet_url},
        "kafka": {"bootstrap_servers": servers.kafka},
    })  # fmt: skip
    with open_databases(settings, "demo") as databases:
        audit = begin(databases, settings)
        audit.books.window = Window(None, datetime.now(UTC))  # to this moment: nothing runs any more
        return audit.run()
