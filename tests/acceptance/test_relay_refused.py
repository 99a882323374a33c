"""The cluster knows who the relay is, and lets it write to some topics only."""

import signal
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ferryman.testing.kafka import LocalKafka
from ferryman.testing.part import started
from ferryman.testing.proxy import FaultProxy
from support.launch import Launcher
from support.published import Ferry, events, new_topic, poll_until, read_topic

pytestmark = [pytest.mark.real_kafka, pytest.mark.serial, pytest.mark.slow]

PASSWORD = "relays-own-password"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
# Whoever comes by the plain listener is an administrator; by the other one asks who it is.
GUARDED = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT",
    "listener.name.proxied.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.proxied.plain.sasl.jaas.config": f'{LOGIN} required user_relay="{PASSWORD}";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
APPEND = "SELECT ferryman.outbox_append(%s, 'k', 't', convert_to(n::text, 'UTF8')) FROM generate_series(1, 20) n"


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[LocalKafka, str]]:
    """A broker with an authorizer, and the address at which it asks for a password."""
    with FaultProxy() as proxy:
        broker = LocalKafka(GUARDED, proxy_port=proxy.port)
        proxy.target = f"127.0.0.1:{broker.behind_proxy}"
        started(broker)
        yield broker, proxy.address
        broker.close()


def allow(kafka: str, topic: str, *operations: AclOperation) -> None:
    granted = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:relay",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    admin = AdminClient({"bootstrap.servers": kafka})
    for done in admin.create_acls(granted).values():
        done.result(10)


def logged_in(address: str, password: str = PASSWORD) -> dict[str, str]:
    return {
        "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": address,
        "FERRYMAN_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "FERRYMAN_KAFKA__SASL_MECHANISM": "PLAIN",
        "FERRYMAN_KAFKA__SASL_USERNAME": "relay",
        "FERRYMAN_KAFKA__SASL_PASSWORD": password,
    }


@pytest.mark.parametrize("may_look", [True, False])
def test_a_topic_that_is_refused_waits_while_another_flows_and_comes_out_after_the_grant(
    ferryman: Launcher, ferryman_database_url: str, guarded: tuple[LocalKafka, str], *, may_look: bool
) -> None:
    """N8, N10, N11, N14. Slow: a broker of its own, and probes have their intervals."""
    broker, address = guarded
    ferry = Ferry(ferryman, ferryman_database_url, broker.url, environment=logged_in(address))
    refused = new_topic(broker.url)
    allow(broker.url, ferry.topic, AclOperation.WRITE, AclOperation.DESCRIBE)
    if may_look:
        allow(broker.url, refused, AclOperation.DESCRIBE)
    relay = ferry.relay()
    ferry.query(APPEND, refused)
    ferry.query(APPEND, ferry.topic)
    poll_until(lambda: len(read_topic(broker.url, ferry.topic)) == 20, "the other topic's records")
    poll_until(lambda: ferry.statuses() == {"PARKED", "PUBLISHED"}, "parked entries")
    assert ferry.query("SELECT sum(attempts) FROM ferryman.outbox_exception") == [(0,)]
    [(reason,)] = ferry.query("SELECT DISTINCT reason FROM ferryman.outbox_parked_topic")
    assert "TOPIC_AUTHORIZATION_FAILED" in reason
    allow(broker.url, refused, AclOperation.WRITE, AclOperation.DESCRIBE)
    ferry.await_published()
    firsts = dict.fromkeys(record.number for record in read_topic(broker.url, refused))
    assert list(firsts) == list(range(1, 21))
    assert PASSWORD not in relay.transcript()
    relay.send(signal.SIGTERM)
    assert relay.wait() == 0


def test_a_wrong_password_is_said_and_costs_no_attempt(
    ferryman: Launcher, ferryman_database_url: str, guarded: tuple[LocalKafka, str]
) -> None:
    """N8, N14: it is the whole cluster that refuses."""
    broker, address = guarded
    ferry = Ferry(ferryman, ferryman_database_url, broker.url, environment=logged_in(address, "wrong-password"))
    relay = ferry.start()
    ferry.query(APPEND, ferry.topic)
    opened = relay.until(
        lambda: [each for each in events(relay) if each["event"] == "breaker opened"], "an open breaker", 30
    )
    assert opened[0]["destination"] == "kafka"
    assert "correct the SASL mechanism, user or password" in opened[0]["reason"]
    assert ferry.statuses() == {"PENDING"}
    ferry.assert_nothing_charged()
    assert "wrong-password" not in relay.transcript()
    drained = ferryman.run("drain", "--json", env=ferry.environment)
    assert drained.wait() == 4
