"""A breaker keeps a destination that is down from being asked, and finds its recovery with one probe at a time."""

from ferryman.runtime.backoff import Backoff
from ferryman.runtime.breaker import Breaker, BreakerState

PROBING = Backoff(base_seconds=1, cap_seconds=8)


def opened(now: float = 0.0) -> Breaker:
    return Breaker(probing=PROBING).failed(now, "down")


def test_while_open_nothing_is_allowed_before_the_probe_is_due() -> None:
    breaker = opened()
    assert not breaker.allows(0.99)
    assert breaker.allows(1)


def test_only_one_probe_runs_at_a_time() -> None:
    probing = opened().started()
    assert probing.state is BreakerState.HALF_OPEN
    assert not probing.allows(100)


def test_a_failed_probe_waits_longer_each_time_up_to_the_cap() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(5):
        waits.append(breaker.probe_at - now)
        now = breaker.probe_at
        breaker = breaker.started().failed(now, "still down")
    assert waits == [1, 2, 4, 8, 8]


def test_a_new_breaker_is_closed() -> None:
    breaker = Breaker()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allows(0)
    assert breaker.outage_seconds(5) == 0


def test_the_outage_is_measured_from_its_beginning() -> None:
    breaker = opened(10).started().failed(20, "still down")
    assert breaker.outage_seconds(25) == 15
    assert breaker.reason == "still down"
