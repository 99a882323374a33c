"""Rows as mails, without a database: what is sent of a row, under which key, and whether it is in doubt."""

import json
import math
from collections.abc import Sequence
from typing import Any, cast

import pytest

from ferryman import Courier, Ended
from ferryman.channels.model import Doubt, Mail
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry
from ferryman.relay.described.couriers import outbox_of
from ferryman.relay.described.hooks import Hooks
from ferryman.relay.described.mails import key_of, mails, with_doubts
from ferryman.relay.described.rows import Claimed, settling
from ferryman.runtime.postgres import Connection
from unit.relay.test_described_outbox import AT

CONTENT = json.dumps({"subject": "Order 7", "text": "Dear Ann"}).encode()


OWN = "a hash of what it holds"
NOWHERE = cast(Connection, None)


def row(content: bytes = CONTENT, **more: Any) -> Claimed:
    claimed = Claimed("1", "ann@example.com", "k", "", content, None, None, 0, 1, AT, None, "NEW", lost=False)
    return claimed._replace(**{"edition": OWN, **more})


def made(claimed: Claimed) -> Mail:
    [item] = with_doubts([claimed], mails(NOWHERE, [claimed]))
    assert isinstance(item, Mail)
    return item


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, None),
        ({"doubt_seconds": 0.0}, Doubt(0.0)),
        ({"doubt_seconds": 90.0, "reference": "re-1"}, Doubt(90.0, "re-1")),
        ({"reference": "re-1"}, Doubt(math.inf, "re-1")),
        ({"reference": ""}, None),
    ],
)
def test_mail_is_as_old_as_its_oldest_doubt(known: Any, expected: Doubt | None) -> None:
    """N3."""
    assert made(row(**known)).doubt == expected


def test_key_is_that_of_the_row_and_of_what_it_holds() -> None:
    claimed = row()
    assert (made(claimed).edition, made(claimed).key) == (OWN, key_of(claimed))
    others = [row(key="other"), row(key=""), row(key="", id="2"), row(edition="another")]
    assert len({key_of(each) for each in [claimed, *others]}) == 5, "the id stands in for a key"
    assert key_of(claimed) == key_of(row(id="2", attempts=2, lost=True, doubt_seconds=1.0))


@pytest.mark.parametrize(
    ("payload", "text"),
    [({"text": "new", "body": "old"}, "new"), ({"body": "old"}, "old"), ({"text": "", "body": "old"}, "")],
)
def test_text_of_a_mail_goes_before_its_body(payload: dict[str, str], text: str) -> None:
    [item] = mails(NOWHERE, [row(json.dumps({"subject": "x", **payload}).encode())])
    assert isinstance(item, Mail)
    assert item.text == text


@pytest.mark.parametrize("content", [
    b"", b"[]", b"7", b"{}", b'{"subject": "x"}', b'{"subject": 7, "text": "y"}', b'{"subject": "x", "text": null}',
    b'{"subject": "x", "text": "y", "html": 7}', b"[" * 100_000, b'{"subject": ' + b"7" * 5000 + b"}",
])  # fmt: skip
def test_payload_that_is_no_mail_is_rejected(content: bytes) -> None:
    [item] = mails(NOWHERE, [row(content)])
    assert isinstance(item, Rejected)


@pytest.mark.parametrize(
    ("outcome", "doubt_seconds", "permanent"),
    [
        (Rejected("no such mailbox", Code.RECIPIENT_REFUSED), None, True),
        (Rejected("no such mailbox", Code.RECIPIENT_REFUSED), 90.0, False),
        (Held("nobody can tell", Code.NOT_LOOKED_UP), 90.0, False),
        (Retry("later", Code.ANSWER_RETRY), None, False),
        (Delivered("m-1"), None, False),
    ],
)
def test_courier_is_told_which_failure_is_permanent(
    outcome: Outcome, doubt_seconds: float | None, permanent: bool
) -> None:
    """A mail that may have arrived, or that failed too often, is not refused for good."""
    words = {"pending": ["NEW"], "claimed": "SENDING", "done": "SENT", "dead": "DEAD"}
    described = {"table": "shop.mails", "channel": "email", "words": words, "retry": {"limit": 1}}
    own, told = Courier("mails", outbox=described), list[Ended]()

    @own.settled
    def note(_: object, ended: Sequence[Ended]) -> None:
        told.extend(ended)

    outbox = outbox_of(own)
    hooks = own.hooks(Hooks(), "mails", outbox)
    assert hooks.settled is not None
    hooks.settled(NOWHERE, [settling(outbox, row(doubt_seconds=doubt_seconds), outcome)._replace(outcome=outcome)])
    assert [each.permanent for each in told] == [permanent]
