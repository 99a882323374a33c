"""Mails by SMTP: a few kept connections, each with one mail at a time.

MAIL, RCPT, DATA and the text are sent singly. Only so is an error before the text, after which nothing was sent, told
from one inside it, after which nobody knows.
"""

import asyncio
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.headerregistry import Address

from aiosmtplib import SMTP, SMTPResponse, SMTPResponseException, SMTPServerDisconnected
from pydantic import SecretStr

from ferryman.channels.email.mail import Letter
from ferryman.channels.email.provider import CannotTell, LoneFailures
from ferryman.channels.email.replies import Stage, lost_outcome, reply_outcome
from ferryman.channels.email.smtp_connection import NotReady, SmtpConnection, SmtpConnector
from ferryman.channels.outcome import Code, Delivered, Outcome, Rejected
from ferryman.runtime.redaction import MASK
from ferryman.runtime.settings_email import Smtp

_KEPT_SECONDS = 20.0
"""The time that an idle connection is kept: less than servers and firewalls in between do."""
_LEADING_DOT = re.compile(rb"(?m)^\.")


class _ClosedMeanwhile(Exception):
    """A kept connection that turned out to be closed before the server was told of a mail."""


@dataclass(slots=True)
class _MailProgress:
    """The progress of one send. It is in step while the server and we agree on what comes next."""

    stage: Stage = Stage.CONNECT
    line: SmtpConnection | None = None
    in_step: bool = False


class SmtpProvider:
    """An SMTP server. It knows no keys, and cannot be asked."""

    window_seconds = 0.0
    settling_seconds = 0.0

    def __init__(self, settings: Smtp, sender: Address, timeout_seconds: float) -> None:
        self._settings = settings
        self._sender = sender.addr_spec
        self._timeout = timeout_seconds
        self._connector = SmtpConnector(settings)
        self._free = asyncio.Semaphore(settings.connections)
        self._idle: list[SmtpConnection] = []
        self._reaper: asyncio.TimerHandle | None = None
        self._lone = LoneFailures()

    async def open(self) -> None:
        self._connector.open()

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        idle, self._idle = self._idle, []
        await asyncio.gather(*[each.quit() for each in idle])

    def can_find(self, reference: str | None) -> bool:
        return False

    async def find(self, letter: Letter, reference: str | None) -> CannotTell:
        return CannotTell()

    async def send(self, letter: Letter) -> Outcome:
        progress = _MailProgress()
        try:
            async with asyncio.timeout(self._timeout), self._free:
                at = datetime.now(UTC)
                mime = await asyncio.to_thread(letter.mime, at) if letter.is_large else letter.mime(at)
                outcome = await self._exchange(letter, mime, progress)
        except TimeoutError:
            outcome = lost_outcome(progress.stage, f"no reply within {self._timeout:g} s", Code.TIMED_OUT)
        except NotReady as error:
            outcome = error.outcome
        except (SMTPServerDisconnected, OSError):
            outcome = lost_outcome(progress.stage, "the mail server closed the connection", Code.CONNECTION_LOST)
        finally:
            self._put_back(progress)
        if progress.stage is not Stage.CONNECT:
            outcome = self._lone.judged(letter.key, outcome)
        return _without(outcome, self._settings.password)

    async def _exchange(self, letter: Letter, mime: bytes, progress: _MailProgress) -> Outcome:
        """Send a mail, and once more on a new connection if a kept one turns out to be closed.

        A server may close an idle connection at any time, or after so many mails: that is no failure of this one.
        """
        try:
            progress.line = self._take() or await self._connector.connect()
            return await self._transact(progress.line, letter, mime, progress)
        except _ClosedMeanwhile:
            assert progress.line is not None
            progress.line.abort()
            progress.line, progress.stage = None, Stage.CONNECT
            progress.line = await self._connector.connect()
            return await self._transact(progress.line, letter, mime, progress)

    async def _transact(self, line: SmtpConnection, letter: Letter, mime: bytes, progress: _MailProgress) -> Outcome:
        client = line.client
        limit = client.esmtp_extensions.get("size", "").strip()
        if limit.isdecimal() and 0 < int(limit) < len(mime):
            progress.in_step = True
            words = f"the mail has {len(mime)} bytes, and the mail server takes {int(limit)}"
            return Rejected(words, Code.MAIL_TOO_LARGE)
        progress.stage = Stage.MAIL
        try:
            await self._begin(line, [f"SIZE={len(mime)}"] if limit else [])
            line.heed()
            progress.stage = Stage.RCPT
            await client.rcpt(letter.to.addr_spec)
            line.heed()
            progress.stage = Stage.DATA
            reply = await client.execute_command(b"DATA")
            line.heed()
            if reply.code == 354:
                reply = await _write(client, mime, progress)
        except SMTPResponseException as error:
            reply = SMTPResponse(error.code, error.message)
        outcome = reply_outcome(progress.stage, reply.code, reply.message, letter)
        line.stale = not isinstance(outcome, Delivered)
        progress.in_step = getattr(outcome, "code", None) is not Code.ANSWER_INVALID  # else it may say anything next
        return outcome

    async def _begin(self, line: SmtpConnection, options: list[str]) -> None:
        """Begin a mail on a connection, after the server has forgotten the one before."""
        try:
            if line.stale:
                await line.client.rset()
        except (SMTPResponseException, SMTPServerDisconnected, OSError) as error:
            raise _ClosedMeanwhile from error
        line.stale = True
        line.heed()
        try:
            await line.client.mail(self._sender, options=options)
        except (SMTPResponseException, SMTPServerDisconnected, OSError) as error:
            if line.kept and getattr(error, "code", 421) == 421:
                raise _ClosedMeanwhile from error
            raise

    # The connections.

    def _take(self) -> SmtpConnection | None:
        """Return the kept connection that was used last, if one is still open."""
        while self._idle:
            line = self._idle.pop()
            if line.client.is_connected:
                line.kept = True
                return line
        return None

    def _put_back(self, progress: _MailProgress) -> None:
        """Keep the connection of a send that ended with a reply. Close any other."""
        if (line := progress.line) is None:
            return
        if not progress.in_step or line.said_more or not line.client.is_connected:
            line.abort()
            return
        loop = asyncio.get_running_loop()
        line.used_at = loop.time()
        self._idle.append(line)
        if self._reaper is None:
            self._reaper = loop.call_later(_KEPT_SECONDS, self._reap)

    def _reap(self) -> None:
        """Close the connections that were idle for too long."""
        loop = asyncio.get_running_loop()
        self._reaper = None
        while self._idle and self._idle[0].used_at <= loop.time() - _KEPT_SECONDS:
            self._idle.pop(0).leave()
        if self._idle:
            self._reaper = loop.call_at(self._idle[0].used_at + _KEPT_SECONDS, self._reap)


async def _write(client: SMTP, mime: bytes, progress: _MailProgress) -> SMTPResponse:
    """Write the text and the final dot, and return the reply."""
    if client.protocol is None or not client.protocol.is_connected:
        raise SMTPServerDisconnected("the connection is closed")
    progress.stage = Stage.BODY
    client.protocol.write(_LEADING_DOT.sub(b"..", mime) + b".\r\n")
    return await client.protocol.read_response()


def _without(outcome: Outcome, password: SecretStr | None) -> Outcome:
    """Return the outcome without the password, which a server may repeat."""
    secret = password.get_secret_value() if password else ""
    shown = {name: getattr(outcome, name, None) for name in ("error", "excerpt")}
    hidden = {
        name: words.replace(secret, MASK) for name, words in shown.items() if words and secret and secret in words
    }
    return replace(outcome, **hidden)
