"""A breaker keeps a destination that is down from being asked, and finds its recovery with one probe at a time."""

from ferryman.runtime.backoff import Backoff
from ferryman.runtime.breaker import Breaker, State

PROBING = Backoff(base_seconds=1, cap_seconds=8)


def opened(now: float = 0.0) -> Breaker:
    return Breaker(threshold=1, probing=PROBING).failed(now, "down")


def test_it_stays_closed_below_the_threshold() -> None:
    breaker = Breaker(threshold=3).failed(0, "a").failed(1, "b")
    assert breaker.state is State.CLOSED
    assert breaker.allows(1)
    assert breaker.failed(2, "c").state is State.OPEN


def test_a_success_forgets_earlier_failures() -> None:
    assert Breaker(threshold=2).failed(0, "a").succeeded().failed(1, "b").state is State.CLOSED


def test_while_open_nothing_is_allowed_before_the_probe_is_due() -> None:
    breaker = opened()
    assert not breaker.allows(0.99)
    assert breaker.allows(1)


def test_only_one_probe_runs_at_a_time() -> None:
    probing = opened().started()
    assert probing.state is State.HALF_OPEN
    assert not probing.allows(100)


def test_a_failed_probe_waits_longer_each_time_up_to_the_cap() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(5):
        waits.append(breaker.probe_at - now)
        now = breaker.probe_at
        breaker = breaker.started().failed(now, "still down")
    assert waits == [1, 2, 4, 8, 8]


def test_a_good_probe_closes_it() -> None:
    breaker = opened().started().succeeded()
    assert breaker.state is State.CLOSED
    assert breaker.allows(0)
    assert breaker.outage_seconds(5) == 0


def test_the_outage_is_measured_from_its_beginning() -> None:
    breaker = opened(10).started().failed(20, "still down")
    assert breaker.outage_seconds(25) == 15
    assert breaker.reason == "still down"
