"""Couriers without a database: the posts of their functions, and the room and the lease that follow from settings."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from ferryman import Courier, Post
from ferryman.relay.described.channel_way import ChannelWay
from ferryman.relay.described.couriers import courier
from ferryman.relay.described.hooks import Hooks
from ferryman.runtime.settings import Settings
from ferryman.services.runner.runner_settings import RunnerSettings, described
from support.turning import row

WORDS = {"pending": ["PENDING"], "claimed": "SENDING", "done": "SENT", "dead": "DEAD"}


def settings(name: str, outbox: Mapping[str, Any], **more: Any) -> Settings:
    return Settings.model_validate({"database_url": "postgresql://nowhere/x", "outbox": {name: outbox}, **more})


def hooks(**more: Any) -> dict[str, Any]:
    return {"table": "shop.hooks", "channel": "http", "words": WORDS, "unsigned": True, **more}


@pytest.mark.parametrize(("more", "room"), [({}, 20), ({"per_second": 1000}, 10)])
def test_no_row_waits_in_the_process_where_sends_a_second_are_bounded(more: dict[str, Any], room: int) -> None:
    """Else it would begin when a slot is free, whatever the rate."""
    way = cast(ChannelWay, courier("hooks", settings("hooks", hooks(slots=10, **more))).way)
    assert way.sending.room() == room


@pytest.mark.parametrize(("own", "sent"), [(None, "the-row"), ("its-own", "its-own")])
def test_post_has_its_own_id_or_that_of_its_row(own: str | None, sent: str) -> None:
    """N1: the receiver recognizes a duplicate by it."""
    mine = Courier("mine", outbox="hooks")

    @mine.prepare
    def posts(_: Any, rows: Sequence[Any]) -> list[Post]:
        return [Post(each.destination, each.content, own or "") for each in rows]

    outbox = settings("hooks", hooks()).outbox["hooks"]
    [post] = mine.hooks(Hooks(), "hooks", outbox).prepare(cast(Any, None), [row("the-row")])
    assert post.id == sent


@pytest.mark.parametrize(("timeout_seconds", "lease_seconds"), [(15, 60), (20, 60), (28, 84)])
def test_lease_of_an_event_covers_two_sends_to_the_runner_and_a_settle(
    timeout_seconds: float, lease_seconds: float
) -> None:
    """Else `ferryman run runner` is refused under a longer `http.timeout_seconds`."""
    runner = RunnerSettings.model_validate({"url": "http://runner", "secret": "s"})
    event_outbox = described(runner, timeout_seconds)
    assert event_outbox["lease"]["seconds"] == lease_seconds
    http, service = {"timeout_seconds": timeout_seconds}, {"drain_seconds": 60}
    courier("runner", settings("runner", {**event_outbox, "unsigned": True}, http=http, service=service))
