"""The memos demo: a worker is killed when the mail server has just taken a mail, and a person decides on that mail."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from ferryman.demo.stage import DemoStage, until
from ferryman.migrations.chains import ENGINE
from ferryman.services.memos.memos import MemoInput, create_memo
from ferryman.testing import places, postgres, stack
from ferryman.testing.mail import ACCEPTED, MailServer, ReceivedMail
from ferryman.testing.parts import Reach

MEMOS = 20
_KILLED_AT = 8
_STATUSES = "-- demo.mails\nSELECT status, count(*) FROM memos.email_outbox GROUP BY status"
_HELD = (
    "-- demo.held\nSELECT id::text FROM memos.email_outbox WHERE status = 'FAILED' AND error_message LIKE 'in doubt%'"
)
_RECIPIENT = "-- demo.recipient\nSELECT recipient_email FROM memos.email_outbox WHERE id = %s"
# The lease of a killed worker ends by itself after a minute.
_EXPIRE = """\
-- demo.expire
UPDATE memos.email_outbox SET last_attempt_at = last_attempt_at - interval '1 h' WHERE status = 'SENDING'
"""


@dataclass(frozen=True, slots=True)
class MailingOutcome:
    """The mails at the end: in the database, and as the mail server has them."""

    parts: tuple[str, ...]
    ready_seconds: float
    memos: int
    statuses: dict[str, int]
    received: int
    missing: int
    doubled: int
    held: int

    @property
    def good(self) -> bool:
        """True if every memo's mail was received once and is SENT, and the one in doubt was held for a person."""
        return self.statuses == {"SENT": self.memos} and not self.missing and not self.doubled and self.held >= 1

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as JSON data."""
        return {"verdict": "ok" if self.good else "wrong", **asdict(self)}


def run(reach: Reach, inherited: Mapping[str, str], tell: Callable[[str], None]) -> MailingOutcome:
    """Run the demo on servers of its own, and tell each step."""
    began = time.monotonic()
    folder = places.scratch("demo")
    server, climb = postgres.find(reach=reach)
    try:
        url = stack.new_database(server.url, stack.DATABASE)
        stack.migrate(url, (ENGINE, "memos"))
        ready_seconds = time.monotonic() - began
        tell(f"{climb}\nPostgreSQL is ready after {ready_seconds:.1f} s\n")
        with MailServer() as mails, psycopg.connect(url, autocommit=True) as db:
            acts = DemoStage(
                folder, inherited, DATABASE_URL=url, EMAIL__PROVIDER="smtp", EMAIL__SENDER="memos@example.com",
                EMAIL__SMTP__HOST="127.0.0.1", EMAIL__SMTP__PORT=str(mails.port), EMAIL__SMTP__TLS="none",
                EMAIL__SMTP__CONNECTIONS="2",
            )  # fmt: skip
            held = _play(db, mails, acts, tell)
            statuses: dict[str, int] = dict(db.execute(_STATUSES).fetchall())
            received = Counter(str(each.content["Subject"]) for each in mails.received)
        wanted = {f"Memo No. {n} Created" for n in range(MEMOS)}
        return MailingOutcome(
            (str(climb),), round(ready_seconds, 2), MEMOS, statuses, received.total(), len(wanted - set(received)),
            received.total() - len(received), held,
        )  # fmt: skip
    finally:
        server.close()
        places.discard(folder)


def _play(db: "psycopg.Connection[Any]", mails: MailServer, acts: DemoStage, tell: Callable[[str], None]) -> int:
    """Play the three acts. Return how many mails were held."""
    with db.transaction():
        for n in range(MEMOS):
            create_memo(db, MemoInput("DEMO", "people", f"No. {n}", f"reader-{n}@example.com", "Please read."))
    tell(f"{MEMOS} memos are recorded, each with its mail, in one transaction")

    worker = acts.process("memos-1", "run", "memos")
    worker.launch()
    pid = worker.pid or 0

    def killing(_: ReceivedMail) -> str:
        if len(mails.received) + 1 == _KILLED_AT:
            os.kill(pid, signal.SIGKILL)
        return ACCEPTED

    mails.answer = killing
    until(lambda: worker.pid is None, "the worker's end")
    tell(f"the worker was killed with -9 when the mail server had just taken mail {_KILLED_AT}: it is not SENT")
    mails.answer = lambda _: ACCEPTED
    db.execute(_EXPIRE)
    second = acts.process("memos-2", "run", "memos")
    second.start()
    try:
        until(lambda: not {"PENDING", "SENDING"} & dict(db.execute(_STATUSES).fetchall()).keys(), "the other mails")
    finally:
        second.stop()
    held = [identity for (identity,) in db.execute(_HELD).fetchall()]
    tell(f"another worker sent the rest; {len(held)} in doubt: SMTP cannot tell whether they arrived, so they are held")
    for number, identity in enumerate(held):
        if not number:
            shown = acts.output("outbox", "show", "--outbox", "memos", identity)
            tell(f"\n$ ferryman outbox show --outbox memos {identity}\n{shown}\n")
        arrived = _arrived(db, mails, identity)
        said = ("--sent", "the mail server has it") if arrived else ("--resend", "the mail server does not have it")
        acts.output("outbox", "resolve", "memos", "--id", identity, said[0], "--yes", "--reason", said[1])
        tell(f"$ ferryman outbox resolve memos --id {identity} {said[0]} --yes --reason '{said[1]}'")
    acts.output("drain", "memos")
    return len(held)


def _arrived(db: "psycopg.Connection[Any]", mails: MailServer, identity: str) -> bool:
    """Return True if the mail server has the mail of this row: a person would look there."""
    row = db.execute(_RECIPIENT, (identity,)).fetchone()
    return row is not None and any(row[0] in each.recipients for each in mails.received)
