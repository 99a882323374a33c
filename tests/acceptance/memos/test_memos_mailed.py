"""Memos by the real command line: the API records, the worker mails, and a person decides on mails in doubt."""

import hashlib
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.runtime.postgres import Connection
from ferryman.services.memos.memos import MemoInput, create_memo
from ferryman.testing.mail import ACCEPTED, MailServer
from support.launch import KillAt, Launched, Launcher
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


def post(url: str) -> tuple[int, Any]:
    body = {
        "id": "6d0f6a34-29a8-4bb5-8d1b-0f0f4a6f5e11", "number_prefix": "HR", "department_code": "people",
        "title": "Party", "recipient": "ann@example.com", "email_body": "You are invited.",
    }  # fmt: skip
    headers = {"Content-Type": "application/json", "Authorization": "Bearer shop"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/memos", json.dumps(body).encode(), headers)) as answer:
        return answer.status, json.load(answer)


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
    (first, made), (again, same) = post(url), post(url)
    assert (first, again, made["mail"]["status"]) == (201, 200, "PENDING")
    assert same == made
    assert drained(ferryman, environment)["published"] == 1
    [mail] = mails.received
    assert (mail.sender, mail.recipients) == ("memos@example.com", ("ann@example.com",))
    assert (mail.content["Subject"], mail.content.get_content()) == ("Memo Party Created", "You are invited.\n")
    assert rows(ferryman_db) == [("SENT", 0, None, True)]
    assert post(url)[1]["mail"]["status"] == "SENT"


def test_api_killed_before_the_commit_has_recorded_neither_row(
    ferryman: Launcher, environment: Environment, ferryman_db: Connection
) -> None:
    """Section 4; N2: and the same request again records both."""
    killed = ferryman.start(
        "run", "api", env=environment, kill_at=KillAt("ferryman.services.memos.memos_api:create_memo", "after")
    )
    url = killed.until(lambda: listening(killed), "listening")
    with pytest.raises(OSError):  # noqa: PT011 - the connection ends
        post(url)
    assert killed.wait() == -9
    assert ferryman_db.execute("SELECT count(*) FROM memos.memos").fetchone() == (0,)
    assert rows(ferryman_db) == []
    api = ferryman.start("run", "api", env=environment)
    url = api.until(lambda: listening(api), "listening")
    assert [post(url)[0], post(url)[0]] == [201, 200]
    assert rows(ferryman_db) == [("PENDING", 0, None, False)]


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
    resolve = (
        "outbox",
        "resolve",
        "memos",
        "--id",
        str(created.mail),
        decision,
        "--yes",
        "--reason",
        "the server's log",
    )
    done = ferryman.run(*resolve, env=environment)
    assert done.wait() == 0, done.transcript()
    drained(ferryman, environment)
    assert len(mails.received) == (1 if decision == "--sent" else 2)
    assert len({each.content["Message-ID"] for each in mails.received}) == 1
    assert rows(ferryman_db)[0][0] == "SENT"
    assert ferryman.run(*resolve, env=environment).wait() == 1
    [act] = ferryman_db.execute("SELECT act, filter ->> 'as', entries FROM ferryman.outbox_audit").fetchall()
    assert act == ("resolve", decision.removeprefix("--"), 1)
