"""Memos with their mails, workers that send these, and the verdict of the server that got them."""

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ferryman.runtime.postgres import Connection
from ferryman.services.memos.memos import MemoInput, create_memo
from ferryman.testing.mail import MailServer
from ferryman.testing.resend import KEY, ResendServer
from support.launch import KillAt, Launched, Launcher
from support.published import PAYLOAD, poll_until


@dataclass
class Memoing:
    """The mails of `memos.email_outbox`, workers that send them, and the server that judges."""

    ferryman: Launcher
    database_url: str
    db: Connection
    server: MailServer | ResendServer
    env: dict[str, str] = field(default_factory=dict)
    mails: list[str] = field(default_factory=list)
    """The id of each mail that was recorded."""

    def environment(self, **more: str) -> dict[str, str]:
        provider = {
            "FERRYMAN_EMAIL__PROVIDER": "resend",
            "FERRYMAN_EMAIL__RESEND__URL": self.server.url,
            "FERRYMAN_EMAIL__RESEND__KEY": KEY,
        } if isinstance(self.server, ResendServer) else {
            "FERRYMAN_EMAIL__PROVIDER": "smtp",
            "FERRYMAN_EMAIL__SMTP__HOST": "127.0.0.1",
            "FERRYMAN_EMAIL__SMTP__PORT": str(self.server.port),
            "FERRYMAN_EMAIL__SMTP__TLS": "none",
        }  # fmt: skip
        return {
            "FERRYMAN_DATABASE_URL": self.database_url,
            "FERRYMAN_EMAIL__SENDER": "Memos <memos@example.com>",
            "FERRYMAN_MEMOS__BASE_SECONDS": "0.05",
            **provider, **self.env, **more,
        }  # fmt: skip

    @property
    def provider(self) -> str:
        """The host and port of the provider."""
        return self.server.url.removeprefix("http://") if isinstance(self.server, ResendServer) else self.server.address

    def start(self, kill_at: KillAt | None = None, /, **more: str) -> Launched:
        return self.ferryman.start("run", "memos", env=self.environment(**more), kill_at=kill_at)

    def run(self, *arguments: str, exit_code: int = 0) -> Launched:
        ran = self.ferryman.run(*arguments, env=self.environment())
        assert ran.wait() == exit_code, ran.transcript()
        return ran

    def write(self, *recipients: str) -> list[str]:
        """Record a memo for each recipient, with a mail whose subject has its number."""
        first = len(self.mails)
        made = [
            str(create_memo(self.db, MemoInput("HR", "people", f"No. {number}", recipient, PAYLOAD)).mail)
            for number, recipient in enumerate(recipients, first)
        ]
        self.mails += made
        return made

    def write_many(self, count: int) -> list[str]:
        first = len(self.mails)
        return self.write(*[f"reader-{number}@example.com" for number in range(first, first + count)])

    def row(self, mail: str) -> tuple[str, int, str]:
        """Return the state, the count and the error of a mail."""
        found = self.db.execute(
            "SELECT status, retry_count, coalesce(error_message, '') FROM memos.email_outbox WHERE id = %s", (mail,)
        ).fetchone()
        assert found is not None
        return found[0], found[1], found[2]

    def statuses(self) -> Counter[str]:
        return Counter(status for (status,) in self.db.execute("SELECT status FROM memos.email_outbox").fetchall())

    def held(self) -> set[str]:
        """Return the mails that wait for a person."""
        found = self.db.execute(
            "SELECT id::text FROM memos.email_outbox WHERE status = 'FAILED' AND error_message LIKE 'in doubt: %'"
        ).fetchall()
        return {mail for (mail,) in found}

    def readdress(self, mail: str, recipient: str) -> None:
        """Give a mail another recipient by SQL, which checks no address."""
        self.db.execute("UPDATE memos.email_outbox SET recipient_email = %s WHERE id = %s", (recipient, mail))

    def attempts(self, mail: str) -> list[tuple[str, str | None]]:
        """Return (outcome, code) of each attempt of a mail that has ended."""
        return self.db.execute(
            "SELECT outcome, code FROM ferryman.outbox_attempt "
            "WHERE row_id = %s AND ended_at IS NOT NULL ORDER BY number",
            (mail,),
        ).fetchall()

    def age(self, seconds: float = 3600.0, *statuses: str) -> None:
        """Move the last attempts of mails into the past, so that nobody waits for a lease or the next attempt."""
        self.db.execute(
            "UPDATE memos.email_outbox SET last_attempt_at = last_attempt_at - make_interval(secs => %s)"
            " WHERE status = ANY (%s)", (seconds, list(statuses or ("PENDING", "SENDING"))),
        )  # fmt: skip

    def await_statuses(self, by: Launched, seconds: float = 60, **wanted: int) -> None:
        by.until(lambda: self.statuses() == wanted, f"{wanted}", seconds)

    def stop(self, *running: Launched) -> None:
        for each in running:
            poll_until(lambda: '"started"' in each.stderr, "start")  # noqa: B023 - called before the next
            each.send(signal.SIGTERM)
        for each in running:
            assert each.wait() == 0, each.transcript()
            for secret in ("example.com", PAYLOAD, KEY):
                assert secret not in each.transcript()  # N14

    def received(self) -> Counter[int]:
        """Return how often each mail arrived, by its number, after checking that no other did."""
        subjects = (
            [each.content["subject"] for each in self.server.sent] if isinstance(self.server, ResendServer)
            else [str(each.content["Subject"]) for each in self.server.received]
        )  # fmt: skip
        numbers = Counter(int(subject.split()[2]) for subject in subjects)
        assert numbers.keys() <= set(range(len(self.mails))), "a mail that nobody recorded"
        return numbers

    def numbers(self, mails: set[str]) -> set[int]:
        return {self.mails.index(mail) for mail in mails}


def at(command: str, reply: str, recipient: str = "") -> Callable[[str, str], str | None]:
    """Return a script that gives this reply to this command, or only where it names a recipient."""
    return lambda given, argument: reply if given == command and recipient in argument else None
