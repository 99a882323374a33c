"""The first available kind of server is taken, and the reasons against better ones are kept."""

from typing import NoReturn

import pytest

from ferryman.runtime.errors import Misconfigured
from ferryman.testing.parts import Climb, Given, NotHere, Rung, climb, given
from ferryman.testing.process import PartFailed


def missing(name: str, why: str) -> Rung:
    def take() -> NoReturn:
        raise NotHere(why)

    return Rung(name, take)


def holding(name: str) -> Rung:
    return Rung(name, lambda: Given(f"part of {name}"))


def broken(error: Exception) -> Rung:
    def take() -> NoReturn:
        raise error

    return Rung("broken", take)


def never() -> Rung:
    return broken(AssertionError("another way was tried after an available one"))


def test_first_available_way_is_taken() -> None:
    part, taken = climb("Kafka", [holding("Docker"), never()])
    assert part.url == "part of Docker"
    assert taken == Climb("Kafka", took="Docker", passed=())
    assert str(taken) == "Kafka: Docker"


def test_reasons_against_better_ways_are_kept_and_shown() -> None:
    part, taken = climb(
        "Kafka", [missing("Docker", "no engine answers"), missing("Java", "no Java"), holding("built-in"), never()]
    )
    assert part.url == "part of built-in"
    assert taken.passed == (("Docker", "no engine answers"), ("Java", "no Java"))
    assert str(taken) == "Kafka: built-in (Docker: no engine answers; Java: no Java)"


def test_error_names_every_reason_if_nothing_is_available() -> None:
    with pytest.raises(Misconfigured) as failed:
        climb("Kafka", [missing("Docker", "no engine answers"), missing("Java", "no Java")])
    assert str(failed.value) == (
        "no Kafka is available here: Docker: no engine answers; Java: no Java. Remedy: make one of these possible"
    )


@pytest.mark.parametrize("error", [PartFailed("it ended while starting"), OSError("disk full")])
def test_failed_start_is_an_error_and_no_other_way_is_tried(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)) as failed:
        climb("Kafka", [missing("Docker", "no engine answers"), broken(error), never()])
    assert failed.value is error


def test_given_url_is_returned_unchanged() -> None:
    assert given("localhost:9092", "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS").url == "localhost:9092"


@pytest.mark.parametrize("url", [None, ""])
def test_missing_url_is_reported_with_its_variable(url: str | None) -> None:
    with pytest.raises(NotHere, match=r"^FERRYMAN_KAFKA__BOOTSTRAP_SERVERS is not set$"):
        given(url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS")
