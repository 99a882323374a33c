"""An SMTP server for tests: it keeps the mails it accepts, and replies as it is told."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self, TypeVar

from ferryman.testing import places

ACCEPTED = "250 OK"
ACCEPTED_UNHEARD = "250 but the connection closes before the client is told"

Answered = TypeVar("Answered")

# aiosmtpd tells of each command, also after a test's output was closed.
logging.getLogger("mail.log").setLevel(logging.WARNING)

_MOST_AT_ONCE = 100
_COMMANDS = ("EHLO", "STARTTLS", "AUTH", "MAIL", "RCPT", "DATA", "RSET", "QUIT")


@dataclass(frozen=True, slots=True)
class ReceivedMail:
    """An accepted mail with its envelope."""

    sender: str
    recipients: tuple[str, ...]
    content: EmailMessage


class MailServer:
    """An SMTP server whose reply to each mail is decided by `answer`: "250 OK", "550 no such mailbox", ...

    `answer` may wait, which delays no other connection. If it raises, the connection closes without a reply. With
    ACCEPTED_UNHEARD the mail is kept, and the connection closes without a reply.

    `script` decides in the same way on each command before the text, by its name (CONNECT, EHLO, STARTTLS, AUTH, MAIL,
    RCPT, DATA, RSET, QUIT) and its argument; None is the usual reply. `tls` offers STARTTLS, or encrypts from the first
    byte if `implicit` is true. `login` is the user and the password that the server asks for.
    """

    def __init__(
        self,
        answer: Callable[[ReceivedMail], str] = lambda _: ACCEPTED,
        *,
        script: Callable[[str, str], str | None] = lambda _command, _argument: None,
        tls: ssl.SSLContext | None = None,
        implicit: bool = False,
        login: tuple[str, str] | None = None,
        size_limit: int | None = None,
    ) -> None:
        self.answer = answer
        self.script = script
        self.received: list[ReceivedMail] = []
        self.commands: list[str] = []
        """The name of each command, over all connections; CONNECT for each connection."""
        self.port = places.free_port()
        self._tls, self._implicit = tls, implicit
        self._login = login
        self._size_limit = size_limit

    @property
    def address(self) -> str:
        """The host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """The number of connections that clients have made."""
        return self.commands.count("CONNECT")

    def __enter__(self) -> Self:
        self._answering = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="mail-server")
        self._controller = _controller(
            self,
            ssl_context=self._tls if self._implicit else None,
            tls_context=None if self._implicit else self._tls,
            authenticator=self._authenticated if self._login else None,
            auth_require_tls=False,
            data_size_limit=self._size_limit,
        )
        self._controller.start()
        self.commands.clear()  # those of the controller's own connection
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()
        self._answering.shutdown(wait=False)  # a reply that waits for ever must not block the end

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        """Answer one mail; aiosmtpd calls this."""
        lines = envelope.content.replace(b"\r\n", b"\n")  # as before they were sent
        content = message_from_bytes(lines, policy=policy.default)
        assert isinstance(content, EmailMessage)
        mail = ReceivedMail(envelope.mail_from, tuple(envelope.rcpt_tos), content)
        reply = await self._wait_for(self._decide, mail)
        if reply == ACCEPTED_UNHEARD:
            raise asyncio.CancelledError  # aiosmtpd ends a cancelled session without a reply
        return reply

    async def scripted(self, command: str, argument: str, *, authenticated: bool) -> str | None:
        """Return the reply to a command, or None for the usual one."""
        self.commands.append(command)
        reply = await self._wait_for(self.script, command, argument)
        if reply is None and command == "MAIL" and self._login and not authenticated:
            return "530 5.7.0 Authentication required"
        return reply

    async def _wait_for(self, decide: Callable[..., Answered], *arguments: Any) -> Answered:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._answering, decide, *arguments)
        except Exception as died:  # this is how a test says that the server dies here
            raise asyncio.CancelledError from died

    def _decide(self, mail: ReceivedMail) -> str:
        """Reply to a mail. Keep it if it is accepted, even if the client has given up meanwhile."""
        reply = self.answer(mail)
        if reply.startswith("2"):
            self.received.append(mail)
        return reply

    def _authenticated(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, given: Any) -> Any:
        from aiosmtpd.smtp import AuthResult

        user, password = (each.decode() for each in given)
        return AuthResult(success=(user, password) == self._login, handled=False)


def _controller(server: MailServer, **settings: Any) -> Any:
    """Return the controller of a server whose sessions follow the script."""
    from aiosmtpd.controller import Controller

    session = _session_class(server)

    class Sessions(Controller):
        """A controller that makes these sessions."""

        def factory(self) -> Any:
            return session(self.handler, **self.SMTP_kwargs)

    return Sessions(server, hostname="127.0.0.1", port=server.port, **settings)


def _session_class(server: MailServer) -> Any:
    """Return a session of aiosmtpd's that asks the script about each command."""
    from aiosmtpd.smtp import SMTP

    def scripted(command: str) -> Any:
        usual = getattr(SMTP, "_handle_client" if command == "CONNECT" else f"smtp_{command}")

        async def method(self: Any, *argument: str | None) -> None:
            try:
                given = "".join(each or "" for each in argument)
                reply = await server.scripted(command, given, authenticated=bool(self.session.authenticated))
            except asyncio.CancelledError:
                self.transport.abort()
                raise
            if reply is None:
                await usual(self, *argument)
                return
            await self.push(reply)
            if command == "CONNECT" or reply.startswith("421"):
                self.transport.close()

        return method

    methods = {f"smtp_{command}": scripted(command) for command in _COMMANDS}
    return type("ScriptedSession", (SMTP,), {**methods, "_handle_client": scripted("CONNECT")})
