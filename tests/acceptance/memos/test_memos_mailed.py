"""Memos by the real command line: the API records, the worker mails, and a person decides on mails in doubt."""

import hashlib
import json
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.runtime.postgres import Connection
from ferryman.services.memos.memos import MemoInput, create_memo
from ferryman.testing.mail import ACCEPTED, MailServer
from support.launch import Launched, Launcher
from support.published import poll_until

Environment = dict[str, str]
EXPIRE = "UPDATE memos.email_outbox SET last_attempt_at = last_attempt_at - interval '1 h' WHERE status = 'SENDING'"


@pytest.fixture
def mails() -> Iterator[MailServer]:
    with MailServer() as running:
        yield running


@pytest.fixture
def environment(ferryman_database_url: str, mails: MailServer) -> Environment:
    return {
        "FERRYMAN_DATABASE_URL": ferryman_database_url,
        "FERRYMAN_EMAIL__PROVIDER": "smtp",
        "FERRYMAN_EMAIL__SENDER": "Memos <memos@example.com>",
        "FERRYMAN_EMAIL__SMTP__HOST": "127.0.0.1",
        "FERRYMAN_EMAIL__SMTP__PORT": str(mails.port),
        "FERRYMAN_EMAIL__SMTP__TLS": "none",
        "FERRYMAN_API__TOKENS__SHOP__SHA256": hashlib.sha256(b"shop").hexdigest(),
        "FERRYMAN_API__TOKENS__SHOP__SCOPES": '["memos:write", "memos:read"]',
        "FERRYMAN_API__PORT": "0",
    }


def listening(api: Launched) -> str:
    events = [json.loads(line) for line in api.stderr.splitlines() if line.startswith("{")]
    return next((str(each["url"]) for each in events if each["event"] == "listening"), "")


def memo(number: int) -> MemoInput:
    return MemoInput("HR", "people", f"No. {number}", f"reader-{number}@example.com", "Please read.")


def drained(ferryman: Launcher, environment: Environment) -> dict[str, int]:
    done = ferryman.start("drain", "memos", "--json", env=environment)
    assert done.wait() == 0, done.transcript()
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def rows(db: Connection) -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT status, retry_count, error_message, sent_at IS NOT NULL FROM memos.email_outbox"
        " ORDER BY meta_created_at"
    ).fetchall()


def test_a_memo_that_is_posted_is_mailed_once(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, mails: MailServer
) -> None:
    """The document's sections 2 and 4: the request writes both rows, the worker sends, the row is SENT."""
    api = ferryman.start("run", "api", env=environment)
    url = api.until(lambda: listening(api), "listening")
    body = {
        "id": "6d0f6a34-29a8-4bb5-8d1b-0f0f4a6f5e11", "number_prefix": "HR", "department_code": "people",
        "title": "Party", "recipient": "ann@example.com", "email_body": "You are invited.",
    }  # fmt: skip

    def post() -> tuple[int, Any]:
        asked = urllib.request.Request(
            f"{url}/memos", json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer shop"},
        )  # fmt: skip
        with urllib.request.urlopen(asked) as answer:
            return answer.status, json.load(answer)

    (first, made), (again, same) = post(), post()
    assert (first, again, made["mail"]["status"]) == (201, 200, "PENDING")
    assert same == made
    assert drained(ferryman, environment)["published"] == 1
    [mail] = mails.received
    assert (mail.sender, mail.recipients) == ("memos@example.com", ("ann@example.com",))
    assert (mail.content["Subject"], mail.content.get_content()) == ("Memo Party Created", "You are invited.\n")
    assert rows(ferryman_db) == [("SENT", 0, None, True)]
    assert post()[1]["mail"]["status"] == "SENT"


def test_the_fifth_failure_ends_a_mail_and_a_replay_sends_it(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, mails: MailServer
) -> None:
    """Sections 5, 7 and 8: PENDING until the fifth failure, then FAILED; corrected by SQL, replayed, SENT."""
    mails.answer = lambda _: "452 4.2.2 mailbox full"
    created = create_memo(ferryman_db, memo(1))
    states = []
    for _ in range(5):
        drained(ferryman, environment)
        states.append(rows(ferryman_db)[0][:2])
        ferryman_db.execute("UPDATE memos.email_outbox SET last_attempt_at = last_attempt_at - interval '1 h'")
    assert states == [("PENDING", 1), ("PENDING", 2), ("PENDING", 3), ("PENDING", 4), ("FAILED", 5)]
    assert "452" in rows(ferryman_db)[0][2]
    mails.answer = lambda _: ACCEPTED
    ferryman_db.execute("UPDATE memos.email_outbox SET recipient_email = 'bob@example.com'")
    replay = ferryman.run(
        "outbox", "replay", "--outbox", "memos", str(created.mail), "--yes", "--reason", "moved", env=environment
    )
    assert replay.wait() == 0, replay.transcript()
    assert drained(ferryman, environment)["published"] == 1
    assert [each.recipients for each in mails.received] == [("bob@example.com",)]
    assert rows(ferryman_db) == [("SENT", 0, None, True)]
    history = ferryman_db.execute("SELECT outcome FROM ferryman.outbox_attempt ORDER BY began_at").fetchall()
    assert history == [("failed",)] * 5 + [("delivered",)]


def test_an_outage_of_the_server_uses_up_no_attempt(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, mails: MailServer
) -> None:
    """N8: the server's own failure ends the drain with exit code 4, and the mail waits as it was."""
    create_memo(ferryman_db, memo(1))
    mails.answer = lambda _: "421 4.3.2 shutting down"
    down = ferryman.start("drain", "memos", env=environment)
    assert down.wait() == 4, down.transcript()
    assert "421" in down.stderr
    [(status, count, _, sent)] = rows(ferryman_db)
    assert (status, count, sent) == ("PENDING", 0, False)
    mails.answer = lambda _: ACCEPTED
    assert drained(ferryman, environment)["published"] == 1


@pytest.mark.parametrize("decision", ["--sent", "--resend"])
def test_a_mail_whose_worker_was_killed_is_held_for_a_person(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, mails: MailServer, decision: str
) -> None:
    """N3, N11: nobody has marked it, SMTP cannot tell, so it is sent again only if a person says so."""
    created = create_memo(ferryman_db, memo(1))
    worker = ferryman.start("run", "memos", env=environment)

    def kill(_: object) -> str:
        os.kill(worker.pid, signal.SIGKILL)
        return ACCEPTED

    mails.answer = kill
    worker.wait()
    poll_until(lambda: len(mails.received) == 1, "the mail")
    mails.answer = lambda _: ACCEPTED
    assert rows(ferryman_db)[0][0] == "SENDING"
    ferryman_db.execute(EXPIRE)
    drained(ferryman, environment)
    assert rows(ferryman_db)[0][2].startswith("in doubt: ")
    refused = ferryman.run(
        "outbox", "replay", "--outbox", "memos", str(created.mail), "--yes", "--reason", "x", env=environment
    )
    assert (refused.wait(), "outbox resolve memos" in refused.stderr) == (1, True)
    shown = ferryman.run("outbox", "show", "--outbox", "memos", str(created.mail), env=environment)
    assert f"outbox resolve memos --id {created.mail}" in shown.stdout
    resolve = ("outbox", "resolve", "memos", "--id", str(created.mail), decision, "--reason", "the server's log")
    done = ferryman.run(*resolve, env=environment)
    assert done.wait() == 0, done.transcript()
    drained(ferryman, environment)
    assert len(mails.received) == (1 if decision == "--sent" else 2)
    assert len({each.content["Message-ID"] for each in mails.received}) == 1
    assert rows(ferryman_db)[0][0] == "SENT"
    assert ferryman.run(*resolve, env=environment).wait() == 1
    [act] = ferryman_db.execute("SELECT act, filter ->> 'as', entries FROM ferryman.outbox_audit").fetchall()
    assert act == ("resolve", decision.removeprefix("--"), 1)


def test_two_workers_send_every_mail_once_the_oldest_first(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection, mails: MailServer
) -> None:
    """Section 6; N16: SIGTERM lets what is being sent end."""
    for number in range(60):
        create_memo(ferryman_db, memo(number))
    workers = [
        ferryman.start("run", "memos", env=environment | {"FERRYMAN_EMAIL__SMTP__CONNECTIONS": "1"}) for _ in range(2)
    ]
    workers[0].until(lambda: Counter(row[0] for row in rows(ferryman_db)) == {"SENT": 60}, "delivery")
    for worker in workers:
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.transcript()
    order = [int(str(each.content["Subject"]).split()[2]) for each in mails.received]
    assert sorted(order) == list(range(60))
    assert all(abs(place - number) <= 4 for place, number in enumerate(order)), order
