"""Workers of memos that are killed, or lose their lease, lose no mail; what the server received judges."""

import os
import signal
import threading
import time

import pytest

from ferryman.testing.mail import ACCEPTED, MailServer
from ferryman.testing.receiver import Answer, ReceivedRequest
from ferryman.testing.resend import ResendServer
from support.launch import KillAt, Launched
from support.memoing import Memoing
from support.published import metric, poll_until

SIX = {"FERRYMAN_EMAIL__SMTP__CONNECTIONS": "6"}
STEPS = ("send rows", "settle rows", "commit rows")


def heir_of(memos: Memoing, victim: Launched, **more: str) -> Launched:
    """Start a worker that finds the leases of a killed one expired."""
    assert victim.wait() == -9, victim.transcript()
    memos.age()
    return memos.start(**more)


@pytest.mark.parametrize("step", STEPS)
def test_worker_killed_before_a_step_holds_by_smtp_what_it_had_claimed(by_smtp: Memoing, step: str) -> None:
    """N1, N3, N11: nobody knows what was sent, so a person decides. What it had not claimed is sent."""
    by_smtp.write_many(20)
    heir = heir_of(by_smtp, by_smtp.start(KillAt.before_step("courier", step), **SIX), **SIX)
    by_smtp.await_statuses(heir, SENT=14, FAILED=6)
    assert len(by_smtp.held()) == 6
    assert metric(heir, "ferryman_relay_unknown_total") == 6
    by_smtp.stop(heir)
    arrived = by_smtp.received()
    assert set(arrived.values()) == {1}
    sent = set(range(20)) - by_smtp.numbers(by_smtp.held())
    assert sent <= set(arrived)
    assert len(arrived) == (14 if step == "send rows" else len(arrived)), "nothing was begun"


@pytest.mark.parametrize("step", STEPS)
def test_worker_killed_before_a_step_sends_each_mail_once_by_resend(by_resend: Memoing, step: str) -> None:
    """N1, N3, N11: the same key again gets the first answer."""
    by_resend.write_many(20)
    heir = heir_of(by_resend, by_resend.start(KillAt.before_step("courier", step)))
    by_resend.await_statuses(heir, SENT=20)
    by_resend.stop(heir)
    assert by_resend.received() == dict.fromkeys(range(20), 1)


def test_worker_killed_before_data_has_sent_nothing_and_its_mail_is_held(by_smtp: Memoing, smtp: MailServer) -> None:
    """N3: a process that died cannot say how far it came."""
    [mail] = by_smtp.write_many(1)
    victim = by_smtp.start()

    def kill(command: str, _: str) -> None:
        if command == "DATA":
            os.kill(victim.pid, signal.SIGKILL)

    smtp.script = kill
    heir = heir_of(by_smtp, victim)
    by_smtp.await_statuses(heir, FAILED=1)
    assert by_smtp.attempts(mail) == [("lost", None), ("held", "NOT_LOOKED_UP")]
    by_smtp.stop(heir)
    assert smtp.received == []


@pytest.mark.parametrize(("setting", "arrives"), [("hold", 1), ("resend", 2)])
def test_worker_killed_after_the_final_dot_doubles_its_mail_only_if_told_to(
    by_smtp: Memoing, smtp: MailServer, setting: str, arrives: int
) -> None:
    """N3: held and counted as set; a second copy has the same Message-ID."""
    by_smtp.env["FERRYMAN_EMAIL__IN_DOUBT"] = setting
    [mail] = by_smtp.write_many(1)
    victim = by_smtp.start()

    def kill(_: object) -> str:
        smtp.answer = lambda _: ACCEPTED
        os.kill(victim.pid, signal.SIGKILL)
        return ACCEPTED

    smtp.answer = kill
    heir = heir_of(by_smtp, victim)
    by_smtp.await_statuses(heir, **{"SENT" if setting == "resend" else "FAILED": 1})
    assert metric(heir, "ferryman_relay_unknown_total") == (setting == "hold")
    assert metric(heir, "ferryman_email_risked_total") == (setting == "resend")
    by_smtp.stop(heir)
    assert by_smtp.received() == {0: arrives}
    assert len({each.content["Message-ID"] for each in smtp.received}) == 1
    ends = {"hold": ("held", "NOT_LOOKED_UP"), "resend": ("delivered", None)}
    assert by_smtp.attempts(mail) == [("lost", None), ends[setting]]
    assert by_smtp.row(mail)[1] == (1 if setting == "resend" else 2)


def test_worker_killed_after_resend_took_the_mail_sends_it_once(by_resend: Memoing, resend: ResendServer) -> None:
    """N3: the heir asks under the same key, and gets the id of the first."""
    [mail] = by_resend.write_many(1)
    victim = by_resend.start()

    def kill(_: ReceivedRequest) -> None:
        resend.after = lambda _: None
        os.kill(victim.pid, signal.SIGKILL)

    resend.after = kill
    heir = heir_of(by_resend, victim)
    by_resend.await_statuses(heir, SENT=1)
    by_resend.stop(heir)
    assert by_resend.received() == {0: 1}
    assert len({(each.headers["idempotency-key"], each.body) for each in resend.requests}) == 1
    assert by_resend.attempts(mail) == [("lost", None), ("delivered", None)]


def test_sigterm_lets_mails_end_that_are_being_sent_and_releases_the_rest(by_smtp: Memoing, smtp: MailServer) -> None:
    """N16: a rolling update leaves no mail in doubt."""
    over = threading.Event()
    smtp.answer = lambda _: ACCEPTED if over.wait(20) else "451 too late"
    by_smtp.write_many(20)
    ending = by_smtp.start(**SIX)
    by_smtp.await_statuses(ending, SENDING=6, PENDING=14)
    poll_until(lambda: smtp.commands.count("DATA") == 6, "texts")
    ending.send(signal.SIGTERM)
    ending.until(lambda: '"draining"' in ending.stderr, "signal")
    over.set()
    assert ending.wait() == 0, ending.transcript()
    assert by_smtp.statuses() == {"SENT": 6, "PENDING": 14}
    assert set(by_smtp.received().values()) == {1}


def stopped(worker: Launched) -> bool:
    with open(f"/proc/{worker.pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


def test_second_worker_that_finds_the_lease_expired_sends_no_second_mail_by_smtp(
    by_smtp: Memoing, smtp: MailServer
) -> None:
    """N3: it holds the mail, and the first one's late success still counts."""
    [mail] = by_smtp.write_many(1)
    first = by_smtp.start()

    def answer(_: object) -> str:
        first.send(signal.SIGSTOP)
        poll_until(lambda: stopped(first), "stopped worker")
        return ACCEPTED

    smtp.answer = answer
    poll_until(lambda: len(smtp.received) == 1 and stopped(first), "mail")
    by_smtp.age()
    second = by_smtp.start()
    by_smtp.await_statuses(second, FAILED=1)
    first.send(signal.SIGCONT)
    first.until(lambda: '"lease lost"' in first.stderr, "late success")
    by_smtp.stop(first, second)
    assert by_smtp.received() == {0: 1}
    assert by_smtp.held() == {mail}
    assert ("delivered", None) in by_smtp.attempts(mail), "the person who decides finds it in the log"


def test_worker_that_was_stopped_past_its_time_sends_nothing_when_it_wakes(by_smtp: Memoing, smtp: MailServer) -> None:
    """N3: the server waits for the text, and somebody else has taken the mail over meanwhile."""
    [mail] = by_smtp.write_many(1)
    first = by_smtp.start(FERRYMAN_EMAIL__TIMEOUT_SECONDS="1")

    def stop(command: str, _: str) -> None:
        if command == "DATA":
            first.send(signal.SIGSTOP)
            poll_until(lambda: stopped(first), "stopped worker")

    smtp.script = stop
    poll_until(lambda: "DATA" in smtp.commands and stopped(first), "stopped worker")
    stopped_at = time.monotonic()
    by_smtp.age()
    second = by_smtp.start()
    by_smtp.await_statuses(second, FAILED=1)
    poll_until(lambda: time.monotonic() > stopped_at + 1.5, "the end of its time")
    first.send(signal.SIGCONT)
    first.until(lambda: '"lease lost"' in first.stderr, "late failure")
    by_smtp.stop(first, second)
    assert smtp.received == []
    assert by_smtp.held() == {mail}


def test_second_worker_that_finds_the_lease_expired_sends_no_second_mail_by_resend(
    by_resend: Memoing, resend: ResendServer
) -> None:
    """N3."""
    [mail] = by_resend.write_many(1)
    first, over = by_resend.start(), threading.Event()

    def after(_: ReceivedRequest) -> Answer | None:
        first.send(signal.SIGSTOP)
        over.wait(20)
        return None

    resend.after = after
    poll_until(lambda: resend.sent and stopped(first), "mail")
    by_resend.age()
    second = by_resend.start()
    second.until(lambda: len(resend.requests) > 1, "second request")
    over.set()
    by_resend.await_statuses(second, SENT=1)
    first.send(signal.SIGCONT)
    by_resend.stop(first, second)
    assert by_resend.received() == {0: 1}
    assert by_resend.row(mail)[0] == "SENT"
