"""Kafka or PostgreSQL goes away, dies, falls silent, and comes back: the relay continues by itself (N8, N11, N12, N14).

Slow, because real servers are killed and started again, and deadlines have to pass.
"""

import re
import signal
from collections.abc import Iterator

import psutil
import pytest

from ferryman.testing import stack
from ferryman.testing.kafka import LocalKafka
from ferryman.testing.parts import started
from ferryman.testing.postgres import FAST, LocalPostgres, binaries
from ferryman.testing.proxy import FaultProxy, Faults
from support.launch import Launched, Launcher
from support.published import PAYLOAD, Ferry, Writers, ask, events, metric, poll_until, readyz, stays

pytestmark = [pytest.mark.real_kafka, pytest.mark.serial, pytest.mark.slow]

NO_CLAIM = (0, 0)


@pytest.fixture(scope="module")
def wire() -> Iterator[FaultProxy]:
    """Give a proxy between the relay and the broker of this module."""
    with FaultProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def own_broker(wire: FaultProxy) -> Iterator[LocalKafka]:
    broker = LocalKafka(proxy_port=wire.port)
    wire.target = f"127.0.0.1:{broker.behind_proxy}"
    started(broker)
    yield broker
    broker.close()


@pytest.fixture
def broker(own_broker: LocalKafka, wire: FaultProxy) -> LocalKafka:
    """Give the broker of this module, running again if the test before stopped it."""
    wire.heal()
    if own_broker.pid is None:
        own_broker.start()
    return own_broker


@pytest.fixture
def ferry(ferryman: Launcher, ferryman_database_url: str, broker: LocalKafka) -> Ferry:
    """Give a ferry over the broker of this module, without the proxy."""
    return Ferry(ferryman, ferryman_database_url, broker.url)


@pytest.fixture
def ferry_by_wire(ferry: Ferry, wire: FaultProxy) -> Ferry:
    """Give a ferry whose relay reaches the broker through the proxy; the test itself does not use it."""
    ferry.environment["FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"] = wire.address
    return ferry


def await_outage(ferry: Ferry, relay: Launched) -> None:
    """Wait until readiness gives a reason, and then until no claim is opened any more.

    A worker that asked just before the outage was noticed may still take one turn.
    """
    relay.until(lambda: "Kafka is away" in readyz(relay), "readiness that says why")
    assert ask(relay, "livez")[0] == 200
    poll_until(lambda: stays(lambda: ferry.claims() == NO_CLAIM, 1), "end of the claims")


def await_recovery(relay: Launched) -> None:
    relay.until(lambda: readyz(relay) == "ready", "recovery")


def test_broker_killed_and_restarted_under_load_costs_only_time(ferry: Ferry, broker: LocalKafka) -> None:
    """N1 to N4, N8, N11: whether it is back within the deadline or not."""
    with ferry.writers() as writers:
        relay = ferry.relay()
        writers.await_commits(100)
        broker.kill()
        broker.start()
        await_recovery(relay)
        writers.await_commits(100)
    ferry.assert_kept()
    assert relay.alive


def test_broker_gone_past_every_deadline_charges_no_attempt_and_holds_no_claim(
    ferry: Ferry, broker: LocalKafka
) -> None:
    """N8, N11, N12, N14: readiness gives the reason, memory is bounded, the log has a line per change, no payload."""
    with ferry.writers() as writers:
        relay = ferry.relay()
        writers.await_commits(100)
        broker.kill()
        await_outage(ferry, relay)
        ferry.assert_nothing_charged()
        writers.await_commits(500)
        broker.start()
        await_recovery(relay)
        writers.await_commits(100)
    ferry.assert_kept()
    assert relay.alive
    assert psutil.Process(relay.pid).memory_info().rss < 200_000_000
    changes = [event["event"] for event in events(relay) if event.get("destination") == "kafka"]
    assert changes == ["breaker opened", "breaker closed"] * (len(changes) // 2)
    assert PAYLOAD not in relay.stderr + relay.stdout


def test_silent_broker_is_given_up_at_the_deadline_and_found_again(ferry_by_wire: Ferry, wire: FaultProxy) -> None:
    """N8, N11: connections stay open and nothing comes back."""
    ferry = ferry_by_wire
    with ferry.writers() as writers:
        relay = ferry.relay()
        writers.await_commits(100)
        wire.faults = Faults(black_hole=True)
        await_outage(ferry, relay)
        wire.heal()
        await_recovery(relay)
        writers.await_commits(100)
    ferry.assert_kept()
    assert relay.alive


def test_sigterm_while_the_broker_is_silent_exits_0_and_settles_nothing_unknown(
    ferry_by_wire: Ferry, wire: FaultProxy
) -> None:
    """N1 and N16: unacknowledged entries are published by the next relay."""
    ferry = ferry_by_wire
    with ferry.writers() as writers:
        relay = ferry.relay()
        writers.await_commits(100)
        wire.faults = Faults(black_hole=True)
        writers.await_commits(20)
        relay.send(signal.SIGTERM)
        assert relay.wait(20) == 0
    assert ferry.claims() == NO_CLAIM
    assert ferry.query("SELECT pending > 0 FROM ferryman.backlog") == [(True,)]
    wire.heal()
    ferry.relay()
    ferry.assert_kept()


@pytest.fixture
def server() -> Iterator[LocalPostgres]:
    server = started(LocalPostgres(binaries(), FAST))
    yield server
    server.close()


def test_postgresql_that_keeps_crashing_is_found_again(
    ferryman: Launcher, server: LocalPostgres, ferryman_kafka: str
) -> None:
    """N1 to N4, N11: also for entries that the relay had settled and the crash forgot."""
    url = stack.new_database(server.url, "crashing")
    stack.migrate(url)
    ferry = Ferry(ferryman, url, ferryman_kafka)
    with ferry.writers() as writers:
        relay = ferry.relay()
        for _ in range(3):
            writers.await_commits(100)
            server.crash()
            relay.until(lambda: "default: " in readyz(relay), "readiness that says why")
            server.start()
            await_recovery(relay)
        writers.await_commits(100)
    ferry.assert_kept()
    changes = [event["event"] for event in events(relay) if event["event"].startswith("source")]
    assert changes == ["source connected", *["source away", "source connected"] * (len(changes) // 2)]
    assert server.password not in relay.stderr + relay.stdout


def test_relay_continues_after_its_claiming_connections_are_ended(
    ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str
) -> None:
    """N1 to N4, N11: messages were in flight, and their lanes went to other workers."""
    ferry = Ferry(ferryman, ferryman_database_url, ferryman_kafka)
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'ferryman relay' AND state LIKE %s"
    )
    with ferry.writers() as writers, ferry.database() as database:
        relay = ferry.relay()
        for _ in range(6):
            writers.await_commits(30)
            poll_until(lambda: database.execute(end, ("idle in transaction%",)).fetchall(), "a claim to end")
        writers.await_commits(50)
    verdict = ferry.assert_kept()
    assert relay.alive
    assert verdict.doubled > 0, "no session was ended between publication and settling"


@pytest.fixture
def wired_database(ferryman_database_url: str) -> Iterator[tuple[FaultProxy, str]]:
    """Give a proxy to the database, and the database's URL through it."""
    [port] = re.findall(r":(\d+)/", ferryman_database_url)
    with FaultProxy(f"127.0.0.1:{port}") as proxy:
        yield proxy, ferryman_database_url.replace(f":{port}/", f":{proxy.port}/")


def test_relay_continues_after_a_database_was_silent_for_a_while(
    ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str, wired_database: tuple[FaultProxy, str]
) -> None:
    """N1 to N4, N11: connections stay open and nothing comes back; then everything on its way arrives."""
    wire, url = wired_database
    ferry = Ferry(ferryman, ferryman_database_url, ferryman_kafka, environment={"FERRYMAN_DATABASE_URL": url})
    with ferry.writers() as writers:
        relay = ferry.relay()
        for _ in range(3):
            writers.await_commits(50)
            wire.faults = Faults(black_hole=True)
            writers.await_commits(100)
            wire.heal()
        writers.await_commits(50)
    verdict = ferry.assert_kept()
    assert relay.alive
    assert verdict.doubled == 0


def vanish(ferry: Ferry, writers: Writers, wire: FaultProxy) -> None:
    """Silence the wire while the relay holds lanes and the server waits for its next statement.

    In the middle of a pipeline the server would wait for the rest of it, and no timeout of a transaction runs then: a
    host that vanishes at that moment is TCP's to find, and this wire keeps its connections open.
    """
    amid_pipeline = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ferryman relay' "
        "AND state = 'active' AND wait_event = 'ClientRead'"
    )
    for _ in range(50):
        writers.await_commits(3)
        wire.faults = Faults(black_hole=True)
        writers.await_commits(20)
        if ferry.claims()[0] and not ferry.query(amid_pipeline):
            return
        wire.heal()
    raise AssertionError("it never held lanes while the server waited for a statement")


def test_lanes_of_a_relay_that_vanished_go_to_another_and_it_may_come_back(
    ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str, wired_database: tuple[FaultProxy, str]
) -> None:
    """N1 to N4, N11, N12: the server ends a claim that is silent for longer than its deadlines can take."""
    wire, url = wired_database
    ferry = Ferry(ferryman, ferryman_database_url, ferryman_kafka)
    with ferry.writers(pause_seconds=0.02) as writers:
        vanishing = ferry.relay(env={"FERRYMAN_DATABASE_URL": url})
        vanish(ferry, writers, wire)
        staying = ferry.relay()
    ferry.await_published(60)
    wire.heal()
    with ferry.writers() as writers:
        await_recovery(vanishing)
        before = metric(vanishing, "ferryman_relay_published_total")
        poll_until(lambda: metric(vanishing, "ferryman_relay_published_total") > before, "its share of the work")
    ferry.assert_kept()
    assert staying.alive
