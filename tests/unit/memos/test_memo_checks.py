"""A memo whose mail could not be sent is refused at its writer, who is told which field is wrong."""

from dataclasses import replace
from typing import Any

import pytest

from ferryman.services.memos.memos import InvalidMemo, MemoInput, check

MEMO = MemoInput("HR", "people", "Party", "ann@example.com", "You are invited.", "Fun")

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"recipient": "a" * 244 + "@example.com"}, "recipient"),
    ({"recipient": "ann@example.com, bob@example.com"}, "recipient"),
    ({"recipient": "ann@example.com;bob@example.com"}, "recipient"),
    ({"recipient": "ann@example.com\r\nBcc: bob@example.com"}, "recipient"),
    ({"recipient": "ann\n@example.com"}, "recipient"),
    ({"recipient": "ann\0@example.com"}, "recipient"),
    ({"recipient": "ann.example.com"}, "recipient"),
    ({"recipient": ""}, "recipient"),
    ({"title": "Party\r\nBcc: bob@example.com"}, "title"),
    ({"title": "Party\nnow"}, "title"),
    ({"title": ""}, "title"),
    ({"title": "x" * 501}, "title"),
    ({"number_prefix": "x" * 51}, "number_prefix"),
    ({"number_prefix": "H\0R"}, "number_prefix"),
    ({"department_code": "x" * 51}, "department_code"),
    ({"purpose": "\0"}, "purpose"),
    ({"purpose": "\udfff"}, "purpose"),
    ({"number_prefix": "\ud800"}, "number_prefix"),
    ({"title": "Party \udfff"}, "title"),
    ({"email_body": "a\0b"}, "email_body"),
    ({"email_html": "a\0b"}, "email_html"),
    ({"email_html": "\ud800"}, "email_html"),
    ({"email_body": "\ud800"}, "email_body"),
    ({"email_body": "x" * (1 << 20)}, "email_body"),
    ({"email_body": "x", "email_html": "x" * (1 << 20)}, "email_body"),
]


@pytest.mark.parametrize(("changed", "field"), WRONG)
def test_memo_whose_mail_could_not_be_sent_is_refused(changed: dict[str, Any], field: str) -> None:
    """N14: the error names the field, and shows no address."""
    with pytest.raises(InvalidMemo) as refused:
        check(replace(MEMO, **changed))
    assert (refused.value.field, "bob@" in str(refused.value)) == (field, False)


def test_memo_is_refused_above_the_size_that_is_set() -> None:
    check(replace(MEMO, email_body="x" * 900), 1024)
    with pytest.raises(InvalidMemo, match=r"email\.max_bytes"):
        check(replace(MEMO, email_body="x" * 1100), 1024)


@pytest.mark.parametrize("recipient", ["ann+memos@example.com", "ann@münchen.example"])
def test_memo_with_an_address_that_can_be_sent_to_is_taken(recipient: str) -> None:
    check(replace(MEMO, recipient=recipient))
