"""An SMTP server as a part: it keeps what it receives, and refuses what it is told to."""

from collections.abc import Callable
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self

from ferryman.testing import places

ACCEPTED = "250 OK"


@dataclass(frozen=True, slots=True)
class Mail:
    """One accepted message, with its envelope."""

    sender: str
    recipients: tuple[str, ...]
    content: EmailMessage


class MailServer:
    """`answer` decides on each message: an SMTP reply such as "550 no such mailbox"; it may also raise or wait."""

    def __init__(self, answer: Callable[[Mail], str] = lambda _: ACCEPTED) -> None:
        from aiosmtpd.controller import Controller

        self.answer = answer
        self.received: list[Mail] = []
        self.port = places.free_port()
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        content = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(content, EmailMessage)
        mail = Mail(envelope.mail_from, tuple(envelope.rcpt_tos), content)
        reply = self.answer(mail)
        if reply.startswith("2"):
            self.received.append(mail)
        return reply
