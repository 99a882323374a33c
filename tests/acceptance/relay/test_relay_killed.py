"""A relay killed with -9 at any moment loses nothing, and doubles only entries it had not settled (N1 to N4, N11).

Slow, because relays start one after the other: seconds each on a busy machine.
"""

from typing import NamedTuple

import pytest

from support.launch import KillAt, Launcher
from support.published import Ferry, Verdict, new_topic, poll_until

pytestmark = [pytest.mark.real_kafka, pytest.mark.slow]


class Point(NamedTuple):
    """The occurrence of a step that a relay is killed before, and whether published entries must come again."""

    nth: int
    doubles: bool


POINTS = {
    "read": Point(3, doubles=False),
    "advance": Point(5, doubles=False),
    "acknowledge": Point(3, doubles=False),
    "settle": Point(3, doubles=True),
    "write cursors": Point(3, doubles=True),
    "commit": Point(3, doubles=True),
    "report": Point(3, doubles=False),
}


@pytest.fixture
def ferry(ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str) -> Ferry:
    return Ferry(ferryman, ferryman_database_url, ferryman_kafka)


@pytest.mark.parametrize("step", POINTS)
def test_relay_killed_before_a_step_loses_inverts_and_alters_nothing(ferry: Ferry, step: str) -> None:
    """N1, N2, N3, N4, and N11: the next relay needs no help."""
    nth, doubles = POINTS[step]
    with ferry.writers() as writers:
        writers.await_commits(100)
        victim = ferry.start(KillAt.before_step("relay", step, nth), {"FERRYMAN_RELAY__BATCH_ENTRIES": "50"})
        assert victim.wait() == -9
        survivor = ferry.start()
        writers.await_commits(50)
    verdict = ferry.assert_kept()
    assert survivor.alive
    if doubles:
        assert verdict.doubled > 0, "the kill came too early to prove anything"


@pytest.mark.parametrize("step", ["settle retries", "commit retries"])
def test_relay_killed_while_it_releases_a_parked_topic_keeps_its_order(ferry: Ferry, step: str) -> None:
    """N1, N3, N4 and N11: entries that waited for their topic come out in order, before newer ones."""
    ferry.topic = f"{ferry.topic}-missing"
    with ferry.writers() as writers:
        first = ferry.start()
        writers.await_commits(50)
        parked = "SELECT count(*) FROM ferryman.outbox_exception WHERE status = 'PARKED'"
        poll_until(lambda: ferry.query(parked) > [(50,)], "parked entries")
        first.kill()
        new_topic(ferry.kafka, name=ferry.topic)
        victim = ferry.start(KillAt.before_step("relay", step, 2))
        assert victim.wait() == -9
        ferry.start()
        writers.await_commits(50)
    ferry.assert_kept()


# Truncation takes rows away: committed entries are remembered beside them.
REMEMBER = """
CREATE TABLE public.remembered (id text, key text, payload bytea);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN INSERT INTO public.remembered VALUES (NEW.id, NEW.key, NEW.payload); RETURN NULL; END';
CREATE TRIGGER remember AFTER INSERT ON ferryman.outbox FOR EACH ROW EXECUTE FUNCTION remember();
"""
SHORT_RING = {"FERRYMAN_RELAY__RING__ROTATE_SECONDS": "0.2", "FERRYMAN_RELAY__RING__RETENTION_SECONDS": "0"}


@pytest.mark.parametrize(
    "step", ["rotate", "commit rotation", "lock segment", "compare", "truncate", "commit truncation"]
)
def test_relay_killed_while_the_ring_turns_loses_inverts_and_alters_nothing(ferry: Ferry, step: str) -> None:
    """N1 to N4 and N11: the next relay turns the ring further, and truncated entries were published."""
    with ferry.database() as connection:
        connection.execute(REMEMBER)
    with ferry.writers() as writers:
        writers.await_commits(50)
        victim = ferry.start(KillAt.before_step("relay", step), SHORT_RING)
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
