"""The breakers of a process's destinations: each ends by itself, whatever happened to what opened it."""

from typing import Any, cast

import pytest

from ferryman.relay import metrics
from ferryman.relay.cluster import Cluster
from ferryman.relay.topics import Refusal, TopicDirectory
from support.relay import AnyTopic


class Directory(AnyTopic):
    """A topic directory that raises what it is told to, once, when it is asked for a sign of life."""

    error: BaseException | None = None

    def answers(self, seconds: float) -> str | None:
        error, self.error = self.error, None
        if error:
            raise error
        return super().answers(seconds)


class Clock:
    """A clock that stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def gauge(destination: str) -> Any:
    return metrics.BREAKER_OPEN.labels(destination)._value.get()


def test_breaker_of_a_topic_that_nothing_waits_for_is_forgotten(clock: Clock) -> None:
    """N11, N13: after a discard nobody tries the topic any more, so no success would ever end its alert."""
    cluster = Cluster(cast(TopicDirectory, Directory()), clock)
    cluster.failed("goood", Refusal("Kafka does not know the topic goood"))
    cluster.lost("nobody answers")
    for clock.now in range(0, 60, 6):
        cluster.examine()
    assert cluster.refused() == {}
    assert gauge("goood") == 0
    assert cluster.why_not() is not None


def test_topic_that_entries_wait_for_keeps_its_breaker(clock: Clock) -> None:
    """N10, N13: the alert stays while entries wait."""
    cluster = Cluster(cast(TopicDirectory, Directory()), clock)
    for clock.now in range(0, 300, 6):
        cluster.failed("sick", Refusal("not allowed"))
        cluster.want("source", [(0, "sick")])
        cluster.examine()
        assert cluster.refused().keys() == {"sick"}
    assert gauge("sick") == 1


def test_probe_that_ends_in_any_error_leaves_the_next_one_possible(clock: Clock) -> None:
    """N11: a breaker that stays half-open would hold up everything until the relay is restarted."""
    directory = Directory()
    cluster = Cluster(cast(TopicDirectory, directory), clock)
    cluster.lost("nobody answers")
    clock.now, directory.error = 10, OSError("the certificate cannot be read")
    with pytest.raises(OSError, match="certificate"):
        cluster.probe(1)
    assert cluster.why_not() is not None
    clock.now = 20
    assert cluster.probe(1)
    assert cluster.why_not() is None
