"""The routes of memos: what is refused, and what an answer says."""

from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Token
from ferryman.runtime.settings_email import Email
from support.asking import Client, running, settings, sha256, until

BODY = {
    "number_prefix": "HR", "department_code": "people", "title": "Party", "recipient": "ann@example.com",
    "email_body": "You are invited.",
}  # fmt: skip


@pytest.fixture
def client(ferryman_database_url: str) -> Iterator[Client]:
    tokens = {"clerk": Token(sha256=sha256("clerk"), scopes=["memos:write", "memos:read"])}
    found = settings(ferryman_database_url, api={"tokens": tokens}, email=Email(max_bytes=2048))
    with running(found) as made:
        until(lambda: made.life.why_not_ready is None)
        yield made.client


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"recipient": "a" * 244 + "@example.com"}, "recipient"),
        ({"recipient": "ann@example.com, bob@example.com"}, "recipient"),
        ({"recipient": "ann@example.com\r\nBcc: bob@example.com"}, "recipient"),
        ({"recipient": "ann\0@example.com"}, "recipient"),
        ({"recipient": "ann.example.com"}, "recipient"),
        ({"title": "Party\r\nBcc: bob@example.com"}, "title"),
        ({"title": None}, "title"),
        ({"email_body": "x" * 2100}, "email_body"),
        ({"email_html": "a\0b"}, "email_html"),
        ({"email_html": "half \ud800"}, "email_html"),
        ({"purpose": "half \udfff"}, "purpose"),
    ],
)
def test_memo_whose_mail_could_not_be_sent_is_answered_422(
    client: Client, ferryman_db: Connection, wrong: dict[str, Any], field: str
) -> None:
    """N14: the answer names the field, shows no address, and nothing is recorded."""
    answer = client.ask("POST", "/memos", BODY | wrong, by="clerk")
    assert (answer.status, answer.headers["Content-Type"]) == (422, "application/problem+json")
    assert list(answer.wrong) == [field]
    assert not answer.wrong[field].startswith("Value error")
    assert b"bob@" not in answer.body
    assert ferryman_db.execute("SELECT count(*) FROM memos.memos").fetchone() == (0,)


def test_memo_with_a_long_address_is_recorded(client: Client) -> None:
    longest = f"{'a' * 64}@{'.'.join(['d' * 46] * 4)}.x"
    answer = client.ask("POST", "/memos", BODY | {"recipient": longest}, by="clerk")
    assert (answer.status, answer.json["mail"]["status"]) == (201, "PENDING")


def test_body_of_any_size_is_answered_413(client: Client) -> None:
    """A client that sends all before it reads gets the answer, and no reset."""
    answer = client.ask("POST", "/memos", BODY | {"email_body": "x" * 40_000_000}, by="clerk")
    assert (answer.status, answer.headers["Content-Type"]) == (413, "application/problem+json")


@pytest.mark.parametrize(
    "correction",
    [
        "UPDATE memos.email_outbox SET recipient_email = 'bob@example.com', payload = '{}'",
        "UPDATE memos.memos SET title = 'Summer party'",
        "DELETE FROM memos.email_outbox",
    ],
)
def test_request_is_repeated_with_what_its_client_said_at_first(
    client: Client, ferryman_db: Connection, correction: str
) -> None:
    """An operator may correct a memo or its mail meanwhile; another body is refused, also once the mail has left."""
    body = BODY | {"id": "6d0f6a34-29a8-4bb5-8d1b-0f0f4a6f5e11"}
    assert client.ask("POST", "/memos", body, by="clerk").status == 201
    ferryman_db.execute(correction.encode())
    assert client.ask("POST", "/memos", body, by="clerk").status == 200
    for other in ({"recipient": "bob@example.com"}, {"email_body": "Else."}, {"title": "Summer party"}):
        assert client.ask("POST", "/memos", body | other, by="clerk").status == 409
    assert ferryman_db.execute("SELECT count(*) FROM memos.memos").fetchone() == (1,)
