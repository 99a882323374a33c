"""The check that receipts are kept for longer than their messages can come again."""

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from ferryman import Consumer, Misconfigured
from ferryman.consumer import metrics
from ferryman.consumer.kafka import consumer_topics
from ferryman.consumer.kafka.consumer_topics import check_dedupe_window, window_problem
from ferryman.consumer.service import Housekeeping
from ferryman.runtime import kafka
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
def test_retention_that_is_longer_than_the_receipts_is_refused(
    configuration: dict[str, str], words: str | None
) -> None:
    refused = window_problem("t", configuration, SETTINGS)
    assert (words is None) == (refused is None)
    assert words is None or words in str(refused)


def test_retention_that_is_raised_under_a_running_consumer_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """N11: it is not ready, an alert fires, and the danger is days away; but it would not start like that."""
    told = {"t": {"retention.ms": WEEK, "segment.ms": WEEK}}
    monkeypatch.setattr(consumer_topics, "_topic_settings", lambda _settings, _topics: told)
    none = cast(Any, None)

    def starting() -> Housekeeping:
        return Housekeeping(Consumer("raised", ["t"]), SETTINGS, none, none)

    running = starting()
    assert running._check_window()
    told["t"] = {**told["t"], "retention.ms": str(60 * 86_400_000)}
    with capture_logs() as logs:
        assert running._check_window()
        assert running._check_window()
    assert [each["event"] for each in logs] == ["the dedupe window is too short"]
    assert "retention.ms 5,184,000 s" in str(running.window_problem)
    assert cast(Any, metrics.WINDOW_SHORT.labels("raised"))._value.get() == 1
    with pytest.raises(Misconfigured, match="may come again for"):
        starting()._check_window()
    told["t"] = {**told["t"], "retention.ms": WEEK}
    assert running._check_window()
    assert running.window_problem is None


@pytest.mark.parametrize(
    ("code", "checked"),
    [(KafkaError.UNKNOWN_TOPIC_OR_PART, True), (KafkaError.TOPIC_AUTHORIZATION_FAILED, False)],
)
def test_a_topic_that_does_not_exist_yet_has_no_window_to_check(
    monkeypatch: pytest.MonkeyPatch, code: int, checked: bool
) -> None:
    """The log said that the process may not describe it."""
    refused = {"t": KafkaException(KafkaError(code))}
    monkeypatch.setattr(kafka, "admin", lambda *_: None)
    monkeypatch.setattr(kafka, "topic_settings", lambda *_: ({}, refused))
    assert check_dedupe_window(SETTINGS, cast(Any, Consumer("c", ["t"]))) is checked


def test_each_check_asks_again_about_the_topics_and_their_retry_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic's retention may be raised while its consumer runs."""
    fits = {"retention.ms": WEEK, "segment.ms": WEEK}
    told: dict[str, dict[str, str]] = {"t": fits}
    monkeypatch.setattr(consumer_topics, "_topic_settings", lambda _, topics: {k: told[k] for k in topics if k in told})
    consumer = cast(Any, Consumer("c", ["t"]))
    assert check_dedupe_window(SETTINGS, consumer)
    told["t.retry.c"] = {**fits, "retention.ms": "-1"}
    with pytest.raises(Misconfigured, match=r"t\.retry\.c keeps its messages for ever"):
        check_dedupe_window(SETTINGS, consumer)
    told.clear()
    assert not check_dedupe_window(SETTINGS, consumer)
