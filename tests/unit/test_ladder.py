"""A part is had from the first rung that holds, and why the ones above did not is never lost."""

from typing import NoReturn

import pytest

from ferryman.runtime.errors import Misconfigured
from ferryman.testing.ladder import Climb, NotHere, PartFailed, Rung, climb, given


def missing(name: str, why: str) -> Rung[str]:
    def take() -> NoReturn:
        raise NotHere(why)

    return Rung(name, take)


def holding(name: str) -> Rung[str]:
    return Rung(name, lambda: f"part of {name}")


def broken(error: Exception) -> Rung[str]:
    def take() -> NoReturn:
        raise error

    return Rung("broken", take)


def never() -> Rung[str]:
    return broken(AssertionError("a rung was tried after one that held"))


def test_the_first_rung_that_holds_is_taken() -> None:
    part, taken = climb("Kafka", [holding("Docker"), never()])
    assert part == "part of Docker"
    assert taken == Climb("Kafka", took="Docker", passed=())
    assert str(taken) == "Kafka: Docker"


def test_why_the_rungs_above_did_not_hold_is_remembered_and_shown() -> None:
    part, taken = climb(
        "Kafka", [missing("Docker", "no engine answers"), missing("Java", "no Java"), holding("built-in"), never()]
    )
    assert part == "part of built-in"
    assert taken.passed == (("Docker", "no engine answers"), ("Java", "no Java"))
    assert str(taken) == "Kafka: built-in (Docker: no engine answers; Java: no Java)"


def test_when_nothing_holds_the_error_names_every_reason_and_a_remedy() -> None:
    with pytest.raises(Misconfigured) as failed:
        climb("Kafka", [missing("Docker", "no engine answers"), missing("Java", "no Java")])
    assert str(failed.value) == (
        "no Kafka is to be had here: Docker: no engine answers; Java: no Java. Remedy: make one of these possible"
    )


@pytest.mark.parametrize("error", [PartFailed("it ended while starting"), OSError("disk full")])
def test_a_rung_that_fails_to_start_is_an_error_and_not_passed_over(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)) as failed:
        climb("Kafka", [missing("Docker", "no engine answers"), broken(error), never()])
    assert failed.value is error


def test_a_given_url_is_taken_as_it_is() -> None:
    assert given("localhost:9092", "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS") == "localhost:9092"


@pytest.mark.parametrize("url", [None, ""])
def test_without_a_url_the_rung_does_not_hold_and_names_the_variable(url: str | None) -> None:
    with pytest.raises(NotHere, match=r"^FERRYMAN_KAFKA__BOOTSTRAP_SERVERS is not set$"):
        given(url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS")
