"""Routes: each requires one scope, and the pages of a list follow one another without gaps or repetition."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from fastapi import APIRouter, HTTPException
from hypothesis import given
from hypothesis import strategies as st

from ferryman.console.app import places_of
from ferryman.routes import Door, page, read_cursor


class Item(NamedTuple):
    """A row of a list."""

    at: datetime
    uuid: UUID


def no_database() -> Any:
    raise AssertionError("nothing is asked for here")


DOOR = Door(no_database)
ITEMS = [Item(datetime(2026, 5, 4, tzinfo=UTC) - timedelta(seconds=n // 2), UUID(int=9 - n)) for n in range(5)]


def answer() -> None:
    """Answer nothing."""


def router(*scopes: Sequence[str]) -> APIRouter:
    """Return a router with GET /toys once for each of these; a route requires all the scopes in its entry."""
    made = APIRouter()
    for each in scopes:
        made.get("/toys", dependencies=[DOOR.require(scope) for scope in each])(answer)
    return made


def test_each_method_of_a_path_has_the_scope_that_its_route_names() -> None:
    made = router(["toys:read"])
    made.post("/toys", dependencies=[DOOR.require("toys:write")])(answer)
    [place] = places_of([made])
    assert (place.template, place.scopes) == ("/toys", {"GET": "toys:read", "POST": "toys:write"})


@pytest.mark.parametrize(
    "routers",
    [[router([])], [router(["a", "b"])], [router(["a"], ["b"])], [router(["a"]), router(["b"])]],
    ids=["no scope", "two scopes", "one route twice", "two systems with one route"],
)
def test_a_route_without_one_scope_of_its_own_is_a_bug(routers: list[APIRouter]) -> None:
    with pytest.raises(TypeError, match="GET /toys"):
        list(places_of(routers))


def following(after: str | None, limit: int) -> tuple[Sequence[Item], str | None]:
    """Return a page as a service does: from the items behind the cursor, one more than the page has."""
    last = read_cursor(after)
    return page([each for each in ITEMS if last is None or each < last][: limit + 1], limit, lambda each: each)


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6])
def test_pages_give_every_item_once_even_if_times_are_equal(limit: int) -> None:
    seen, after = list[Item](), None
    for _ in range(-(-len(ITEMS) // limit)):
        rows, after = following(after, limit)
        seen += rows
    assert (seen, after) == (ITEMS, None)


@given(st.timedeltas(-timedelta(10**5), timedelta(10**5)), st.integers(-14, 14), st.uuids())
def test_a_cursor_is_read_as_it_was_written(since: timedelta, hours: int, uuid: UUID) -> None:
    at = datetime(2026, 5, 4, tzinfo=timezone(timedelta(hours=hours))) + since
    _, after = page([Item(at, uuid)] * 2, 1, lambda each: each)
    assert after is not None
    assert read_cursor(after) == (at, uuid)


def test_what_is_not_a_cursor_is_answered_400_and_names_the_parameter() -> None:
    for after in ("x", "W10", "WzEsMl0", "bnVsbA", "\xe4", "WyIyMDI2LTAxLTAxIiwieCJd"):
        with pytest.raises(HTTPException) as refused:
            read_cursor(after)
        assert refused.value.status_code == 400
        detail: Any = refused.value.detail
        assert [each["field"] for each in detail["errors"]] == ["after"]
