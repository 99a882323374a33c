"""Any number of relays over one outbox, started, stopped and killed at any moment (N1 to N4, N10, N11, N16).

Slow, because several processes start one after the other: seconds each on a busy machine.
"""

import random
import signal
import time
from collections import defaultdict

import pytest

from ferryman.testing import places
from support.launch import Launched, Launcher
from support.published import Ferry, metric, poll_until, readyz, said

pytestmark = [pytest.mark.real_kafka, pytest.mark.slow]

PUBLISHED = "ferryman_relay_published_total"


@pytest.fixture
def ferry(ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str) -> Ferry:
    return Ferry(ferryman, ferryman_database_url, ferryman_kafka)


def killed_at_random(ferry: Ferry, seed: int, *, replicas: int, seconds: float) -> int:
    """Kill replicas and replace each at once. Return how many were killed."""
    dice, kills, until = random.Random(seed), 0, time.monotonic() + seconds
    with ferry.writers(seed) as writers:
        running = [ferry.start() for _ in range(replicas)]
        while time.monotonic() < until:
            writers.await_commits(dice.randrange(200))
            victim = dice.randrange(replicas)
            running[victim].kill()
            running[victim] = ferry.start()
            kills += 1
    ferry.assert_kept()
    return kills


def test_two_replicas_killed_at_random_lose_invert_and_alter_nothing(ferry: Ferry, seed: int) -> None:
    """N1 to N4, N11: the short form of the proof below."""
    assert killed_at_random(ferry, seed, replicas=2, seconds=6) > 2


@pytest.mark.prove
def test_five_replicas_killed_at_random_for_a_minute_lose_and_invert_nothing(ferry: Ferry, seed: int) -> None:
    """N1 to N4, N11. Long, to meet rare moments."""
    assert killed_at_random(ferry, seed, replicas=5, seconds=60) > 20


def both_publish(*relays: Launched) -> bool:
    return all(metric(relay, PUBLISHED) > 0 for relay in relays)


def test_lanes_of_a_killed_replica_are_picked_up_within_a_second(ferry: Ferry) -> None:
    """N11: from the kill to the next publication in each lane."""
    with ferry.writers() as writers:
        victim, survivor = ferry.start(), ferry.start()
        poll_until(lambda: both_publish(victim, survivor), "work for both")
        killed_at = time.time()
        victim.kill()
        writers.await_commits(300)
        assert survivor.alive
    verdict = ferry.assert_kept()
    lane_of = dict(ferry.query("SELECT key, ferryman.outbox_lane(key) FROM counters"))
    next_at: dict[int, float] = defaultdict(lambda: float("inf"))
    for record in verdict.published:
        if record.at > killed_at:
            next_at[lane_of[record.key]] = min(next_at[lane_of[record.key]], record.at)
    longest = max(next_at[lane] - killed_at for lane in set(lane_of.values()))
    print(f"picked up after {longest:.2f} s")
    assert longest < 1


def test_replica_that_joins_gets_its_share(ferry: Ferry) -> None:
    """Without a fault nothing is published twice, whichever replica claims."""
    with ferry.writers() as writers:
        first = ferry.relay()
        writers.await_commits(100)
        second = ferry.relay()
        poll_until(lambda: metric(second, PUBLISHED) > 0, "work for the one that joined")
        before = metric(first, PUBLISHED), metric(second, PUBLISHED)
        writers.await_commits(400)
        shares = metric(first, PUBLISHED) - before[0], metric(second, PUBLISHED) - before[1]
    print(f"shares {shares}")
    assert min(shares) > 0.2 * sum(shares)
    assert ferry.assert_kept().doubled == 0


def test_sigterm_under_load_settles_what_was_acknowledged_and_exits_0(ferry: Ferry) -> None:
    """N16: no lane stays locked, nothing is published twice, and the next relay publishes the rest."""
    with ferry.writers() as writers:
        for _ in range(2):
            relay = ferry.relay()
            writers.await_commits(100)
            began = time.monotonic()
            relay.send(signal.SIGTERM)
            assert relay.wait(20) == 0
            print(f"drained in {time.monotonic() - began:.2f} s")
            assert ferry.claims() == (0, 0)
            assert "stopped" in relay.stderr
    assert "PENDING" in ferry.statuses()
    ferry.relay()
    assert ferry.assert_kept().doubled == 0


def test_source_that_is_broken_does_not_stop_the_good_one(ferry: Ferry) -> None:
    """N10, N14: readiness names the bad source, and the log mentions it once and without its password."""
    bad = f"postgresql://nobody:hunter2@127.0.0.1:{places.free_port()}/nowhere"
    ferry.environment["FERRYMAN_RELAY__SOURCES__GOOD__DATABASE_URL"] = ferry.environment.pop("FERRYMAN_DATABASE_URL")
    ferry.environment["FERRYMAN_RELAY__SOURCES__BAD__DATABASE_URL"] = bad
    with ferry.writers() as writers:
        relay = ferry.start()
        relay.until(lambda: "bad: PostgreSQL at" in readyz(relay), "readiness that names the bad one")
        writers.await_commits(200)
    ferry.assert_kept()
    assert "good" not in readyz(relay)
    assert [event["source"] for event in said(relay, "source away")] == ["bad"]
    assert [event["source"] for event in said(relay, "source connected")] == ["good"]
    assert "hunter2" not in relay.stderr + readyz(relay)
