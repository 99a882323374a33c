"""Rows as mails, without a database: what is sent of a row, under which key, and whether it is in doubt."""

import json
import math
from typing import Any, cast

import pytest

from ferryman.channels.model import Doubt, Mail
from ferryman.channels.outcome import Rejected
from ferryman.relay.described.mails import edition_of, key_of, mails, tried_before, with_doubts
from ferryman.relay.described.rows import Claimed
from ferryman.runtime.postgres import Connection
from unit.relay.test_described_outbox import AT

CONTENT = json.dumps({"subject": "Order 7", "text": "Dear Ann"}).encode()


class Log:
    """A connection whose attempt log answers as it is told."""

    def __init__(self, *found: tuple[str, str | None, float]) -> None:
        self.found = list(found)

    def execute(self, _statement: str, _values: object) -> "Log":
        return self

    def fetchall(self) -> list[tuple[str, str | None, float]]:
        return self.found


def row(content: bytes = CONTENT, to: str = "ann@example.com", key: str = "k", **more: Any) -> Claimed:
    given = {"lost": False, "tried": True} | more
    lost = given.pop("lost")
    return Claimed("1", to, key, "", content, None, None, 0, 1, AT, None, "NEW", lost)._replace(**given)


def doubt(claimed: Claimed, *found: tuple[str, str | None, float]) -> Doubt | None:
    db = cast(Connection, Log(*found))
    [item] = with_doubts(db, "mails", [claimed], mails(db, [claimed]))
    assert isinstance(item, Mail)
    assert (item.edition, item.key) == (edition_of(claimed), key_of(claimed, edition_of(claimed)))
    return item.doubt


OWN = edition_of(row())


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], None),
        ([("1", OWN, 5.0)], Doubt(5.0)),
        ([("1", None, 5.0)], Doubt(5.0)),
        ([("1", OWN, 5.0), ("1", None, 90.0)], Doubt(90.0)),
        ([("1", OWN, 90.0), ("1", None, 5.0)], Doubt(90.0)),
        ([("1", "another edition", 5.0)], None),
        ([("2", OWN, 5.0)], None),
    ],
)
def test_mail_is_as_old_as_its_oldest_doubt(found: Any, expected: Doubt | None) -> None:
    """N3: an attempt that was lost counts for every edition."""
    assert doubt(row(), *found) == expected


@pytest.mark.parametrize("unsettled", [{"lost": True}, {"set_back": True}])
def test_mail_of_an_unsettled_attempt_is_in_doubt_whatever_the_log_says(unsettled: Any) -> None:
    """N3."""
    claimed = row(tried=False, **unsettled)
    assert tried_before([claimed]) == ["1"]
    assert doubt(claimed) == Doubt(math.inf)
    assert doubt(claimed, ("1", None, 5.0)) == Doubt(5.0)


def test_mail_with_a_reference_is_in_doubt_without_a_log() -> None:
    assert doubt(row(tried=False, reference="re-1")) == Doubt(math.inf, "re-1")


def test_key_is_that_of_the_row_and_of_what_it_holds() -> None:
    claimed = row()
    others = [row(key="other"), row(key=""), row(to="ben@example.com"), row(content=b"{}")]
    keys = {key_of(each, edition_of(each)) for each in [claimed, *others]}
    assert len(keys) == 5
    assert key_of(row(key=""), OWN) != key_of(row(key="")._replace(id="2"), OWN), "the id stands in for a key"


@pytest.mark.parametrize(
    ("payload", "text"),
    [({"text": "new", "body": "old"}, "new"), ({"body": "old"}, "old"), ({"text": "", "body": "old"}, "")],
)
def test_text_of_a_mail_goes_before_its_body(payload: dict[str, str], text: str) -> None:
    [item] = mails(cast(Connection, Log()), [row(json.dumps({"subject": "x", **payload}).encode())])
    assert isinstance(item, Mail)
    assert item.text == text


@pytest.mark.parametrize("content", [
    b"", b"[]", b"7", b"{}", b'{"subject": "x"}', b'{"subject": 7, "text": "y"}', b'{"subject": "x", "text": null}',
    b'{"subject": "x", "text": "y", "html": 7}', b"[" * 100_000, b'{"subject": ' + b"7" * 5000 + b"}",
])  # fmt: skip
def test_payload_that_is_no_mail_is_rejected(content: bytes) -> None:
    [item] = mails(cast(Connection, Log()), [row(content)])
    assert isinstance(item, Rejected)
