"""A relay that is killed -9 at any moment loses nothing, and doubles only what it had not settled (N1 to N4, N11).

Slow, because relays start one after the other: seconds each on a busy machine.
"""

from typing import Literal, NamedTuple

import pytest

from support.launch import KillAt, Launcher
from support.published import Ferry, Verdict, new_topic, poll_until

pytestmark = [pytest.mark.real_kafka, pytest.mark.slow]


class Point(NamedTuple):
    """Where a relay is killed, and whether what it had published must come again."""

    kill_at: KillAt
    doubles: bool


POINTS = {
    "after_claim": Point(KillAt("ferryman.relay.lanes:LaneWorker._walk", "before", 3), doubles=False),
    "mid_publish": Point(KillAt("ferryman.relay.kafka:Publisher.produce", "after", 5), doubles=False),
    "before_acknowledgement": Point(KillAt("ferryman.relay.lanes:LaneWorker._finish", "before", 3), doubles=False),
    "after_acknowledgement_before_settle": Point(
        KillAt("ferryman.relay.lanes:settle_walks", "before", 3), doubles=True
    ),
    "mid_settle": Point(KillAt("ferryman.relay.store.lanes:_write_window", "after", 3), doubles=True),
    "after_settle_before_commit": Point(KillAt("ferryman.relay.lanes:settle_walks", "after", 3), doubles=True),
    "after_commit": Point(KillAt("ferryman.relay.worker:Worker._observed", "before", 3), doubles=False),
}


@pytest.fixture
def ferry(ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str) -> Ferry:
    return Ferry(ferryman, ferryman_database_url, ferryman_kafka)


@pytest.mark.parametrize("point", POINTS)
def test_a_relay_killed_at_this_point_loses_inverts_and_alters_nothing(ferry: Ferry, point: str) -> None:
    """N1, N2, N3, N4, and N11: the next one needs no hand."""
    with ferry.writers() as writers:
        writers.await_commits(100)
        victim = ferry.start(POINTS[point].kill_at, {"FERRYMAN_RELAY__BATCH_ENTRIES": "50"})
        assert victim.wait() == -9
        survivor = ferry.start()
        writers.await_commits(50)
    verdict = ferry.assert_kept()
    assert survivor.alive
    if POINTS[point].doubles:
        assert verdict.doubled > 0, "the kill came too early to prove anything"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_relay_killed_while_it_releases_a_parked_topic_keeps_its_order(
    ferry: Ferry, when: Literal["before", "after"]
) -> None:
    """N1, N3, N4 and N11: what waited for its topic comes out in order, before what was appended since."""
    ferry.topic = f"{ferry.topic}-missing"
    with ferry.writers() as writers:
        first = ferry.start()
        writers.await_commits(50)
        parked = "SELECT count(*) FROM ferryman.outbox_exception WHERE status = 'PARKED'"
        poll_until(lambda: ferry.query(parked) > [(50,)], "parked entries")
        first.kill()
        new_topic(ferry.kafka, name=ferry.topic)
        victim = ferry.start(KillAt("ferryman.relay.lanes:settle_exceptions", when, 2))
        assert victim.wait() == -9
        ferry.start()
        writers.await_commits(50)
    ferry.assert_kept()


# Truncation takes rows away: what was committed is remembered beside them.
REMEMBER = """
CREATE TABLE remembered (id text, key text, payload bytea);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN INSERT INTO remembered VALUES (NEW.id, NEW.key, NEW.payload); RETURN NULL; END';
CREATE TRIGGER remember AFTER INSERT ON ferryman.outbox FOR EACH ROW EXECUTE FUNCTION remember();
"""
SHORT_RING = {"FERRYMAN_RELAY__RING__ROTATE_SECONDS": "0.2", "FERRYMAN_RELAY__RING__RETENTION_SECONDS": "0"}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["rotate", "lock", "truncate"])
def test_a_relay_killed_while_the_ring_turns_loses_inverts_and_alters_nothing(
    ferry: Ferry, step: str, when: Literal["before", "after"]
) -> None:
    """N1 to N4 and N11: the next one turns it further, and what is truncated was published."""
    with ferry.database() as connection:
        connection.execute(REMEMBER)
    with ferry.writers() as writers:
        writers.await_commits(50)
        victim = ferry.start(KillAt(f"ferryman.relay.store.ring:{step}", when, 1), SHORT_RING)
        assert victim.wait() == -9
        ferry.start(env=SHORT_RING)
        writers.await_commits(50)
    ferry.await_published()
    poll_until(
        lambda: ferry.query("SELECT sum(n) > 0 FROM ferryman.outbox_state, unnest(truncated) n") == [(True,)],
        "truncation",
    )
    committed = ferry.query("SELECT id, key, payload FROM remembered")
    Verdict(
        {identity: (key, bytes(payload)) for identity, key, payload in committed}, ferry.verdict().published
    ).assert_kept()
