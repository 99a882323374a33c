"""Mails through the e-mail channel, the settings for it, and places where mails arrive."""

import asyncio
import hashlib
import json
import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from ferryman.channels.email import email_channel
from ferryman.channels.model import Doubt, Mail
from ferryman.channels.outcome import Outcome
from ferryman.runtime.settings_email import Email
from ferryman.runtime.settings_http import Http
from ferryman.testing.mail import MailServer
from ferryman.testing.resend import KEY, ResendServer
from support.answering import certificate

SENDER = "Shop <shop@example.com>"
SECRETS = ("ann@example.com", "Order 7 is on its way", "Dear Ann", "geheim-4711", KEY)
"""Texts that no outcome and no line of the log may show."""


def mail(to: str = "ann@example.com", subject: str = "Order 7 is on its way", **more: Any) -> Mail:
    given: dict[str, Any] = {
        "text": "Dear Ann,\n.\nit costs 7 €.\n",
        "key": hashlib.sha256(f"{to} {subject}".encode()).hexdigest(),
    }
    return Mail(to, subject, **{**given, **more})


def in_doubt(item: Mail, age_seconds: float = 60.0, reference: str | None = None) -> Mail:
    return Mail(item.to, item.subject, item.text, item.html, item.key, item.edition, Doubt(age_seconds, reference))


def email(provider: str, **more: Any) -> Email:
    return Email.model_validate({"provider": provider, "sender": SENDER, "timeout_seconds": 10, **more})


def by_smtp(server: MailServer | int, *, tls: str = "none", ca_file: object = None, **more: Any) -> Email:
    """Return the settings of a server on this machine. `user`, `password` and `connections` are those of SMTP."""
    own = {name: more.pop(name) for name in ("user", "password", "connections") if name in more}
    port = server if isinstance(server, int) else server.port
    trusted = str(ca_file) if ca_file else None
    return email("smtp", smtp={**own, "host": "127.0.0.1", "port": port, "tls": tls, "ca_file": trusted}, **more)


def by_resend(server: ResendServer, *, key: str = KEY, **more: Any) -> Email:
    return email("resend", resend={"url": server.url, "key": key}, **more)


def mailed(*mails: Mail, settings: Email, at_once: bool = False) -> list[Outcome]:
    """Send mails by one channel, one after the other or all at once, and return their outcomes."""

    async def send() -> list[Outcome]:
        channel = email_channel(settings, Http(), 64)
        await channel.open()
        try:
            if at_once:
                return list(await asyncio.gather(*map(channel.send, mails)))
            return [await channel.send(each) for each in mails]
        finally:
            await channel.close()

    return asyncio.run(send())


def tls_server(folder: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """Return a context with a certificate for these addresses, and the file to trust it by."""
    file = certificate(folder, *names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context, file


@dataclass
class MailPlace:
    """A provider's other side: the settings that lead to it, and what arrived there."""

    name: str
    settings: Email
    received: Callable[[], list[tuple[str, str, str]]]
    """The recipient, the subject and the text of each mail that arrived."""
    go_away: Callable[[], object]


@contextmanager
def mail_place(name: str, folder: Path) -> Iterator[MailPlace]:
    with ExitStack() as running:
        if name == "smtp":
            server = running.enter_context(MailServer())
            yield MailPlace(
                name, by_smtp(server), lambda: [_read(each.content) for each in server.received], running.close
            )
        elif name == "resend":
            resend = running.enter_context(ResendServer())
            yield MailPlace(
                name, by_resend(resend), lambda: [_sent(each.content) for each in resend.sent], running.close
            )
        else:
            into = folder / "mails"
            settings = email("file", path=str(into))
            yield MailPlace(
                name, settings, lambda: [_parsed(each) for each in into.glob("*.eml")], lambda: _spoil(into)
            )


def _spoil(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("no folder any more")


def _sent(content: dict[str, Any]) -> tuple[str, str, str]:
    return content["to"][0], content["subject"], content["text"]


def _parsed(file: Path) -> tuple[str, str, str]:
    content = message_from_bytes(file.read_bytes().replace(b"\r\n", b"\n"), policy=policy.default)
    assert isinstance(content, EmailMessage)
    return _read(content)


def _read(content: EmailMessage) -> tuple[str, str, str]:
    body = content.get_body(("plain",))
    assert body is not None
    return content["To"], content["Subject"], body.get_content().replace("\r\n", "\n")


def as_json(outcome: Outcome) -> str:
    """Return all that an outcome shows."""
    return json.dumps({name: str(getattr(outcome, name)) for name in outcome.__dataclass_fields__})
