"""The routes of reviews: the answers that the document asks for, and bad input."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest

from ferryman import use_schemas
from ferryman.runtime.settings import Token
from ferryman.schemas import active
from support.asking import Answer, Client, running, settings, sha256, until
from support.reviewing import WORDS, Database, ReviewsDesk, not_notified, notified

ADA, BEN = "ada@example.com", "ben@example.com"
SCOPES = ["reviews:write", "reviews:read", "reviews:operate"]


@pytest.fixture
def client(ferryman_database_url: str) -> Iterator[Client]:
    use_schemas()
    tokens = {"bot": Token(sha256=sha256("bot"), scopes=SCOPES),
              "reader": Token(sha256=sha256("reader"), scopes=["reviews:read"])}  # fmt: skip
    with running(settings(ferryman_database_url, api={"tokens": tokens, "max_body_bytes": 1 << 20})) as made:
        until(lambda: made.life.why_not_ready is None)
        yield made.client
    active.forget()


def create(client: Client, *recipients: str, by: str = "bot", **more: Any) -> Answer:
    body = {"idempotency_key": "k-1", "changelist_id": "CL-1", "review_version": 3,
            "recipients": recipients or [ADA, BEN], **WORDS}  # fmt: skip
    return client.ask("POST", "/review-jobs", body | more, by=by)


def patch(client: Client, job: str, recipient: str, **body: Any) -> Answer:
    return client.ask("PATCH", f"/review-jobs/{job}/recipients/{quote(recipient)}", body, by="bot")


def test_a_request_is_answered_as_the_table_of_the_docs_says(client: Client) -> None:
    first = create(client)
    assert (first.status, first.json["status"], first.json["recipients"]["waiting"]) == (201, "in_progress", 2)
    assert first.headers["Location"] == f"/review-jobs/{first.json['id']}"
    for status, more in (
        (200, {}),
        (409, {"body": "Other"}),
        (200, {"idempotency_key": "k-2", "body": "Other"}),
        (409, {"idempotency_key": "k-2", "review_version": 2}),
        (409, {"idempotency_key": "k-2", "review_version": 4}),
        (201, {"idempotency_key": "k-2", "review_version": 4, "rerun": True}),
    ):
        answer = create(client, **more)
        assert (more, answer.status) == (more, status)
        if status == 200:
            assert answer.json == first.json
    listed = client.ask("GET", "/review-jobs?changelist_id=CL-1", by="reader").json["jobs"]
    assert [each["review_version"] for each in listed] == [4, 3]
    assert listed[0]["rerun_of"] == first.json["id"]


def test_a_job_is_looked_at_with_its_recipients_in_pages(client: Client, ferryman_db: Database) -> None:
    job = create(client, ADA, BEN, "cat@example.com", changelist_id="CL-4711").json["id"]
    ReviewsDesk(ferryman_db).apply(notified(UUID(job), BEN))
    assert client.ask("GET", f"/review-jobs/{job}", by="reader").json["recipients"]["notified"] == 1
    told = client.ask("GET", f"/review-jobs/{job}/recipients?status=notified", by="reader").json["recipients"]
    assert [(each["recipient"], each["notification_id"]) for each in told] == [(BEN, f"m-{BEN}")]
    seen, after = [], ""
    while after is not None:
        page = client.ask("GET", f"/review-jobs/{job}/recipients?limit=2&after={quote(after)}", by="reader").json
        seen += [each["recipient"] for each in page["recipients"]]
        after = page["next"]
    assert seen == [ADA, BEN, "cat@example.com"]


def test_a_failed_recipient_is_mended_and_a_job_given_up(client: Client, ferryman_db: Database) -> None:
    job = create(client, ADA, changelist_id="CL-4711").json["id"]
    desk = ReviewsDesk(ferryman_db)
    desk.apply(not_notified(UUID(job), ADA))
    assert client.ask("GET", f"/review-jobs/{job}", by="reader").json["status"] == "retryable_failed"
    assert patch(client, job, ADA, act="again", body="Other").json["status"] == "in_progress"
    assert patch(client, job, ADA, act="drop").status == 409
    answer = patch(client, job, ADA, act="replace", by=BEN)
    assert answer.json["recipients"] == {"waiting": 1, "notified": 0, "failed": 0, "withdrawn": 1}
    give_up = (f"/review-jobs/{job}/give-up", {"reason": "nobody reads it"})
    assert client.ask("POST", *give_up, by="bot").status == 409
    desk.apply(not_notified(UUID(job), BEN))
    assert client.ask("POST", *give_up, by="reader").status == 403
    ended = client.ask("POST", *give_up, by="bot")
    assert (ended.status, ended.json["status"], ended.json["reason"]) == (200, "failed", "nobody reads it")
    assert patch(client, job, BEN, act="again").status == 409


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"recipients": []}, "recipients"),
        ({"recipients": [ADA] * 10_001}, "recipients"),
        ({"recipients": [ADA, "ben@example.com\r\nBcc: eve@example.com"]}, "recipients.1"),
        ({"review_version": 0}, "review_version"),
        ({"review_version": "3"}, "review_version"),
        ({"subject": "s" * 1000}, "subject"),
        ({"subject": "a\nb"}, "subject"),
        ({"body": "a\0b"}, "body"),
        ({"body": "half \ud800"}, "body"),
        ({"idempotency_key": "k" * 1000}, "idempotency_key"),
        ({"changelist_id": None}, "changelist_id"),
        ({"force": True}, "force"),
    ],
)
def test_a_request_that_is_not_valid_is_answered_422_with_its_field(
    client: Client, ferryman_db: Database, wrong: dict[str, Any], field: str
) -> None:
    """N14: the answer shows no address, and nothing is recorded."""
    answer = create(client, **wrong)
    assert (answer.status, answer.headers["Content-Type"]) == (422, "application/problem+json")
    assert list(answer.wrong) == [field]
    assert b"eve@" not in answer.body
    assert ferryman_db.execute("SELECT count(*) FROM reviews.jobs").fetchone() == (0,)


def test_what_there_is_not_is_answered_404_and_what_is_not_allowed_403(client: Client) -> None:
    job = create(client).json["id"]
    for path in (f"/review-jobs/{uuid4()}", f"/review-jobs/{uuid4()}/recipients"):
        assert client.ask("GET", path, by="reader").status == 404
    assert patch(client, job, "nobody@example.com", act="again").status == 404
    assert patch(client, str(uuid4()), ADA, act="again").status == 404
    assert patch(client, job, ADA, act="replace", by="no address").status == 422
    assert patch(client, job, ADA, act="forget").status == 422
    assert create(client, by="reader").status == 403
