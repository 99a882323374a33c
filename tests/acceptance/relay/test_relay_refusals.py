"""Topics that refuse everything: missing ones, and ones that this relay may not write to (N8, N10, N11).

A broker with an authorizer and SASL is started for this module alone: slow, for that reason.
"""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ferryman import Message, append_many
from ferryman.testing import places
from ferryman.testing.kafka import LocalKafka
from ferryman.testing.parts import started
from support.launch import Launched, Launcher
from support.published import metric, poll_until, read_topic, readyz, stays
from support.topics import Crossing, create, some_name

PASSWORD = "geheim"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"

pytestmark = [pytest.mark.real_kafka, pytest.mark.slow]


class GuardedKafka(LocalKafka):
    """A Kafka with a second listener, where clients log in and need ACLs; clients of the first may do anything."""

    def _listeners(self, proxy_port: int | None, *, leads: bool = True) -> dict[str, str]:
        lines = super()._listeners(proxy_port, leads=leads)
        self.guarded = f"127.0.0.1:{places.free_port()}"
        for name in ("listeners", "advertised.listeners"):
            lines[name] += f",GUARDED://{self.guarded}"
        lines["listener.security.protocol.map"] += ",GUARDED:SASL_PLAINTEXT"
        return lines | {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.guarded.plain.sasl.jaas.config": f'{PLAIN} user_relay="{PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "false",
        }

    def grant(self, topic: str, *operations: AclOperation) -> None:
        wanted = [
            AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:relay", "*", operation,
                       AclPermissionType.ALLOW)
            for operation in operations
        ]  # fmt: skip
        admin = AdminClient({"bootstrap.servers": self.url})
        for future in admin.create_acls(wanted).values():
            future.result(30)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedKafka]:
    broker = started(GuardedKafka())
    yield broker
    broker.close()


@pytest.fixture
def crossing(ferryman_database_url: str, guarded: GuardedKafka) -> Crossing:
    """Give a crossing that is read by a client without restrictions."""
    return Crossing(ferryman_database_url, guarded.url)


def environment(crossing: Crossing, broker: GuardedKafka) -> dict[str, str]:
    """Return the environment with librdkafka's properties, by names derived from theirs."""
    return {
        "FERRYMAN_DATABASE_URL": crossing.database_url,
        "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": broker.guarded,
        "FERRYMAN_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "FERRYMAN_KAFKA__SASL_MECHANISM": "PLAIN",
        "FERRYMAN_KAFKA__SASL_USERNAME": "relay",
        "FERRYMAN_KAFKA__SASL_PASSWORD": PASSWORD,
        "FERRYMAN_RELAY__BACKLOG_SECONDS": "1",
        "FERRYMAN_RELAY__DEADLINE_SECONDS": "3",
    }


def ready(relay: Launched) -> Launched:
    relay.until(lambda: readyz(relay) == "ready", "readiness")
    return relay


@pytest.mark.serial
@pytest.mark.parametrize("before", [(), (AclOperation.DESCRIBE,)], ids=["may nothing", "may describe"])
def test_topic_without_a_write_grant_waits_for_it_while_others_flow(
    ferryman: Launcher, crossing: Crossing, guarded: GuardedKafka, before: tuple[AclOperation, ...]
) -> None:
    """N8, N10, N11: SASL by properties; refused in the metadata, or only on produce; no restart."""
    closed, opened = create(guarded.url), create(guarded.url)
    guarded.grant(opened, AclOperation.WRITE, AclOperation.DESCRIBE)
    if before:
        guarded.grant(closed, *before)
    relay = ready(ferryman.start("run", "relay", env=environment(crossing, guarded)))
    keys = [f"k{n % 10}" for n in range(100)]
    for topic in (opened, closed, opened, closed):
        crossing.append(topic, keys)
    crossing.await_statuses({"PUBLISHED": 200}, opened)
    crossing.await_statuses({"PARKED": 200}, closed)
    assert crossing.most_attempts() == 0
    assert crossing.arrived(closed) == []
    [reason] = {row[0] for row in crossing.query("SELECT reason FROM ferryman.outbox_parked_topic")}
    assert "TOPIC_AUTHORIZATION_FAILED" in reason
    relay.until(lambda: metric(relay, "ferryman_relay_parked_entries") == 200, "the gauge of what waits")
    assert readyz(relay) == "ready"
    guarded.grant(closed, AclOperation.WRITE, AclOperation.DESCRIBE)
    crossing.await_statuses({"PUBLISHED": 200}, closed)
    crossing.append(closed, keys)
    crossing.await_statuses({"PUBLISHED": 300}, closed)
    crossing.assert_arrived(closed, 300)
    crossing.assert_arrived(opened, 200, doubles=True)
    relay.until(lambda: metric(relay, "ferryman_relay_parked_entries") == 0, "the gauge of what waits")
    assert metric(relay, "ferryman_relay_failed_total") == 0
    assert PASSWORD not in relay.stderr


@pytest.mark.serial
def test_wrong_password_fails_no_entry_and_is_reported(
    ferryman: Launcher, crossing: Crossing, guarded: GuardedKafka, tmp_path: Path
) -> None:
    """N8, N14: a drain exits 4, or 3; the entry waits for a relay that may log in."""
    topic = create(guarded.url)
    guarded.grant(topic, AclOperation.WRITE, AclOperation.DESCRIBE)
    crossing.append(topic, ["a"])
    wrong = environment(crossing, guarded) | {
        "FERRYMAN_KAFKA__SASL_PASSWORD": "an-old-secret",
        "FERRYMAN_KAFKA__TIMEOUT_SECONDS": "2",
    }
    refused = ferryman.run("drain", "relay", env=wrong)
    assert refused.wait() == 4
    assert "Authentication failed" in refused.stderr
    assert "an-old-secret" not in refused.stderr
    assert crossing.statuses() == {"PENDING": 1}
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    right = environment(crossing, guarded) | {"FERRYMAN_KAFKA__SASL_PASSWORD_FILE": str(tmp_path / "password")}
    del right["FERRYMAN_KAFKA__SASL_PASSWORD"]
    drained = ferryman.run("drain", "relay", "--json", env=right)
    assert (drained.wait(), drained.json["published"]) == (0, 1)


def test_running_relay_waits_for_a_missing_topic(
    ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str
) -> None:
    """N10, N11: it stays ready, others flow, and ten seconds after the topic's creation all entries are published."""
    crossing = Crossing(ferryman_database_url, ferryman_kafka)
    missing, there = some_name(), create(ferryman_kafka)
    env = {
        "FERRYMAN_DATABASE_URL": ferryman_database_url,
        "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": ferryman_kafka,
        "FERRYMAN_RELAY__BACKLOG_SECONDS": "1",
    }
    relay = ready(ferryman.start("run", "relay", env=env))
    keys = [f"k{n % 10}" for n in range(300)]
    crossing.append(missing, keys)
    crossing.append(there, keys)
    crossing.await_statuses({"PUBLISHED": 300}, there)
    crossing.await_statuses({"PARKED": 300}, missing)
    relay.until(lambda: metric(relay, "ferryman_relay_breaker_open") == 1, "an open breaker")
    assert stays(lambda: readyz(relay) == "ready" and crossing.most_attempts() == 0, 1)
    create(ferryman_kafka, missing)
    crossing.append(missing, keys)
    crossing.await_statuses({"PUBLISHED": 600}, missing)
    crossing.assert_arrived(missing, 600)
    relay.until(lambda: metric(relay, "ferryman_relay_breaker_open") == 0, "a closed breaker")


def test_entries_of_one_key_in_two_topics_do_not_wait_for_one_another(
    ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str
) -> None:
    """N10: order is kept per key and topic."""
    missing, there = some_name(), create(ferryman_kafka)
    with psycopg.connect(ferryman_database_url) as db:
        append_many(db, [Message("t", b"%d" % n, key="k", topic=(missing, there)[n % 2]) for n in range(100)])
    env = {"FERRYMAN_DATABASE_URL": ferryman_database_url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": ferryman_kafka}
    ferryman.start("run", "relay", env=env)
    poll_until(lambda: len(read_topic(ferryman_kafka, there)) == 50, "fifty records")
    assert [record.number for record in read_topic(ferryman_kafka, there)] == list(range(1, 100, 2))
