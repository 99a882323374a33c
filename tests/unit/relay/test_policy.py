"""The meaning of Kafka errors for an entry, and the state that follows."""

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.channels.outcome import Rejected, Retry, Unavailable, Unknown
from ferryman.relay.policy import (
    ExceptionState,
    Retries,
    Undelivered,
    Waits,
    after,
    is_consequence,
    judge,
)
from ferryman.runtime.backoff import Backoff

RETRIES = Retries(limit=3, backoff=Backoff(base_seconds=10, cap_seconds=15))


def test_entry_failing_for_its_own_reason_waits_longer_each_time_up_to_the_cap() -> None:
    assert after(Retry("no"), 0, RETRIES, dice=0) == ExceptionState("RETRYING", 1, 10, "no")
    assert after(Retry("no"), 1, RETRIES, dice=0) == ExceptionState("RETRYING", 2, 15, "no")


def test_last_attempt_that_the_limit_allows_fails_it() -> None:
    """N8."""
    assert after(Retry("no"), 2, RETRIES, dice=0) == ExceptionState("FAILED", 3, error="no")
    assert after(Retry("no"), 0, Retries(limit=1), dice=0) == ExceptionState("FAILED", 1, error="no")


def test_lowered_retry_limit_counts_at_once() -> None:
    assert after(Retry("no"), 7, RETRIES, dice=0) == ExceptionState("FAILED", 8, error="no")


def test_rejected_entry_is_failed_at_its_first_attempt() -> None:
    assert after(Rejected("too large"), 0, RETRIES, dice=0) == ExceptionState("FAILED", 1, error="too large")


@pytest.mark.parametrize("outcome", [Waits(), Unavailable("not there")])
def test_fault_of_the_topic_parks_the_entry_without_an_attempt(outcome: Undelivered) -> None:
    """N8."""
    assert after(outcome, 2, RETRIES, dice=0) == ExceptionState("PARKED", 2)


def test_unknown_outcome_changes_nothing() -> None:
    assert after(Unknown("silence"), 2, RETRIES, dice=0) is None


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True), st.integers(1, 1000))
def test_no_entry_is_tried_more_often_than_the_limit(attempts: int, dice: float, limit: int) -> None:
    """N8: an entry is FAILED exactly from the limit on."""
    standing = after(Retry("no"), attempts, Retries(limit), dice=dice)
    assert standing is not None
    assert (standing.status == "FAILED") == (attempts + 1 >= limit)
    assert standing.attempts == attempts + 1


@pytest.mark.parametrize(
    "code",
    [
        "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_AUTHORIZATION_FAILED",
        "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "LEADER_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR",
        "TOPIC_EXCEPTION", "POLICY_VIOLATION", "UNSUPPORTED_COMPRESSION_TYPE", "INVALID_TIMESTAMP",
    ],
)  # fmt: skip
def test_refusal_of_the_topic_is_not_a_failure_of_the_entry(code: str) -> None:
    assert judge(code, "no") == Unavailable(f"Kafka: no ({code})")


@pytest.mark.parametrize(
    "code", ["_PURGE_QUEUE", "_PURGE_INFLIGHT", "_GAPLESS_GUARANTEE", "_FATAL", "_MSG_TIMED_OUT", "_STATE"]
)
def test_consequence_of_another_entrys_error_is_unknown(code: str) -> None:
    assert is_consequence(code)
    assert isinstance(judge(code, "no"), Unknown)


@pytest.mark.parametrize("code", ["MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG"])
def test_error_that_kafka_never_accepts_is_rejected(code: str) -> None:
    assert isinstance(judge(code, "no"), Rejected)


@pytest.mark.parametrize(
    "code", ["REQUEST_TIMED_OUT", "OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN", "A_CODE_OF_A_NEWER_BROKER"]
)
def test_transient_error_is_retried(code: str) -> None:
    assert isinstance(judge(code, "no"), Retry)


@pytest.mark.parametrize(
    "code",
    [
        "_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_RESOLVE", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED",
        "_SSL", "CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION",
    ],
)  # fmt: skip
def test_absent_or_refusing_cluster_charges_no_attempt(code: str) -> None:
    """N8: every entry would meet the same."""
    assert isinstance(judge(code, "no"), Unknown)
    assert not is_consequence(code)


def test_every_kafka_code_named_is_one_of_the_library() -> None:
    from ferryman.relay import policy

    known = {
        confluent_kafka.KafkaError(value).name()
        for name, value in vars(confluent_kafka.KafkaError).items()
        if name.isupper() and isinstance(value, int)
    }
    assert (policy._OF_TOPIC | policy._CONSEQUENCES) - known == set()
    assert policy._OF_TOPIC.isdisjoint(policy._CONSEQUENCES)
