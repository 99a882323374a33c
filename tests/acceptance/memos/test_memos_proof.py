"""N1, N3, N8, N11: memos are written and mailed while a worker is killed every second, by a seed.

The server's own record judges: no mail is missing, and none is doubled unless the settings take that risk.
"""

import random
import threading
import time
from typing import Any

import pytest

from ferryman.testing.mail import ACCEPTED, ACCEPTED_UNHEARD, MailServer
from ferryman.testing.receiver import Answer, ReceivedRequest
from ferryman.testing.resend import ResendServer
from support.launch import Launched
from support.memoing import Memoing
from support.published import poll_until

pytestmark = [pytest.mark.prove, pytest.mark.serial]

MEMOS, ROUNDS, WORKERS = 1000, 25, 3
SETTINGS = {
    "FERRYMAN_MEMOS__BASE_SECONDS": "0.5",
    "FERRYMAN_MEMOS__CAP_SECONDS": "1",
    "FERRYMAN_EMAIL__SMTP__CONNECTIONS": "4",
}
# A lease of seconds: what a living worker sends takes less.
EXPIRE = (
    "UPDATE memos.email_outbox SET last_attempt_at = last_attempt_at - interval '1 h'"
    " WHERE status = 'SENDING' AND last_attempt_at < now() - interval '4 s'"
)


class MailFaults:
    """A server that takes its time, and now and then accepts a mail without a reply."""

    def __init__(self, server: MailServer | ResendServer, dice: random.Random) -> None:
        self.well = False
        self._dice, self._guard = dice, threading.Lock()
        if isinstance(server, ResendServer):
            server.after = self._after
        else:
            server.answer = self._answer

    def _answer(self, _: object) -> str:
        with self._guard:
            wait, fault = self._dice.random() / 4, self._dice.random()
        if self.well:
            return ACCEPTED
        threading.Event().wait(wait)
        return ACCEPTED_UNHEARD if fault < 0.02 else ACCEPTED

    def _after(self, request: ReceivedRequest) -> Answer | None:
        if self._answer(request) == ACCEPTED_UNHEARD:
            raise ConnectionError
        return None


def kill_every_second(memos: Memoing, dice: random.Random, **settings: str) -> None:
    """Write memos and kill a worker every second; then let two workers finish."""
    memos.env.update(SETTINGS | settings)
    faults = MailFaults(memos.server, dice)
    running: list[Launched] = [memos.start() for _ in range(WORKERS)]
    for _ in range(ROUNDS):
        memos.write_many(MEMOS // ROUNDS)
        time.sleep(0.5 + dice.random())
        running.pop(dice.randrange(WORKERS)).kill()
        running.append(memos.start())
        memos.db.execute(EXPIRE)
    for each in running:
        each.kill()
    faults.well = True
    memos.age()
    heirs = [memos.start() for _ in range(2)]

    def over() -> bool:
        assert all(each.alive for each in heirs)
        return not memos.statuses().keys() - {"SENT", "FAILED"}

    poll_until(over, "end", 60)
    memos.stop(*heirs)
    assert len(memos.mails) == MEMOS
    assert len(memos.held()) == memos.statuses()["FAILED"], "a mail was given up without doubt"


def check_none_is_missing(memos: Memoing) -> dict[int, int]:
    """Check that each mail arrived or waits for a person. Return those that arrived more than once."""
    arrived, held = memos.received(), memos.numbers(memos.held())
    assert set(range(MEMOS)) - held <= arrived.keys()
    doubled = {number: times for number, times in arrived.items() if times > 1}
    print(f"{len(arrived)} arrived, {len(held)} held, {len(doubled)} doubled")
    return doubled


def in_doubt(memos: Memoing) -> set[int]:
    """Return the mails of which an attempt was lost or had no reply."""
    found: list[tuple[Any, ...]] = memos.db.execute(
        "SELECT DISTINCT row_id FROM ferryman.outbox_attempt WHERE outcome IN ('lost', 'unknown')"
    ).fetchall()
    return memos.numbers({mail for (mail,) in found})


def test_mails_by_smtp_arrive_once_or_are_held_however_often_workers_die(by_smtp: Memoing, seed: int) -> None:
    kill_every_second(by_smtp, random.Random(seed))
    assert check_none_is_missing(by_smtp) == {}


def test_mails_by_smtp_are_doubled_only_if_the_settings_say_so(by_smtp: Memoing, seed: int) -> None:
    kill_every_second(by_smtp, random.Random(seed), FERRYMAN_EMAIL__IN_DOUBT="resend")
    assert set(check_none_is_missing(by_smtp)) <= in_doubt(by_smtp)


def test_mails_by_resend_arrive_once_however_often_workers_die(by_resend: Memoing, seed: int) -> None:
    kill_every_second(by_resend, random.Random(seed))
    assert check_none_is_missing(by_resend) == {}
