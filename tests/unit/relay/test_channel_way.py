"""A channel as a way out, without its event loop: what an outcome says about a provider that all mails share."""

import time
from dataclasses import dataclass
from typing import Any, cast

import pytest

from ferryman.channels.model import Mail, Post
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unavailable, Unknown
from ferryman.channels.sending import Finished, Item, Sending
from ferryman.relay.described.channel_way import ChannelWay, TokenBucket
from ferryman.relay.described.rows import Claimed
from ferryman.runtime.settings_outbox import Outbox
from unit.relay.test_described_outbox import AT, WORDS


@dataclass
class Clock:
    now: float = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


class AtOnce:
    """A `Sending` whose items end at once, as the test says."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.begun: list[Item] = []

    def open(self) -> None: ...

    def why_not(self) -> str | None:
        return None

    def room(self) -> int:
        return 64

    def busy(self) -> dict[str, int]:
        return {}

    def begin(self, items: list[Item]) -> None:
        self.begun += items

    def recall(self) -> list[Item]:
        items, self.begun = self.begun, []
        return items

    def ended(self, _seconds: float) -> list[Finished]:
        items, self.begun = self.begun, []
        return [Finished(item.key, self.outcome, 0.1, item.destination) for item in items]


def way(outcome: Outcome, channel: str = "email", **more: Any) -> ChannelWay:
    outbox = Outbox.model_validate({"table": "shop.mails", "words": WORDS, "channel": channel, **more})
    made = ChannelWay(outbox, cast(Sending, AtOnce(outcome)))
    assert made.why_not() is None
    return made


def row(identity: str = "1") -> Claimed:
    return Claimed(identity, "ann@example.com", "k", "", b"{}", None, None, 0, 1, AT, None, "NEW", False)


def send(made: ChannelWay, *ids: str) -> None:
    made.begin([row(identity) for identity in ids or ("1",)], [None] * len(ids or ("1",)))
    made.ended(0)


@pytest.mark.parametrize("outcome", [
    Delivered(), Retry("full"), Rejected("no"), Held("another mail", Code.KEY_TAKEN),
])  # fmt: skip
def test_provider_that_answers_is_not_away(outcome: Outcome) -> None:
    """N10: else each mail under a key that is taken would delay all others."""
    made = way(outcome)
    send(made)
    assert (made.why_not(), made.room().most) == (None, 64)


@pytest.mark.parametrize("outcome", [
    Unavailable("away"), Unknown("lost"), Held("lost", Code.CONNECTION_LOST),
])  # fmt: skip
def test_provider_that_fails_is_left_alone(outcome: Outcome) -> None:
    made = way(outcome)
    send(made)
    assert (made.why_not() is None, made.room().most) == (False, 0)


def test_outage_lasts_as_long_as_the_provider_asks(clock: Clock) -> None:
    made = way(Unavailable("later", after_seconds=60.0))
    send(made)
    clock.now = 159.0
    assert made.why_not() == "later"
    clock.now = 161.0
    assert made.why_not() is None


def test_sends_that_began_together_make_one_outage(clock: Clock) -> None:
    """Else a batch of failures would put the provider off for as long as many outages."""
    made = way(Unavailable("away"))
    send(made, *"123456789")
    clock.now = 100.6
    assert (made.why_not(), made.room().most) == (None, 1)


def test_each_look_whether_the_outage_is_over_takes_one_mail_more(clock: Clock) -> None:
    """N8: the oldest mail may be the reason. One that is held is not the oldest any more."""
    found = []
    for outcome in (Unavailable("away"), Held("lost", Code.CONNECTION_LOST)):
        made = way(outcome)
        for number in range(3):
            send(made, str(number))
            clock.now += 60
            assert made.why_not() is None
            found.append(made.room().most)
    assert found == [1, 2, 3, 1, 1, 1]


def test_mail_that_is_held_unasked_does_not_end_an_outage_nor_the_looks(clock: Clock) -> None:
    """N10: nobody was asked, so the next mail finds out."""
    made = way(Unavailable("away"))
    send(made)
    clock.now += 60
    cast(AtOnce, made.sending).outcome = Held("an earlier attempt", Code.NOT_LOOKED_UP)
    send(made)
    assert (made.why_not(), made.room().most) == (None, 1)


def test_outbox_is_asked_about_rows_under_way_even_in_an_outage() -> None:
    """Their ends are collected; no row is claimed."""
    made = way(Unavailable("away"))
    send(made, "1")
    made.begin([row("2")], [None])
    assert (made.why_not(), made.room().most) == (None, 0)
    assert made.room().begun == ["2"]


def test_rows_that_begin_take_from_the_bound() -> None:
    made = way(Delivered())
    made.bucket = TokenBucket(0.1)
    assert made.room().most == 1
    send(made)
    assert made.room().most == 0


def test_rows_that_end_a_moment_later_are_collected_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would be under way for ever."""
    made = way(Delivered())
    sending = cast(AtOnce, made.sending)
    made.begin([row("1"), row("2"), row("3")], [None] * 3)
    last, sending.begun = sending.begun[1:], sending.begun[:1]
    first = sending.ended(0)
    answers = [first, [Finished(item.key, Delivered(), 0.1) for item in last]]
    monkeypatch.setattr(sending, "ended", lambda _: answers.pop(0))
    assert [each.row.id for each in made.ended(0)] == ["1", "2", "3"]
    assert made.under_way == 0


def test_silent_destination_keeps_one_slot() -> None:
    made = way(Retry("nobody", Code.CONNECTION_TIMED_OUT), "http", slots_per_destination=3, unsigned=True)
    for number in range(3):
        assert made.room().busy == {}
        send(made, str(number))
    assert made.room().busy == {"ann@example.com": 2}


def test_content_of_a_mail_is_its_edition_and_that_of_a_post_its_body() -> None:
    made = way(Delivered())
    posts = [Post("http://a.example/", body) for body in (b"1", b"1", b"2")]
    made.begin([row(each) for each in "1234"], [Mail("a@b.c", "x", "y", edition="e"), *posts])
    mail, first, same, other = [each.content for each in made.ended(0)]
    assert (mail, first == same, first == other) == ("e", True, False)
