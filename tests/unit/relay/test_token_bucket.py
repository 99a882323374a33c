"""The bound of `per_second`, on a clock of the test."""

import pytest

from ferryman.relay.described.channel_way import TokenBucket


@pytest.mark.parametrize("per_second", [0.5, 1, 3, 49, 50, 333, 5000])
@pytest.mark.parametrize("pause", [0.0007, 0.013, 0.9])
def test_no_second_has_more_begins_than_the_bound_and_few_less(per_second: float, pause: float) -> None:
    """Also after a rest, when the bucket is full."""
    now = 100.0
    bucket = TokenBucket(per_second, lambda: now)
    began: list[float] = []
    for look in range(round(20 / pause)):
        now = 110.0 + look * pause
        count = bucket.tokens()
        bucket.take(count)
        began += [now] * count
    most = max(1, int(per_second))
    assert all(later - first > 1 - 1e-6 for first, later in zip(began, began[most:], strict=False))
    if pause < 0.001:
        assert len(began) >= 20 * per_second * 0.9
