"""Monitors and operators see memos and mails: in lists, in a trace, in the archive, and at the end of a drain."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg import conninfo, sql
from psycopg.errors import InsufficientPrivilege

from ferryman.cli.app import run
from ferryman.runtime.errors import Exit
from ferryman.runtime.postgres import Connection
from ferryman.services.memos.memos import MemoInput, RecordedMemo, create_memo
from ferryman.testing import stack
from ferryman.testing.mail import ACCEPTED, ACCEPTED_UNHEARD, MailServer

MEMO = MemoInput("HR", "people", "Party for Ann", "ann@example.com", "You are invited.")
PERSONAL = ("ann@example.com", "Party", "invited")
Ask = Callable[..., Any]


@pytest.fixture
def memo(ferryman_db: Connection) -> RecordedMemo:
    return create_memo(ferryman_db, MEMO)


@pytest.fixture
def mails() -> Iterator[MailServer]:
    with MailServer() as running:
        yield running


@pytest.fixture
def monitor(ferryman_db: Connection, ferryman_database_url: str) -> Iterator[str]:
    url = stack.login(ferryman_database_url, "memos_monitor", "ferryman_monitor")
    yield url
    user = sql.Identifier(str(conninfo.conninfo_to_dict(url)["user"]))
    ferryman_db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(user))


@pytest.fixture
def ask(
    ferryman_database_url: str, mails: MailServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ask:
    """Run a command in this process, and return its JSON, or its text with `text=True`."""
    environment = {
        "EMAIL__PROVIDER": "smtp", "EMAIL__SENDER": "memos@example.com", "EMAIL__SMTP__HOST": "127.0.0.1",
        "EMAIL__SMTP__PORT": str(mails.port), "EMAIL__SMTP__TLS": "none",
    }  # fmt: skip

    def asked(line: str, *, url: str = ferryman_database_url, exit_code: int = 0, text: bool = False) -> Any:
        for name, value in {**environment, "DATABASE_URL": url}.items():
            monkeypatch.setenv(f"FERRYMAN_{name}", value)
        capsys.readouterr()
        assert run([*line.split(), *([] if text else ["--json"])]) == exit_code, capsys.readouterr()
        out = capsys.readouterr().out
        return out if text else json.loads(out)

    return asked


def archive(db: Connection) -> None:
    db.execute("UPDATE memos.email_outbox SET status = 'SENT', sent_at = '2026-01-02', meta_created_at = '2026-01-01'")
    assert db.execute("SELECT memos.leave(0, 10, true)").fetchone() == (1,)


@pytest.mark.parametrize("command", ["stats", "list", "list --status PENDING", "show {}", "trace {}", "trace {memo}"])
def test_monitor_sees_mails_without_who_they_are_for(ask: Ask, memo: RecordedMemo, monitor: str, command: str) -> None:
    """N14: neither the address, nor the key that has it, nor the title."""
    line = command.format(memo.mail, memo=memo.id)
    line = line if line.startswith("trace") else f"outbox {line} --outbox memos"
    printed, data = ask(line, url=monitor, text=True), str(ask(line, url=monitor))
    assert not [each for each in PERSONAL if each in printed + data]
    assert "None" not in printed
    assert "stats" in line or str(memo.mail) in data
    ask("outbox list --outbox memos --destination ann@example.com", url=monitor, exit_code=Exit.USAGE)


@pytest.mark.parametrize("by", ["id", "mail"])
def test_trace_tells_a_memos_mail_from_its_record_to_the_archive(
    ask: Ask, ferryman_db: Connection, memo: RecordedMemo, by: str
) -> None:
    line = f"trace {getattr(memo, by)}"
    waits = ask(line)
    assert (waits["now"], waits["row"]["id"], waits["next"]) == ("PENDING", str(memo.mail), "ferryman run memos")
    ask("drain memos")
    sent = ask(line)
    assert [each["what"] for each in sent["events"]] == ["recorded", "delivered"]
    assert (sent["now"], sent["row"]["archive"]) == ("SENT", None)
    archive(ferryman_db)
    left = ask(line)
    assert (left["now"], left["row"]["archive"], left["next"]) == ("SENT", "memos.email_archive", None)
    assert [each["what"] for each in left["events"]] == ["recorded", "delivered"]
    assert "memos.email_archive" in ask(line, text=True)


def test_show_names_the_archive_of_a_row_that_has_left(
    ask: Ask, ferryman_db: Connection, memo: RecordedMemo, monitor: str
) -> None:
    archive(ferryman_db)
    for url in ({"url": monitor}, {}):
        shown = ask(f"outbox show --outbox memos {memo.mail}", **url)
        assert (shown["state"], shown["next"]) == ("delivered", None)
        assert "memos.email_archive" in shown["reason"]
    assert "invited" in ask(f"outbox show --outbox memos --payload {memo.mail}", text=True)
    ask("outbox show --outbox memos 6d0f6a34-29a8-4bb5-8d1b-0f0f4a6f5e11", exit_code=Exit.FAILURE)


def test_trace_of_what_nobody_knows_says_that_outboxes_were_searched(ask: Ask) -> None:
    error = ask("trace 6d0f6a34-29a8-4bb5-8d1b-0f0f4a6f5e11", exit_code=Exit.FAILURE)["error"]
    assert "the outbox memos" in error["message"]


@pytest.mark.usefixtures("memo")
def test_drain_counts_held_mails_and_has_done_its_work(ask: Ask, mails: MailServer) -> None:
    """Exit 4 would say that rows wait for a server that is away; a held one waits for a person."""
    mails.answer = lambda _: ACCEPTED_UNHEARD
    assert ask("drain memos")["held"] == 1
    mails.answer = lambda _: ACCEPTED
    again = ask("drain memos")
    assert (again["held"], again["published"], again["waiting"]) == (1, 0, 0)
    assert "held 1" in ask("drain memos", text=True)
    mails.script = lambda _command, _argument: "421 4.3.2 shutting down"
    assert ask("drain memos")["held"] == 1


@pytest.mark.usefixtures("memo")
def test_drain_exits_4_while_mails_wait_for_a_server_that_is_away(ask: Ask, mails: MailServer) -> None:
    mails.script = lambda _command, _argument: "421 4.3.2 shutting down"
    ask("drain memos", exit_code=Exit.UNREACHABLE)


def test_decision_without_an_act_in_the_audit_is_refused(ferryman_db: Connection, memo: RecordedMemo) -> None:
    """A login that was stolen cannot make a held mail one that may be sent again, and leave no sign of it."""
    ferryman_db.execute("SET SESSION AUTHORIZATION ferryman_memos_worker")
    forged = "INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome) VALUES ('memos', %s, now(), %s)"
    for outcome in ("reopened", "resolved"):
        with pytest.raises(Exception, match="needs its act in the audit"):
            ferryman_db.execute(forged, (str(memo.mail), outcome))
    ferryman_db.execute(forged, (str(memo.mail), "lost"))
    ferryman_db.execute(forged, (str(memo.mail), "begun"))
    for outcome in ("reopened", "resolved"):
        with pytest.raises(InsufficientPrivilege, match="policy"):
            ferryman_db.execute("UPDATE ferryman.outbox_attempt SET outcome = %s", (outcome,))
    ferryman_db.execute("UPDATE ferryman.outbox_attempt SET outcome = 'delivered'")
    found = ferryman_db.execute("SELECT outcome FROM ferryman.outbox_attempt ORDER BY number").fetchall()
    assert found == [("lost",), ("delivered",)], "a doubt stays"
    ferryman_db.execute("RESET SESSION AUTHORIZATION")
