"""Publishing to Kafka: records on the wire, and topics that are missing, small, compacted or closed."""

import os
import threading
import time
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ferryman import Message, append, append_many
from ferryman.relay import metrics
from ferryman.relay.kafka import INSISTED, Publisher
from ferryman.relay.model import Entry
from ferryman.relay.store.kafka_cluster import forget_cluster
from ferryman.relay.topics import Refusal, partition_of
from ferryman.runtime.errors import Misconfigured, Unreachable
from support.describing import Memos
from support.mockcluster import INIT_PRODUCER_ID, MockCluster
from support.published import poll_until, read_topic, stays
from support.relay import AnyTopic, some_cluster
from support.topics import Crossing, create, some_name

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# Java's own test vectors of murmur2 (org.apache.kafka.common.utils.UtilsTest), and the empty key.
MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
    "": 275646681,
}


@pytest.fixture
def crossing(ferryman_database_url: str, ferryman_kafka: str) -> Crossing:
    return Crossing(ferryman_database_url, ferryman_kafka)


def configure(kafka: str, topic: str, name: str, value: str) -> None:
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.incremental_alter_configs([resource])[resource].result(30)


real = pytest.mark.real_kafka


@real
def test_record_has_key_value_and_headers_as_they_were_appended(crossing: Crossing) -> None:
    """N3: CloudEvents 1.0 in binary mode."""
    topic = create(crossing.kafka)
    with psycopg.connect(crossing.database_url) as db:
        own = {"traceparent": TRACE, "x-attempt": "3", "naïve": "grüß"}
        identity = append(db, Message("order.placed", {"naïve": 1}, key="käse", topic=topic, headers=own))
        append(db, Message("raw", bytes(range(256)), key="", topic=topic))
        append(db, Message("nothing", b"", key="k", topic=topic, content_type="text/plain"))
    drained = crossing.drain()
    assert (drained.published, drained.failed, drained.waiting) == (3, 0, 0)
    records = {dict(record.headers)["ce_type"]: record for record in crossing.arrived(topic)}
    placed = records[b"order.placed"]
    assert (placed.key, placed.value) == ("käse", '{"naïve":1}'.encode())
    headers = dict(placed.headers)
    assert [name for name, _ in placed.headers] == [
        "ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "content-type", *sorted(own, key=len)
    ] or len(headers) == 9  # fmt: skip
    database = crossing.database_url.rpartition("/")[2]
    assert headers["ce_id"] == str(identity).encode()
    assert headers["ce_source"] == f"/{database}".encode()
    assert headers["ce_specversion"] == b"1.0"
    assert headers["content-type"] == b"application/json"
    assert headers["traceparent"] == TRACE.encode()
    assert headers["naïve"] == "grüß".encode()
    [(created,)] = crossing.query(
        "SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM ferryman.outbox "
        "WHERE id = %s",
        identity,
    )
    assert headers["ce_time"] == str(created).encode()
    assert records[b"raw"].value == bytes(range(256))
    assert dict(records[b"raw"].headers)["content-type"] == b"application/octet-stream"
    assert (records[b"nothing"].value, dict(records[b"nothing"].headers)["content-type"]) == (b"", b"text/plain")


@real
def test_keys_go_to_the_partitions_of_javas_default(crossing: Crossing) -> None:
    """Topics can be joined with those of Java's producers; the empty key has one partition too (N4)."""
    topic = create(crossing.kafka, partitions=12)
    for _ in range(3):
        crossing.append(topic, list(MURMUR2))
    crossing.drain()
    expected = {(key, (number & 0x7FFFFFFF) % 12) for key, number in MURMUR2.items()}
    assert {(record.key, record.partition) for record in crossing.assert_arrived(topic, 3 * len(MURMUR2))} == expected


@real
def test_entries_for_a_missing_topic_wait_until_it_exists_while_others_flow(crossing: Crossing) -> None:
    """N10, N11, N8, N4: within ten seconds of its creation, without a restart or an attempt burned."""
    missing, there = some_name(), create(crossing.kafka)
    keys = [f"k{n}" for n in range(20)] * 10
    with crossing.relaying():
        crossing.append(missing, keys)
        crossing.append(there, keys)
        crossing.await_statuses({"PUBLISHED": 200}, there)
        crossing.await_statuses({"PARKED": 200}, missing)
        crossing.append(missing, keys)
        crossing.append(there, keys)
        crossing.await_statuses({"PUBLISHED": 400}, there)
        assert crossing.most_attempts() == 0
        create(crossing.kafka, missing, partitions=3)
        crossing.await_statuses({"PUBLISHED": 400}, missing)
        crossing.append(missing, keys)
        crossing.await_statuses({"PUBLISHED": 600}, missing)
    crossing.assert_arrived(missing, 600)
    crossing.assert_arrived(there, 400)
    assert crossing.query("SELECT * FROM ferryman.outbox_parked_topic") == []


@real
def test_topic_deleted_while_it_is_published_to_waits_until_it_exists_again(crossing: Crossing) -> None:
    """N10, N11: even if nothing announces it, and it is the only topic."""
    gone, well = create(crossing.kafka), create(crossing.kafka)
    with crossing.relaying():
        crossing.append(gone, ["a", "b"])
        crossing.await_statuses({"PUBLISHED": 2})
        admin = AdminClient({"bootstrap.servers": crossing.kafka})
        admin.delete_topics([gone])[gone].result(30)
        crossing.append(gone, ["a", "b"] * 50)
        crossing.await_statuses({"PARKED": 100, "PUBLISHED": 2}, gone)
        crossing.append(well, ["a", "b"] * 50)
        crossing.await_statuses({"PUBLISHED": 100}, well)
        assert crossing.most_attempts() == 0
        create(crossing.kafka, gone)
        crossing.await_statuses({"PUBLISHED": 102}, gone)
    assert [record.number for record in crossing.arrived(gone) if record.key == "a"] == list(range(3, 103, 2))


@real
def test_entry_too_large_for_its_topic_fails_alone_with_a_clear_error(crossing: Crossing) -> None:
    """N10, N4: in the middle of a batch; nothing else is lost, doubled or out of order."""
    topic = create(crossing.kafka, max_message_bytes=20_000)
    keys = [f"k{n % 7}" for n in range(500)]
    crossing.append(topic, keys[:250])
    crossing.append(topic, ["k3", "k4"], b"x" * 30_000)
    crossing.append(topic, keys[250:])
    drained = crossing.drain()
    assert (drained.published, drained.failed, drained.waiting) == (500, 2, 0)
    assert crossing.statuses() == {"PUBLISHED": 500, "FAILED": 2}
    errors = crossing.query("SELECT error, attempts FROM ferryman.outbox_exception")
    for error, attempts in errors:
        assert error.endswith(f" bytes, and topic {topic} takes 20000 (max.message.bytes)")
        assert attempts == 1
    crossing.assert_arrived(topic, 500)


@real
@pytest.mark.parametrize("length", [1, 700, 1700])
def test_entries_up_to_the_topics_limit_flow_however_small_it_is(crossing: Crossing, length: int) -> None:
    """No batch is larger than the topic takes: otherwise a thousand entries would go one by one."""
    topic = create(crossing.kafka, max_message_bytes=2048)
    crossing.append(topic, [f"k{n % 50}" for n in range(2000)], b"x" * length)
    drained = crossing.drain()
    assert (drained.published, drained.failed) == (2000, 0)
    crossing.assert_arrived(topic, 2000)


@real
def test_topic_with_a_smaller_limit_harms_no_entry_of_others(crossing: Crossing) -> None:
    """N1, N3: the relay meets the smaller limit while batches of the others are on their way."""
    large, small = create(crossing.kafka, partitions=3), create(crossing.kafka, max_message_bytes=4000)
    keys = [f"k{n}" for n in range(100)]
    for _ in range(20):
        crossing.append(large, keys, b"x" * 2000)
    crossing.append(small, keys)
    for _ in range(20):
        crossing.append(large, keys, b"x" * 2000)
    crossing.drain()
    assert crossing.statuses() == {"PUBLISHED": 4100}
    crossing.assert_arrived(large, 4000)
    crossing.assert_arrived(small, 100)


@real
def test_topic_limit_that_shrinks_fails_only_entries_that_are_too_large(crossing: Crossing) -> None:
    topic = create(crossing.kafka)
    with crossing.relaying():
        crossing.append(topic, ["a"])
        crossing.await_statuses({"PUBLISHED": 1})
        configure(crossing.kafka, topic, "max.message.bytes", "3000")
        for _ in range(10):
            crossing.append(topic, [f"k{n}" for n in range(40)], b"x" * 500)
        crossing.append(topic, ["k1"], os.urandom(5000))  # compressed it is no smaller
        crossing.append(topic, ["k1", "k2"])
        crossing.await_statuses({"PUBLISHED": 403, "FAILED": 1})
    crossing.assert_arrived(topic, 403, doubles=True)


@real
def test_relay_on_another_cluster_publishes_nothing(crossing: Crossing, mock: MockCluster) -> None:
    """N1: it would take a part of the entries where no reader expects them."""
    topic = create(crossing.kafka)
    mock.create(topic)
    crossing.append(topic, ["a", "b"])
    assert crossing.drain().published == 2
    crossing.append(topic, ["c"])
    elsewhere = Crossing(crossing.database_url, mock.url)
    with pytest.raises(Misconfigured, match=r"and this is the cluster mockCluster.*rebase --new-cluster"):
        elsewhere.drain()
    assert elsewhere.arrived(topic) == []
    with crossing.database() as db:
        forget_cluster(db, who="me", reason="a test", dry_run=False)
    assert elsewhere.drain().published == 1


@real
def test_rows_of_described_tables_are_not_sent_to_another_cluster(
    crossing: Crossing,
    mock: MockCluster,
    ferryman_database_url: str,
    ferryman_db: psycopg.Connection[tuple[object, ...]],
) -> None:
    """N1: neither by a drain nor by a relay."""
    memos = Memos(ferryman_database_url, crossing.kafka, ferryman_db, create(crossing.kafka))
    memos.write("a")
    left = memos.outbox.drain(threading.Event(), lambda _: None)
    assert sum(each.waiting for each in left) == 0
    memos.write("b")
    mock.create(memos.topic)
    memos.kafka = mock.url
    with pytest.raises(Misconfigured, match=r"and this is the cluster mockCluster.*rebase --new-cluster"):
        memos.outbox.drain(threading.Event(), lambda _: None)
    with memos.relay() as relay, pytest.raises(Misconfigured, match="and this is the cluster mockCluster"):
        relay.run_once()
    assert [status for status, *_ in memos.rows()] == ["SENT", "PENDING"]


@real
def test_compacted_topic_is_refused_with_a_remedy_unless_it_is_named(crossing: Crossing) -> None:
    topic, other = create(crossing.kafka, cleanup_policy="compact"), create(crossing.kafka)
    crossing.append(topic, ["a", "b", "a"])
    crossing.append(other, ["a"])
    drained = crossing.drain()
    assert (drained.published, drained.failed, drained.waiting) == (1, 0, 3)
    [(reason,)] = crossing.query("SELECT DISTINCT reason FROM ferryman.outbox_parked_topic")
    assert reason.startswith(f"topic {topic} is compacted: a late duplicate would overwrite a newer value. Remedy: set")
    crossing.relay["compacted_topics"] = [topic]
    assert crossing.drain().published == 3
    crossing.assert_arrived(topic, 3)


@real
@pytest.mark.slow
@pytest.mark.parametrize("keys", [1, pytest.param(40, marks=pytest.mark.prove)])
def test_large_payloads_flow_even_if_together_they_outlast_the_deadline(crossing: Crossing, keys: int) -> None:
    """N1, N3: many times the producer's queue, of one key too; a broker that still acknowledges is not silent.

    Slow, because hundreds of megabytes are published.
    """
    crossing.relay["deadline_seconds"] = 2
    topic = create(crossing.kafka, max_message_bytes=2_000_000)
    for _ in range(4):
        crossing.append(topic, [f"k{n % keys}" for n in range(60)], b"x" * 900_000)
    drained = crossing.drain()
    assert (drained.published, drained.failed) == (240, 0)
    crossing.assert_arrived(topic, 240)


# Errors that no real broker can be made to give


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def by_mock(ferryman_database_url: str, mock: MockCluster) -> Crossing:
    return Crossing(ferryman_database_url, mock.url, relay={"deadline_seconds": 2})


RETRIABLE = {
    "NOT_ENOUGH_REPLICAS": KafkaError.NOT_ENOUGH_REPLICAS,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    "KAFKA_STORAGE_ERROR": KafkaError.KAFKA_STORAGE_ERROR,
    "REQUEST_TIMED_OUT": KafkaError.REQUEST_TIMED_OUT,
    "NOT_LEADER_FOR_PARTITION": KafkaError.NOT_LEADER_FOR_PARTITION,
    "LEADER_NOT_AVAILABLE": KafkaError.LEADER_NOT_AVAILABLE,
    "OUT_OF_ORDER_SEQUENCE_NUMBER": KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    "UNKNOWN_PRODUCER_ID": KafkaError.UNKNOWN_PRODUCER_ID,
    "INVALID_PRODUCER_EPOCH": KafkaError.INVALID_PRODUCER_EPOCH,
    "UNKNOWN_TOPIC_OR_PART": KafkaError.UNKNOWN_TOPIC_OR_PART,
    "TOPIC_AUTHORIZATION_FAILED": KafkaError.TOPIC_AUTHORIZATION_FAILED,
    "MSG_SIZE_TOO_LARGE": KafkaError.MSG_SIZE_TOO_LARGE,
    "INVALID_RECORD": KafkaError.INVALID_RECORD,
    "INVALID_TIMESTAMP": KafkaError.INVALID_TIMESTAMP,
    "UNKNOWN": KafkaError.UNKNOWN,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RETRIABLE)
def test_error_of_one_request_costs_no_entry_its_order_or_an_attempt(
    by_mock: Crossing, mock: MockCluster, name: str
) -> None:
    """N1, N3, N4, N8: a whole batch gets the error, once.

    Slow, because librdkafka and the relay both wait before they try again.
    """
    topic = some_name()
    mock.create(topic, partitions=3)
    by_mock.append(topic, [f"k{n % 30}" for n in range(900)])
    mock.fail([RETRIABLE[name]])
    with by_mock.relaying():
        by_mock.await_statuses({"PUBLISHED": 900})
        assert by_mock.most_attempts() == 0
        poll_until(lambda: not by_mock.query("SELECT FROM ferryman.outbox_parked_topic"), "end of its parking")
    by_mock.assert_arrived(topic, 900, doubles=True)


@pytest.mark.parametrize(
    "name", ["NOT_ENOUGH_REPLICAS", "KAFKA_STORAGE_ERROR", "REQUEST_TIMED_OUT", "INVALID_TIMESTAMP"]
)
def test_topic_that_takes_nothing_past_the_deadline_charges_no_attempt(
    by_mock: Crossing, mock: MockCluster, name: str
) -> None:
    """N8, N11: every request fails for a while; when they succeed again, all entries are published in order.

    The last is what a broker answers to a relay whose clock is more than an hour ahead of its own.
    """
    topic = some_name()
    mock.create(topic)
    mock.fail([RETRIABLE[name]] * 100_000)
    by_mock.append(topic, [f"k{n % 10}" for n in range(100)])
    with by_mock.relaying():
        assert stays(lambda: "PUBLISHED" not in by_mock.statuses(), 3)
        by_mock.append(topic, [f"k{n % 10}" for n in range(100)])
        assert by_mock.most_attempts() == 0
        mock.heal()
        by_mock.await_statuses({"PUBLISHED": 200})
    by_mock.assert_arrived(topic, 200, doubles=True)


def test_refused_records_fail_alone_and_others_of_their_key_continue(by_mock: Crossing, mock: MockCluster) -> None:
    """N10: refused in the batch, then alone."""
    topic = some_name()
    mock.create(topic)
    by_mock.relay["workers"] = 1  # two workers send two batches, and each would take one of the errors
    by_mock.append(topic, ["a", "b", "a", "c"])
    mock.fail([KafkaError.INVALID_RECORD, KafkaError.INVALID_RECORD])
    drained = by_mock.drain()
    assert (drained.published, drained.failed, drained.waiting) == (3, 1, 0)
    [(error, attempts)] = by_mock.query("SELECT error, attempts FROM ferryman.outbox_exception")
    assert "INVALID_RECORD" in error
    assert attempts == 1
    by_mock.assert_arrived(topic, 3)


UNFIT = {
    "headers that are a list": ("headers", "[1]"),
    "a header that is a number": ("headers", '{"a": 1}'),
    "no end of time": ("created_at", "infinity"),
    "no beginning of time": ("created_at", "-infinity"),
    "the year 10000": ("created_at", "10000-01-01"),
    "the last year": ("created_at", "294276-12-31"),
}


@pytest.mark.parametrize("payload", [b"small", b"x" * 1_100_000], ids=["small", "large"])
def test_entries_of_which_no_record_can_be_made_fail_alone(
    by_mock: Crossing, mock: MockCluster, payload: bytes
) -> None:
    """N4, N10: an owner can bypass the outbox's checks; the others of their lane and key are published."""
    topic = some_name()
    mock.create(topic)
    with by_mock.database() as db:
        db.execute("SET session_replication_role = replica")
        db.execute("UPDATE ferryman.outbox_state SET max_payload_bytes = 2000000")
        for column, what in UNFIT.values():
            by_mock.append(topic, ["k"] * 50)
            db.execute(
                f"INSERT INTO ferryman.outbox (lane, topic, key, type, payload, {column}) "
                "VALUES (ferryman.outbox_lane('k'), %s, 'k', 't', %s, %s)",
                (topic, payload, what),
            )
    drained = by_mock.drain()
    assert (drained.published, drained.failed, drained.waiting) == (300, 6, 0)
    errors = by_mock.query("SELECT DISTINCT error, attempts FROM ferryman.outbox_exception ORDER BY 1")
    assert errors == [
        ("its created_at is not in the years 1 to 9999", 1),
        ("its headers are not an object of texts", 1),
    ]
    by_mock.assert_arrived(topic, 300)


def test_entry_that_keeps_failing_is_tried_to_its_limit_while_others_flow(by_mock: Crossing, mock: MockCluster) -> None:
    """N8, N10."""
    topic = some_name()
    mock.create(topic)
    by_mock.relay["retry"] = {"limit": 3, "base_seconds": 0.01, "cap_seconds": 0.01}
    by_mock.append(topic, ["a"])
    mock.fail([KafkaError.UNKNOWN] * 4)  # in the batch, alone, and two retries, each of them in a batch first
    with by_mock.relaying():
        poll_until(lambda: by_mock.most_attempts() > 0, "an attempt")
        by_mock.append(topic, ["b", "b"])
        poll_until(lambda: by_mock.statuses().get("PUBLISHED", 0) >= 2, "others that flow")
        poll_until(lambda: set(by_mock.statuses()) <= {"PUBLISHED", "FAILED"}, "an end")
    assert by_mock.most_attempts() <= 3


def test_entries_acknowledged_too_late_are_sent_again_with_the_same_ids(by_mock: Crossing, mock: MockCluster) -> None:
    """N1, N3, N4, N8: it is unknown whether they had arrived."""
    topic = some_name()
    mock.create(topic)
    by_mock.append(topic, [f"k{n % 10}" for n in range(300)])
    mock.delay([4000])
    with by_mock.relaying():
        by_mock.await_statuses({"PUBLISHED": 300})
    assert by_mock.most_attempts() == 0
    by_mock.assert_arrived(topic, 300, doubles=True)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False])
def test_topic_without_a_leader_waits_and_holds_nobody_back(by_mock: Crossing, mock: MockCluster, alone: bool) -> None:
    """N8, N10, N11: librdkafka reports nothing, it only waits; and a turn may read only that topic's entries.

    Slow, because some deadlines have to pass.
    """
    sick, well = some_name(), some_name()
    mock.create(sick)
    mock.create(well)
    mock.lead(sick, leader=False)
    by_mock.relay |= {"batch_entries": 20, "tenure_seconds": 0.001} if alone else {}
    by_mock.append(sick, [f"k{n % 16}" for n in range(1000)])
    by_mock.append(well, [f"k{n % 16}" for n in range(100)])
    with by_mock.relaying():
        by_mock.await_statuses({"PUBLISHED": 100}, well)
        by_mock.await_statuses({"PARKED": 1000}, sick)
        for n in range(30):
            by_mock.append(sick, ["k"])
            by_mock.append(well, [f"k{n}"])
            by_mock.await_statuses({"PUBLISHED": 101 + n}, well, seconds=1)
        assert by_mock.most_attempts() == 0
        mock.lead(sick, leader=True)
        by_mock.await_statuses({"PUBLISHED": 1030}, sick)
    by_mock.assert_arrived(sick, 1030, doubles=True)
    by_mock.assert_arrived(well, 130, doubles=True)


def test_partition_without_a_leader_holds_up_only_its_own_keys(by_mock: Crossing, mock: MockCluster) -> None:
    """N10, N4, N8: other partitions of its topic go on, also where entries of theirs are parked in between."""
    topic, keys = some_name(), [f"k{n}" for n in range(40)]
    mock.create(topic, partitions=4)
    sick = [key for key in keys if partition_of(key, 4) == 3]
    mock.lead(topic, leader=False, partition=3)  # before a producer knows its leader: the mock would crash
    with by_mock.relaying():
        for n in range(1, 7):
            by_mock.append(topic, keys)
            by_mock.await_statuses({"PUBLISHED": n * (40 - len(sick)), "PARKED": n * len(sick)}, seconds=5)
        mock.lead(topic, leader=True, partition=3)
        by_mock.append(topic, keys)
        by_mock.await_statuses({"PUBLISHED": 280})
    assert by_mock.most_attempts() == 0
    by_mock.assert_arrived(topic, 280, doubles=True)


@real
def test_entries_are_held_back_by_the_partition_that_the_producer_chooses(crossing: Crossing) -> None:
    topic = create(crossing.kafka, partitions=12)
    crossing.append(topic, [*MURMUR2, "x", "xy", "xyz", "käse"])
    crossing.drain()
    assert all(partition_of(each.key, 12) == each.partition for each in crossing.arrived(topic))


def test_thousands_of_missing_topics_are_met_in_bounded_portions(by_mock: Crossing, mock: MockCluster) -> None:
    """N10, N12: other topics flow meanwhile, and metrics name no more than a hundred of them."""
    well = some_name()
    mock.create(well)
    with by_mock.relaying(), by_mock.database() as db:
        for n in range(3):
            with db.transaction():
                append_many(db, [Message("t", b"1", key=f"k{m}", topic=f"user.{n}.{m}") for m in range(1000)])
        for n in range(20):
            by_mock.append(well, [f"k{n}"])
            by_mock.await_statuses({"PUBLISHED": 1 + n}, well, seconds=2 if n else 10)
        by_mock.await_statuses({"PARKED": 3000}, "user.%")
    [opened] = metrics.BREAKER_OPEN.collect()
    assert len(opened.samples) <= 110
    assert by_mock.most_attempts() == 0


def test_discarded_entry_of_a_missing_topic_leaves_no_open_breaker() -> None:
    """N11, N13: nothing waits for the topic any more, so nothing is wrong with it."""
    now = [0.0]
    cluster = some_cluster(lambda: now[0])
    cluster.failed("goood", Refusal("Kafka does not know it"))
    for _ in range(6):
        cluster.want("default", {(3, "goood")})
        now[0] += 10
        cluster.examine()
    assert cluster.refused()
    for _ in range(6):
        now[0] += 10
        cluster.examine()
    assert not cluster.refused()


def test_error_while_a_cluster_is_asked_leaves_it_to_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    cluster = some_cluster(lambda: now[0])
    cluster.lost("nobody answers")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    now[0] = 60.0
    monkeypatch.setattr(AnyTopic, "answers", broken)
    with pytest.raises(ZeroDivisionError):
        cluster.probe(1)
    monkeypatch.undo()
    now[0] = 120.0
    assert cluster.probe(1)


def test_broker_that_gives_producers_no_id_counts_as_away(by_mock: Crossing, mock: MockCluster) -> None:
    topic = some_name()
    mock.create(topic)
    by_mock.append(topic, ["a", "b"])
    mock.fail([KafkaError.CLUSTER_AUTHORIZATION_FAILED] * 1000, INIT_PRODUCER_ID)
    with by_mock.relaying() as relay:
        assert "CLUSTER_AUTHORIZATION_FAILED" in poll_until(relay.cluster.why_not, "an open breaker")
        assert by_mock.statuses() == {"PENDING": 2}
        mock.heal(INIT_PRODUCER_ID)
        by_mock.await_statuses({"PUBLISHED": 2})
    assert by_mock.most_attempts() == 0


def test_producer_that_died_before_its_first_entry_gives_the_reason(mock: MockCluster) -> None:
    """N11: `produce` itself only says that it is dead."""
    topic = some_name()
    mock.create(topic)
    mock.fail([KafkaError.CLUSTER_AUTHORIZATION_FAILED] * 1000, INIT_PRODUCER_ID)
    publisher = Publisher({**INSISTED, "bootstrap.servers": mock.url}, "default", lambda _: b"")
    publisher.open()
    poll_until(lambda: _dead(publisher, topic), "the end of the producer")
    cut = publisher.flush(time.monotonic() + 5)
    assert cut is not None
    assert "CLUSTER_AUTHORIZATION_FAILED" in cut.why


def _dead(publisher: Publisher, topic: str) -> bool:
    entry = Entry(1, str(uuid4()), topic, "k", "t", b"{}", None, None, 0, 0)
    publisher.produce([entry], time.monotonic())
    return publisher.cut_short


def test_failed_record_is_followed_by_none_but_those_in_flight(mock: MockCluster) -> None:
    """N4: librdkafka goes on by itself, and later records of the key would overtake it, unless it must leave no gap.

    The broker in memory takes what is in flight; a real one refuses it by its sequence number.
    """
    topic = some_name()
    mock.create(topic)
    one_at_a_time = {"batch.num.messages": 1, "max.in.flight.requests.per.connection": 1}
    config = {**INSISTED, **one_at_a_time, "bootstrap.servers": mock.url}
    publisher = Publisher(config, "default", lambda _: b"")
    publisher.open()
    mock.fail([KafkaError.UNKNOWN])
    entries = [Entry(n, str(uuid4()), topic, "k", "t", b"%d" % n, None, None, 0, 0) for n in range(20)]
    publisher.produce(entries, time.monotonic() + 5)
    assert stays(lambda: len(read_topic(mock.url, topic)) <= 2, 0.5)
    cut = publisher.flush(time.monotonic() + 5)
    assert cut is not None
    assert cut.errors[topic, "k"][0] == "UNKNOWN"
    assert len(read_topic(mock.url, topic)) <= 2


def test_drain_gives_up_when_kafka_is_away(by_mock: Crossing, mock: MockCluster) -> None:
    topic = some_name()
    mock.create(topic)
    by_mock.append(topic, ["a"])
    mock.go_down()
    by_mock.properties["timeout_seconds"] = "1"
    with pytest.raises(Unreachable, match="Kafka is away"):
        by_mock.drain()
    assert by_mock.statuses() == {"PENDING": 1}
    mock.come_up()
    assert by_mock.drain().published == 1


def test_drain_that_is_told_to_stop_settles_what_it_published(by_mock: Crossing, mock: MockCluster) -> None:
    from ferryman.relay.service import drain

    topic = some_name()
    mock.create(topic)
    by_mock.append(topic, [f"k{n}" for n in range(1000)])
    stopping = threading.Event()
    stopping.set()
    drain(by_mock.settings, stopping)
    by_mock.drain()
    by_mock.assert_arrived(topic, 1000)
