"""A chore that could not work says so before it connects."""

import math
import threading
from typing import Any

import pytest

from ferryman import Chore, Courier, Misconfigured
from ferryman.runtime.chore import ChoreService
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Settings


async def work(_: Any) -> None: ...


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", None, "x" * 101])
@pytest.mark.parametrize("kind", [Chore, lambda name: Courier(name, outbox="hooks")])
def test_odd_name_is_refused(kind: Any, name: Any) -> None:
    with pytest.raises(Misconfigured, match="is not a valid name for a"):
        kind(name)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, "60"])
def test_odd_interval_is_refused(seconds: Any) -> None:
    with pytest.raises(Misconfigured, match="every_seconds of the chore prune must be a number greater than 0"):
        Chore("prune", every_seconds=seconds)


@pytest.mark.parametrize("function", [None, "delete", work])
def test_work_that_is_not_a_function_is_refused(function: Any) -> None:
    """A coroutine would be true: it would be called again for ever, and do nothing."""
    with pytest.raises(Misconfigured, match="work of the chore prune"):
        Chore("prune").work(function)


def test_prepare_that_is_a_coroutine_is_refused() -> None:
    with pytest.raises(Misconfigured, match="prepare of the courier hooks was given an `async def`"):
        Courier("hooks", outbox="hooks").prepare(work)  # type: ignore[type-var]


def test_chore_without_work_ends_at_its_start() -> None:
    """It connects to no database: there is none."""
    with pytest.raises(Misconfigured, match="the chore prune has no work"):
        ChoreService(Chore("prune"), Settings()).run(Life("prune", threading.Event()))


def test_a_chore_measures_by_one_plain_function() -> None:
    chore = Chore("prune")
    chore.measured(lambda _db: {"left": 1})
    with pytest.raises(Misconfigured, match="two functions that measure"):
        chore.measured(lambda _db: {})

    async def later(_db: object) -> dict[str, float]:
        return {}

    with pytest.raises(Misconfigured):
        Chore("prune").measured(later)  # type: ignore[type-var]
