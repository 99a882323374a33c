"""An SMTP server as a part: it keeps what it receives, and refuses what it is told to."""

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
    """One accepted message, with its envelope."""

    sender: str
    recipients: tuple[str, ...]
    content: EmailMessage


class MailServer:
    """`answer` decides on each message: an SMTP reply such as "550 no such mailbox".

    It may also wait, which holds up nobody else, or raise, and the connection then closes without an answer.
    """

    def __init__(self, answer: Callable[[Mail], str] = lambda _: ACCEPTED) -> None:
        self.answer = answer
        self.received: list[Mail] = []
        self.port = places.free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        from aiosmtpd.controller import Controller

        self._answering = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="mail-server")
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()
        self._answering.shutdown(wait=False)  # an answer that waits for ever does not hold up the end

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        lines = envelope.content.replace(b"\r\n", b"\n")  # as they were before they were sent
        content = message_from_bytes(lines, policy=policy.default)
        assert isinstance(content, EmailMessage)
        mail = Mail(envelope.mail_from, tuple(envelope.rcpt_tos), content)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._answering, self._decide, mail)
        except Exception as died:  # the test's way to say: the server died here
            raise asyncio.CancelledError from died  # aiosmtpd ends a cancelled session without a word

    def _decide(self, mail: Mail) -> str:
        """What is accepted is kept, also when the client does not wait for the answer any more."""
        reply = self.answer(mail)
        if reply.startswith("2"):
            self.received.append(mail)
        return reply
