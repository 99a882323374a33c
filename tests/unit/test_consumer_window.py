"""How long a message may come again, against how long its receipt is kept."""

from typing import Any, cast

import pytest

from ferryman import Consumer, Misconfigured
from ferryman.consumer import window
from ferryman.consumer.window import too_short
from ferryman.runtime.settings import Settings

WEEK = str(7 * 86_400_000)
SETTINGS = Settings.model_validate({})


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({"retention.ms": WEEK, "segment.ms": WEEK}, None),
        ({"retention.ms": WEEK, "segment.ms": WEEK, "cleanup.policy": "compact,delete"}, None),
        ({"retention.ms": WEEK, "segment.ms": WEEK, "cleanup.policy": "compact"}, "keeps its messages for ever"),
        ({"retention.ms": "-1", "segment.ms": WEEK}, "keeps its messages for ever"),
        ({"retention.ms": str(60 * 86_400_000), "segment.ms": WEEK}, "may come again for"),
    ],
)
def test_what_may_come_again_after_it_is_forgotten_is_refused(configuration: dict[str, str], words: str | None) -> None:
    refused = too_short("t", configuration, SETTINGS)
    assert (words is None) == (refused is None)
    assert words is None or words in str(refused)


def test_it_is_looked_at_each_time_and_at_the_topics_of_what_is_requeued_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic's retention may be raised while its consumer runs."""
    fits = {"retention.ms": WEEK, "segment.ms": WEEK}
    told: dict[str, dict[str, str]] = {"t": fits}
    monkeypatch.setattr(window, "_configurations", lambda _settings, topics: {k: told[k] for k in topics if k in told})
    consumer = cast(Any, Consumer("c", ["t"]))
    assert window.check(SETTINGS, consumer)
    told["t.retry.c"] = {**fits, "retention.ms": "-1"}
    with pytest.raises(Misconfigured, match=r"t\.retry\.c keeps its messages for ever"):
        window.check(SETTINGS, consumer)
    told.clear()
    assert not window.check(SETTINGS, consumer)
