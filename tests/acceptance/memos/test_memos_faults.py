"""Workers of memos whose provider or database fails: the row says what happened, and no mail is lost or doubled."""

from collections import Counter
from collections.abc import Callable

import pytest
from psycopg import conninfo

from ferryman.testing.mail import ACCEPTED, ACCEPTED_UNHEARD, MailServer
from ferryman.testing.proxy import FaultProxy
from ferryman.testing.receiver import Answer, ReceivedRequest
from ferryman.testing.resend import ResendServer, refusal
from support.launch import Launched
from support.memoing import Memoing, at
from support.published import metric, poll_until, said

ONE_CONNECTION = {"FERRYMAN_EMAIL__SMTP__CONNECTIONS": "1"}


def logged(worker: Launched, event: str, words: str) -> bool:
    return any(words in each["error"] for each in said(worker, event))


def test_reply_about_a_mail_is_in_its_row_and_in_the_log(by_smtp: Memoing, smtp: MailServer) -> None:
    """N8, N10: what may succeed later waits and counts; what cannot is FAILED at once; the others are sent."""
    expected = {
        "450 4.7.1 greylisted": ("PENDING", "MAILBOX_BUSY"),
        "452 4.2.2 mailbox full": ("PENDING", "MAILBOX_BUSY"),
        "451 please come back": ("PENDING", "MAILBOX_BUSY"),
        "550 5.1.1 no such user": ("FAILED", "RECIPIENT_REFUSED"),
        "550 5.4.1 access denied": ("FAILED", "RECIPIENT_REFUSED"),
        "552 5.3.4 too big": ("FAILED", "MAIL_TOO_LARGE"),
    }
    replies = {f"user-{number}@example.com": reply for number, reply in enumerate(expected)}
    smtp.script = lambda command, argument: next(
        (reply for recipient, reply in replies.items() if command == "RCPT" and recipient in argument), None
    )
    refused = dict(zip(by_smtp.write(*replies), expected.items(), strict=True))
    invalid = by_smtp.write(*[f"invalid-{number}@example.com" for number in range(3)])
    for mail, recipient in zip(
        invalid, ("a@example.com, b@example.com", "grüße@example.com", "no address"), strict=True
    ):
        by_smtp.readdress(mail, recipient)
    by_smtp.write("ann@example.com")
    worker = by_smtp.start(FERRYMAN_MEMOS__BASE_SECONDS="600", **ONE_CONNECTION)
    by_smtp.await_statuses(worker, SENT=1, PENDING=3, FAILED=6)
    for mail, (reply, (status, code)) in refused.items():
        found = by_smtp.row(mail)
        assert found[:2] == (status, 1)
        assert reply in found[2]
        assert by_smtp.attempts(mail) == [("failed" if status == "PENDING" else "rejected", code)]
        assert logged(worker, "sending failed", reply)
    for mail in invalid:
        assert by_smtp.row(mail)[:2] == ("FAILED", 1)
        assert by_smtp.attempts(mail) == [("rejected", "MAIL_INVALID")]
    by_smtp.stop(worker)
    assert by_smtp.received() == {len(by_smtp.mails) - 1: 1}


def dies(at_command: str) -> Callable[[str, str], str | None]:
    def script(command: str, _: str) -> str | None:
        if command == at_command:
            raise ConnectionError
        return None

    return script


def test_failure_of_the_server_is_in_the_row_and_in_the_log_and_charges_nothing(
    by_smtp: Memoing, smtp: MailServer
) -> None:
    """N8, N11: each mail waits as it was, and is sent as soon as the server is well."""
    faults = {
        "421 4.3.2 shutting down": at("CONNECT", "421 4.3.2 shutting down"),
        "closed the connection at once": dies("CONNECT"),
        "421 4.7.0 too busy": at("MAIL", "421 4.7.0 too busy"),
        "452 4.3.1 disk full": at("RCPT", "452 4.3.1 disk full"),
        "closed the connection at the recipient": dies("RCPT"),
        "451 4.4.1 no route": at("DATA", "451 4.4.1 no route"),
        "closed the connection before the text": dies("DATA"),
    }
    [mail], smtp.script = by_smtp.write_many(1), at("CONNECT", "421 4.3.2 shutting down")
    worker = by_smtp.start()
    for number, (words, script) in enumerate(faults.items()):
        smtp.script = script
        if number > 1:  # the first two are of one mail: after it, a connection is kept
            [mail] = by_smtp.write_many(1)
        worker.until(lambda: logged(worker, "nothing is sent for now", words), words)  # noqa: B023 - called at once
        worker.until(lambda: words in by_smtp.row(mail)[2], "its error")  # noqa: B023 - called at once
        assert by_smtp.row(mail)[:2] == ("PENDING", 0)
        assert {outcome for outcome, _ in by_smtp.attempts(mail)} == {"unavailable"}
        if number:
            smtp.script = lambda *_: None
            by_smtp.await_statuses(worker, SENT=number)
    by_smtp.stop(worker)
    assert by_smtp.received() == dict.fromkeys(range(len(faults) - 1), 1)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"USER": "memos", "PASSWORD": "geheim-4711"}, "LOGIN_REFUSED", "email.smtp.user and email.smtp.password"),
        ({"TLS": "starttls"}, "TLS_FAILED", "nothing is sent in the clear"),
    ],
)
def test_mail_waits_for_a_login_and_for_encryption(
    by_smtp: Memoing, smtp: MailServer, settings: dict[str, str], code: str, words: str
) -> None:
    """N8, N14: nothing is charged, the error says what is wrong, and nothing goes out in the clear."""
    smtp.script = at("AUTH", "535 5.7.8 geheim-4711 is not the password of memos")
    [mail] = by_smtp.write_many(1)
    worker = by_smtp.start(**{f"FERRYMAN_EMAIL__SMTP__{name}": value for name, value in settings.items()})
    worker.until(lambda: logged(worker, "nothing is sent for now", words), words)
    by_smtp.await_statuses(worker, PENDING=1)
    assert by_smtp.row(mail)[:2] == ("PENDING", 0)
    assert set(by_smtp.attempts(mail)) == {("unavailable", code)}
    by_smtp.stop(worker)
    assert "geheim-4711" not in worker.transcript() + by_smtp.row(mail)[2]
    assert {"MAIL", "RCPT"}.isdisjoint(smtp.commands)


@pytest.mark.parametrize(("setting", "arrives"), [("hold", 1), ("resend", 2)])
def test_mail_whose_line_is_lost_after_the_text_is_held_or_doubled_as_set(
    by_smtp: Memoing, smtp: MailServer, setting: str, arrives: int
) -> None:
    """N3: and the other mails go on."""
    by_smtp.env["FERRYMAN_EMAIL__IN_DOUBT"] = setting
    [mail] = by_smtp.write_many(1)
    answers = iter([ACCEPTED_UNHEARD])
    smtp.answer = lambda _: next(answers, ACCEPTED)
    worker = by_smtp.start()
    worker.until(lambda: "unknown" in [each[0] for each in by_smtp.attempts(mail)] or by_smtp.held(), "doubt")
    by_smtp.write_many(1)
    by_smtp.await_statuses(worker, **({"SENT": 2} if setting == "resend" else {"SENT": 1, "FAILED": 1}))
    assert metric(worker, "ferryman_relay_unknown_total") == 1
    assert metric(worker, "ferryman_email_risked_total") == (setting == "resend")
    by_smtp.stop(worker)
    assert by_smtp.received() == {0: arrives, 1: 1}
    assert by_smtp.held() == ({mail} if setting == "hold" else set())


def through(wire: FaultProxy, memos: Memoing) -> dict[str, str]:
    """Return the settings that lead to the provider through a proxy."""
    if isinstance(memos.server, ResendServer):
        return {"FERRYMAN_EMAIL__RESEND__URL": f"http://{wire.address}"}
    return {"FERRYMAN_EMAIL__SMTP__PORT": str(wire.port)}


@pytest.mark.parametrize("provider", ["smtp", "resend"])
def test_provider_that_is_down_for_an_hour_uses_up_no_attempt(provider: str, request: pytest.FixtureRequest) -> None:
    """N1, N8, N11: times are moved, so that nobody waits for them."""
    memos: Memoing = request.getfixturevalue(f"by_{provider}")
    memos.write_many(30)
    with FaultProxy(memos.provider) as wire:
        wire.down()
        worker = memos.start(**through(wire, memos))
        for looks in range(1, 4):
            worker.until(lambda: len(said(worker, "nothing is sent for now")) >= looks, "look")  # noqa: B023 - at once
            memos.await_statuses(worker, PENDING=30)
            memos.age(1200, "PENDING")
        wire.up()
        memos.await_statuses(worker, SENT=30)
        memos.stop(worker)
    assert memos.received() == dict.fromkeys(range(30), 1)
    assert [memos.row(mail)[1:] for mail in memos.mails] == [(0, "")] * 30


def test_resend_that_fails_after_it_took_mails_has_sent_each_once(by_resend: Memoing, resend: ResendServer) -> None:
    """N3, N8, N11: an outage that takes the mails, and answers nothing that can be used."""
    by_resend.write_many(20)
    seen: Counter[str] = Counter()
    faults = [None, Answer(502, b"<html>"), refusal(500, "application_error"), Answer(503), Answer(504, b"{")]

    def after(request: ReceivedRequest) -> Answer | None:
        seen[request.headers["idempotency-key"]] += 1
        fault = faults[len(seen) % len(faults)]
        if fault is None:
            raise ConnectionError
        return fault

    resend.after = after
    worker = by_resend.start()
    by_resend.await_statuses(worker, SENT=20)
    by_resend.stop(worker)
    assert by_resend.received() == dict.fromkeys(range(20), 1)
    assert len({each.headers["idempotency-key"] for each in resend.requests}) == 20
    assert len({(each.headers["idempotency-key"], each.body) for each in resend.requests}) == 20
    assert not by_resend.held()


@pytest.mark.parametrize("provider", ["smtp", "resend"])
def test_database_that_is_away_between_send_and_mark_doubles_and_holds_nothing(
    provider: str, request: pytest.FixtureRequest
) -> None:
    """N3, N11: outcomes wait in memory until it is back."""
    memos: Memoing = request.getfixturevalue(f"by_{provider}")
    parts = conninfo.conninfo_to_dict(memos.database_url)
    with FaultProxy(f"{parts['host']}:{parts['port']}") as wire:
        went = False

        def accept(_: object) -> str:
            nonlocal went
            if not went:
                went = True
                wire.down()
            return ACCEPTED

        def after(request: ReceivedRequest) -> Answer | None:
            accept(request)
            return None

        if isinstance(memos.server, ResendServer):
            memos.server.after = after
        else:
            memos.server.answer = accept
        memos.write_many(10)
        memos.database_url = conninfo.make_conninfo(memos.database_url, host="127.0.0.1", port=wire.port)
        worker = memos.start()
        worker.until(lambda: '"interrupted"' in worker.stderr, "outage")
        poll_until(lambda: memos.received() == dict.fromkeys(range(10), 1), "mails")
        wire.up()
        memos.await_statuses(worker, SENT=10)
        memos.stop(worker)
    assert memos.received() == dict.fromkeys(range(10), 1)
    assert [memos.row(mail)[1:] for mail in memos.mails] == [(0, "")] * 10
