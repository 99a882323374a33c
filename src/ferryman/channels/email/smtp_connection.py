"""Connections to an SMTP server: encrypted as the settings say, and logged in."""

import asyncio
import errno
import re
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiosmtplib import (
    SMTP,
    SMTPConnectError,
    SMTPException,
    SMTPHeloError,
    SMTPResponseException,
    SMTPServerDisconnected,
    SMTPStatus,
)

from ferryman.channels.email.mail import told
from ferryman.channels.lookup import DaemonLookups, Lookup
from ferryman.channels.outcome import Code, Unavailable
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_email import Smtp

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_QUIT_SECONDS = 1.0
_LOGIN_REST_SECONDS = 10.0
"""After a refused login the server is left alone for so long: it may lock the user out."""
_ADDRESS_SECONDS = 5.0
"""After so long without an answer, the next address of the host is tried."""
_THREADS_PER_CONNECTION = 2
_HOST_NAME = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")


class NotReady(Exception):
    """A connection that cannot be used, with the outcome of whoever wanted it."""

    def __init__(self, outcome: Unavailable) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


@dataclass(slots=True, eq=False)
class SmtpConnection:
    """A connection, when it was last used, and whether the server still remembers a mail that it refused."""

    client: SMTP
    transport: asyncio.BaseTransport | None
    used_at: float
    kept: bool = False
    stale: bool = False

    @property
    def said_more(self) -> bool:
        """True if the server has said more than it was asked: the rest would pass for its next replies."""
        return self.client.protocol is not None and bool(self.client.protocol._buffer)  # noqa: SLF001 - the library keeps it for the next command

    def heed(self) -> None:
        """Raise an error if the server has said more than it was asked."""
        if self.said_more:
            raise SMTPResponseException(SMTPStatus.invalid_response, "and more than it was asked")

    def abort(self) -> None:
        """Close without waiting for the server, whatever is unsent."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        self.client.close()

    def leave(self) -> None:
        """Say QUIT and close, without waiting for the reply."""
        with suppress(SMTPServerDisconnected):
            if self.client.protocol is not None:
                self.client.protocol.write(b"QUIT\r\n")
        self.client.close()

    async def quit(self) -> None:
        """Say QUIT, wait a moment for the reply, and close."""
        with suppress(SMTPException, OSError):
            async with asyncio.timeout(_QUIT_SECONDS):
                await self.client.quit()
        self.abort()


class SmtpConnector:
    """Makes connections. Everything that prevents one is the outcome of whoever wanted it."""

    def __init__(self, settings: Smtp, lookup: Lookup = socket.getaddrinfo) -> None:
        self._settings = settings
        self._lookups = DaemonLookups(settings.connections * _THREADS_PER_CONNECTION, lookup)
        self._tls: ssl.SSLContext | None = None
        self._refused: tuple[float, Unavailable] | None = None

    def open(self) -> None:
        """Read the certificates to trust."""
        if self._settings.tls == "none":
            return
        try:
            self._tls = ssl.create_default_context(cafile=self._settings.ca_file)
        except OSError as error:  # SSLError is one
            raise Misconfigured(
                f"cannot read certificates from {self._settings.ca_file}", setting="email.smtp.ca_file",
                remedy="name a file with certificates in PEM format",
            ) from error  # fmt: skip

    async def connect(self) -> SmtpConnection:
        """Connect, encrypt as the settings say, and log in. Raise `NotReady` if that fails."""
        loop = asyncio.get_running_loop()
        if self._refused is not None and loop.time() < self._refused[0]:
            raise NotReady(self._refused[1])
        host, port = self._settings.host or "", self._settings.port or _PORTS[self._settings.tls]
        client = SMTP(
            hostname=host,
            sock=await self._dialled(host, port),
            timeout=None,  # that of the whole send counts
            use_tls=self._settings.tls == "tls",
            start_tls=False,
            tls_context=self._tls,
            local_hostname=_own_name(),
        )
        line = None
        try:
            await _open(client)
            line = SmtpConnection(client, client.transport, loop.time())
            if self._settings.tls == "starttls":
                await _encrypt(client)
                line.transport = client.transport
            await _greet(client)
            await self._log_in(client)
        except BaseException:
            if line is not None:
                line.abort()
            raise
        return line

    async def _dialled(self, host: str, port: int) -> socket.socket:
        """Return a socket that is connected to the first address of the host that answers."""
        error: OSError = OSError()
        try:
            for family, kind, protocol, _, where in await self._lookups.find(host, port):
                try:
                    return await _connected(socket.socket(family, kind, protocol), where)
                except OSError as failed:
                    error = failed
        except socket.gaierror as unknown:
            raise _not_ready("the name in email.smtp.host is not resolved", Code.NAME_NOT_RESOLVED) from unknown
        except OSError as failed:
            error = failed
        reason = "no answer" if isinstance(error, TimeoutError) else errno.errorcode.get(error.errno or 0, "refused")
        raise _not_ready(f"no connection to the mail server: {reason}", Code.CONNECTION_FAILED) from error

    async def _log_in(self, client: SMTP) -> None:
        user, password = self._settings.user, self._settings.password
        if user is None or password is None:
            return
        named = "email.smtp.user and email.smtp.password"
        try:
            await client.login(user, password.get_secret_value())
        except SMTPServerDisconnected as error:
            raise _not_ready("the mail server closed the connection at the login", Code.CONNECTION_LOST) from error
        except SMTPResponseException as error:
            words = f"{error.code} {told(error.message, user)}"
            if error.code < 500:
                raise _not_ready(f"the mail server takes no login now: {words}", Code.SERVER_BUSY) from error
            said = f"the mail server answered the login with {words}: it does not accept {named}"
            refused = _not_ready(said, Code.LOGIN_REFUSED)
            self._refused = (asyncio.get_running_loop().time() + _LOGIN_REST_SECONDS, refused.outcome)
            raise refused from error
        except (SMTPException, ValueError) as error:
            words = f"the mail server offers no login that Ferryman knows, and {named} are set"
            raise _not_ready(words, Code.LOGIN_REFUSED) from error


async def _connected(sock: socket.socket, where: Any) -> socket.socket:
    """Connect a socket, or close it."""
    try:
        sock.setblocking(False)
        async with asyncio.timeout(_ADDRESS_SECONDS):
            await asyncio.get_running_loop().sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


async def _open(client: SMTP) -> None:
    """Read the greeting, after TLS has begun if the client is made so."""
    try:
        await client.connect()
    except SMTPResponseException as error:
        words = f"the mail server refused the connection: {error.code} {told(error.message)}"
        raise _not_ready(words, Code.SERVER_BUSY if error.code > 0 else Code.ANSWER_INVALID) from error
    except (SMTPConnectError, OSError) as error:
        if isinstance(error.__cause__, ssl.SSLError):
            words = f"no TLS connection to the mail server: {_tls_reason(error.__cause__)}"
            raise _not_ready(words, Code.TLS_FAILED) from error
        raise _not_ready("the mail server closed the connection at once", Code.CONNECTION_LOST) from error


async def _encrypt(client: SMTP) -> None:
    """Encrypt the connection by STARTTLS, or give it up: nothing is sent in the clear."""
    try:
        await client.starttls()
    except SMTPHeloError as error:
        raise _not_ready(f"the mail server refused EHLO: {error.code} {told(error.message)}") from error
    except SMTPResponseException as error:
        words = f"the mail server refused STARTTLS: {error.code} {told(error.message)}"
        raise _not_ready(words, Code.TLS_FAILED) from error
    except ssl.SSLError as error:
        words = f"no TLS connection to the mail server: {_tls_reason(error)}"
        raise _not_ready(words, Code.TLS_FAILED) from error
    except (SMTPServerDisconnected, OSError) as error:
        raise _not_ready("the mail server closed the connection at STARTTLS", Code.TLS_FAILED) from error
    except SMTPException as error:
        words = "the mail server offers no STARTTLS, and email.smtp.tls asks for it: nothing is sent in the clear"
        raise _not_ready(words, Code.TLS_FAILED) from error


async def _greet(client: SMTP) -> None:
    """Ask what the server offers. One that knows no EHLO is asked for nothing."""
    try:
        if client.is_ehlo_or_helo_needed:
            await client.ehlo()
    except SMTPResponseException as error:
        if not 500 <= error.code <= 504:
            raise _not_ready(f"the mail server refused EHLO: {error.code} {told(error.message)}") from error
        with suppress(SMTPResponseException):  # then MAIL says why
            await client.helo()


def _not_ready(words: str, code: Code = Code.SERVER_BUSY) -> NotReady:
    return NotReady(Unavailable(words, code))


def _tls_reason(error: ssl.SSLError) -> str:
    return getattr(error, "verify_message", None) or error.reason or "the handshake failed"


def _own_name() -> str:
    """Return the name for EHLO. A full name would need DNS, which may hang."""
    name = socket.gethostname()
    return name if _HOST_NAME.fullmatch(name) else "[127.0.0.1]"
