"""The rules of a saga: what becomes of it at an event, by where it leads or by a function that decides."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction, signature
from typing import Any, TypeVar

from ferryman.saga.answers import KEEP, Answer, Go, Unsaid
from ferryman.saga.machine import State

RuleT = TypeVar("RuleT", bound=Callable[..., Answer])

TIMEOUT = "timeout"
"""The event that drawings show for a saga that goes `then`."""


@dataclass(slots=True)
class Rule:
    """The fate of a saga at an event: it goes to the only state, or where its function says."""

    event: str
    to: tuple[str, ...]
    reason: str | Unsaid | None
    answer: Callable[..., Answer] | None = None
    _only: Go | None = field(init=False)

    def __post_init__(self) -> None:
        self._only = Go(self.to[0], reason=self.reason) if self.to else None

    def decide(self, saga: Any, *result: Any) -> Answer:
        if self.answer is None:
            return self._only
        answer = self.answer(saga, *result)
        return None if answer is None else self._checked([answer] if isinstance(answer, Go) else answer, saga.state)

    def _checked(self, steps: Any, state: str) -> Sequence[Go]:
        """Refuse a first step to a state that the rule did not name, and give the steps the rule's reason."""
        if not isinstance(steps, Sequence) or [each for each in steps if not isinstance(each, Go)]:
            what = f"the rule for {self.event} in {state} returned {steps!r:.100}"
            raise TypeError(f"{what}: return Go, a list of Go, or None")
        if steps and steps[0].state not in (*self.to, state):
            raise ValueError(
                f"the rule for {self.event} in {state} leads to {steps[0].state}, which its `to` does not name"
            )
        return steps if self.reason is KEEP else [each.because(self.reason) for each in steps]


def ways(states: Mapping[str, State], rules: Iterable[tuple[str, Rule]]) -> dict[tuple[str, str], list[str]]:
    """Return every way from a state to another, with the events that lead there."""
    events: dict[tuple[str, str], list[str]] = {}
    for state, rule in rules:
        for to in rule.to:
            if to != state:
                events.setdefault((state, to), []).append(rule.event)
    for state, each in states.items():
        if each.then:
            events.setdefault((state, each.then), []).append(TIMEOUT)
        for to in each.to:
            events.setdefault((state, to), [])
    return events


def misfit(function: Callable[..., Any], given: Sequence[str]) -> str | None:
    """Return why a function cannot be called with these arguments, or None if it can, or if nobody can tell."""
    named = f"`{getattr(function, '__name__', function)}`"
    if iscoroutinefunction(function):
        return f"{named} is asynchronous"
    try:
        signature(function).bind(*given)
    except TypeError as error:
        return f"{named} is not a function of ({', '.join(given)}): {error}"
    except ValueError:  # a function in C that does not tell
        return None
    return None
