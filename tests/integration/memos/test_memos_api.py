"""The routes of memos: what is refused, and what an answer says."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Database, Settings, Token
from ferryman.runtime.settings_email import Email
from support.asking import Client, running, settings, sha256, until

BODY = {
    "number_prefix": "HR", "department_code": "people", "title": "Party", "recipient": "ann@example.com",
    "email_body": "You are invited.",
}  # fmt: skip


def api(url: str, **more: Any) -> Settings:
    scopes = {"clerk": ["memos:write", "memos:read"], "writer": ["memos:write"], "reader": ["memos:read"]}
    tokens = {name: Token(sha256=sha256(name), scopes=given) for name, given in scopes.items()}
    return settings(url, api={"tokens": tokens}, email=Email(max_bytes=2048), **more)


@contextmanager
def answering(found: Settings) -> Iterator[Client]:
    with running(found) as made:
        until(lambda: made.life.why_not_ready is None)
        yield made.client


@pytest.fixture
def client(ferryman_database_url: str) -> Iterator[Client]:
    with answering(api(ferryman_database_url)) as made:
        yield made


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


def test_memo_is_shown_with_what_became_of_its_mail(client: Client, ferryman_db: Connection) -> None:
    body = BODY | {"id": "6d0f6a34-29a8-4bb5-8d1b-0f0f4a6f5e11", "purpose": "Fun"}
    made = client.ask("POST", "/memos", body, by="writer")
    place = made.headers["Location"]
    assert place == f"/memos/{body['id']}"
    assert client.ask("POST", "/memos", body, by="writer").headers["Location"] is None
    assert client.ask("GET", place, by="reader").json == made.json
    ferryman_db.execute(
        "UPDATE memos.email_outbox SET status = 'FAILED', retry_count = 5, error_message = '550',"
        " sent_at = '2026-01-02Z'"
    )
    shown = client.ask("GET", place, by="reader").json
    mail = {"status": "FAILED", "retry_count": 5, "error": "550", "sent_at": "2026-01-02T00:00:00Z"}
    assert shown == {**made.json, "mail": {**made.json["mail"], **mail}}
    assert [shown[name] for name in ("title", "department_code", "purpose")] == ["Party", "people", "Fun"]


def test_memo_is_recorded_in_a_serializable_transaction(client: Client, ferryman_db: Connection) -> None:
    check = "CHECK (current_setting('transaction_isolation') = 'serializable')"
    ferryman_db.execute(f"ALTER TABLE memos.memos ADD CONSTRAINT isolated {check}".encode())
    assert client.ask("POST", "/memos", BODY, by="clerk").status == 201


def test_request_that_waited_for_a_lock_is_not_told_that_the_database_is_away(
    ferryman_database_url: str, ferryman_db: Connection
) -> None:
    impatient = api(ferryman_database_url, database=Database(lock_timeout_seconds=0.5))
    with answering(impatient) as client, ferryman_db.transaction():
        ferryman_db.execute("LOCK TABLE memos.memos")
        answer = client.ask("POST", "/memos", BODY, by="clerk")
    assert (answer.status, "busy" in answer.json["detail"]) == (503, True)


def test_memo_needs_its_scopes_and_must_exist(client: Client) -> None:
    nobodys = f"/memos/{uuid4()}"
    found = [
        client.ask(method, path, BODY if method == "POST" else None, by=who).status
        for who in ("writer", "reader") for method, path in (("POST", "/memos"), ("GET", nobodys))
    ]  # fmt: skip
    assert found == [201, 403, 403, 404]


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


@pytest.mark.parametrize("named", [True, False])
def test_many_memos_at_once_are_all_recorded(client: Client, ferryman_db: Connection, named: bool) -> None:
    """In a small table SERIALIZABLE finds conflicts between memos that have nothing to do with each other."""

    def record(number: int) -> int:
        body = BODY | {"title": f"No. {number}"} | ({"id": str(uuid4())} if named else {})
        return client.ask("POST", "/memos", body, by="clerk").status

    with ThreadPoolExecutor(32) as clients:
        assert set(clients.map(record, range(200))) == {201}
    assert ferryman_db.execute("SELECT count(*) FROM memos.email_outbox").fetchone() == (200,)


def test_request_that_many_send_at_once_is_recorded_once(client: Client, ferryman_db: Connection) -> None:
    body = BODY | {"id": "6d0f6a34-29a8-4bb5-8d1b-0f0f4a6f5e11"}
    with ThreadPoolExecutor(16) as clients:
        found = sorted(clients.map(lambda _: client.ask("POST", "/memos", body, by="clerk").status, range(32)))
    assert found == [200] * 31 + [201]
    assert ferryman_db.execute("SELECT count(*) FROM memos.email_outbox").fetchone() == (1,)
