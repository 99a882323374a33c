"""An SMTP server for tests: it keeps the mails it accepts, and replies as it is told."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self

from ferryman.testing import places

ACCEPTED = "250 OK"

_MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Mail:
    """An accepted mail with its envelope."""

    sender: str
    recipients: tuple[str, ...]
    content: EmailMessage


class MailServer:
    """An SMTP server whose reply to each mail is decided by `answer`: "250 OK", "550 no such mailbox", ...

    `answer` may wait, which delays no other connection. If it raises, the connection closes without a reply.
    """

    def __init__(self, answer: Callable[[Mail], str] = lambda _: ACCEPTED) -> None:
        self.answer = answer
        self.received: list[Mail] = []
        self.port = places.free_port()

    @property
    def address(self) -> str:
        """The host and port."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        from aiosmtpd.controller import Controller

        self._answering = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="mail-server")
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()
        self._answering.shutdown(wait=False)  # a reply that waits for ever must not block the end

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        """Answer one mail; aiosmtpd calls this."""
        lines = envelope.content.replace(b"\r\n", b"\n")  # as before they were sent
        content = message_from_bytes(lines, policy=policy.default)
        assert isinstance(content, EmailMessage)
        mail = Mail(envelope.mail_from, tuple(envelope.rcpt_tos), content)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._answering, self._decide, mail)
        except Exception as died:  # this is how a test says that the server dies here
            raise asyncio.CancelledError from died  # aiosmtpd ends a cancelled session without a reply

    def _decide(self, mail: Mail) -> str:
        """Reply to a mail. Keep it if it is accepted, even if the client has given up meanwhile."""
        reply = self.answer(mail)
        if reply.startswith("2"):
            self.received.append(mail)
        return reply
