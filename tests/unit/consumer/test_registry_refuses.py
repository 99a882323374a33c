"""A registry that refuses us makes messages wait: none is rejected, and a person is told which setting is wrong."""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ferryman import Consumer, Done, Message, use_schemas
from ferryman.consumer.failures import Undecided
from ferryman.consumer.loop import ConsumerLoop
from ferryman.consumer.model import Partition, Poison, Received, Record
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.transaction import BatchTransaction, Transactions
from ferryman.runtime.settings import ConsumerSettings
from ferryman.schemas import active
from support import catalogues
from support.answering import Answer, certificate, says, serving
from support.catalogues import ORDER

LENT = cast(Any, SimpleNamespace(connection=SimpleNamespace(closed=False)))
REFUSALS = {
    "an expired token": says(401, {"error_code": 40101, "message": "token expired"}),
    "a missing right": says(403, None),
    "a page to log in": says(302, None, {"Location": "https://login.example/"}),
    "another server": says(400, b"<html></html>"),
    "no such method": says(405, None),
}
MANY = 20


class Silent:
    """A feed in which nothing comes."""

    def take(self, most: int, seconds: float, gather_seconds: float = 0.0) -> list[Record]:
        return []

    def commit(self, positions: Mapping[Partition, int], *, wait: bool = False) -> None: ...
    def hold(self, partitions: Any) -> None: ...

    def seek(self, offsets: Any) -> None: ...


class Hurried:
    """A clock on which every reading takes longer than any backoff."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 20
        return self.now


@dataclass(slots=True)
class Noting(Transactions):
    """Transactions that note what they are given."""

    given: list[Any] = field(default_factory=list)

    def run(self, lent: Any, items: Sequence[Any], claimed: frozenset[Any], reached: Any) -> bool:
        self.given += items
        return True


@dataclass
class Orders:
    """A consumer's loop over Avro messages, and what it handles."""

    payload: bytes
    loop: ConsumerLoop = field(init=False)

    def __post_init__(self) -> None:
        consumer, places = Consumer("c", ["orders"]), [("orders", number) for number in range(2)]
        consumer.handles("order.placed")(lambda _db, _message: Done())
        self.partitions = Partitions("c", 1 << 20, 9, by_place={place: PartitionBuffer() for place in places})
        kind: list[tuple[str, bytes | None]] = [("ce_type", b"order.placed")]
        self.partitions.add(
            Record(*place, offset, b"k", self.payload, kind, 0) for place in places for offset in range(MANY)
        )
        self.made = Noting(consumer, 9, cast(Any, None))
        settings = ConsumerSettings(retry_seconds=1, tries=1)
        self.loop = ConsumerLoop(consumer, Silent(), settings, self.partitions, self.made, clock=Hurried())

    def turn(self, times: int) -> None:
        for _ in range(times):
            self.loop.turn(LENT)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    payload = use_schemas(catalogues.write(tmp_path)).of("order.placed").encode(ORDER)  # type: ignore[union-attr]
    yield Orders(payload)
    active.forget()


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
def test_messages_wait_for_a_registry_that_refuses_us(orders: Orders, tmp_path: Path, answer: Answer) -> None:
    """N8, N11: when it is mended, all are handled, and nobody has to requeue any."""
    with serving(answer) as served:
        use_schemas(catalogues.write(tmp_path), registry_url=served.url)
        orders.turn(30)
        assert orders.made.given == []
        problem = orders.partitions.problem or ""
        assert "waits for its schema" in problem
        assert "[setting registry_url, or FERRYMAN_REGISTRY_URL]" in problem
        served.answer = says(200, {"schema": (tmp_path / "avro" / "order.placed.avsc").read_text()})
        orders.turn(60)
    assert [type(each) for each in orders.made.given] == [Received] * 2 * MANY
    assert orders.partitions.problem is None


def test_messages_wait_for_a_registry_with_a_bad_certificate(orders: Orders, tmp_path: Path) -> None:
    """N8, N11: an expired one is refused in the same place."""
    with serving(says(200, {}), tls=_server_side(certificate(tmp_path, "127.0.0.1"))) as served:
        use_schemas(catalogues.write(tmp_path), registry_url=served.url)
        orders.turn(10)
    assert orders.made.given == []
    assert "the certificate of the registry" in (orders.partitions.problem or "")


def test_a_schema_that_a_healthy_registry_does_not_have_rejects_its_message(orders: Orders, tmp_path: Path) -> None:
    with serving(says(404, {"error_code": 40403, "message": "not found"})) as served:
        use_schemas(catalogues.write(tmp_path), registry_url=served.url)
        orders.turn(30)
    assert [(type(each), each.code) for each in orders.made.given] == [(Poison, "UNREADABLE")] * 2 * MANY


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
def test_a_report_waits_for_a_registry_that_refuses_us(orders: Orders, tmp_path: Path, answer: Answer) -> None:
    """N8, N11: the message that it answers is not to blame."""
    received = Received(cast(Any, None), "t", None, "k", Record("t", 0, 0, None, None, [], 0), b"")
    batch = BatchTransaction(orders.loop.consumer, LENT, [])
    with serving(answer) as served:
        use_schemas(catalogues.write(tmp_path), registry_url=served.url)
        with pytest.raises(Undecided, match="registry_url"):
            batch._prepared(received, Done(Message("order.placed", ORDER, key="k")))


def _server_side(pem: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
