"""The meaning of an error that came before there was an answer. The words name no address, and repeat no answer."""

import errno
import socket
from typing import Any

import aiohttp

from ferryman.channels.outcome import Code, Outcome, Rejected, Retry, Unavailable
from ferryman.runtime.redaction import stored_error
from ferryman.runtime.settings_http import Http

_OUR_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

# The first that fits counts.
_KINDS: tuple[tuple[type[Exception], Code, str], ...] = (
    (aiohttp.ConnectionTimeoutError, Code.CONNECTION_TIMED_OUT, "no connection within {connect:g} s"),
    (TimeoutError, Code.TIMED_OUT, "no answer within {total:g} s"),
    (aiohttp.ClientConnectorDNSError, Code.NAME_NOT_RESOLVED, "the name of the host is not resolved: {reason}"),
    (aiohttp.ClientConnectorCertificateError, Code.TLS_FAILED, "no TLS connection: {reason}"),
    (aiohttp.ClientSSLError, Code.TLS_FAILED, "no TLS connection: {reason}"),
    (aiohttp.ClientConnectorError, Code.CONNECTION_FAILED, "no connection: {reason}"),
    (
        aiohttp.ClientResponseError,
        Code.ANSWER_INVALID,
        "the answer is not valid HTTP, or has too many or too long headers",
    ),
    (Exception, Code.CONNECTION_LOST, "the connection was closed before there was an answer"),
)


def no_answer(error: Exception, settings: Http) -> Outcome:
    """Return what an error means that came before there was an answer."""
    if isinstance(error, aiohttp.InvalidURL):
        return Rejected("the host in the URL is not a valid name or address", Code.URL_INVALID)
    code, words = next((code, words) for kind, code, words in _KINDS if isinstance(error, kind))
    told = stored_error(
        words.format(
            connect=settings.connect_timeout_seconds, total=settings.timeout_seconds, reason=_reason(error, code)
        )
    )
    if getattr(error, "errno", None) in _OUR_LIMITS:
        return Unavailable(f"{told}: this process has no more", code)
    return Retry(told, code)


def _reason(error: Any, code: Code) -> str:
    """Return the reason without the address: the words of the TLS library, or the system's name of its number."""
    match code:
        case Code.TLS_FAILED if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return getattr(error.certificate_error, "verify_message", None) or "the certificate is not valid"
        case Code.TLS_FAILED:
            return error.os_error.reason or "the handshake failed"
        case Code.NAME_NOT_RESOLVED:
            return "there is no such name" if error.os_error.errno == socket.EAI_NONAME else "DNS gave no answer"
        case _:
            return errno.errorcode.get(getattr(error, "errno", None) or 0, "refused or closed")


def is_before_any_answer(error: Exception) -> bool:
    """Return True if a kept connection was closed before the first byte of an answer."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return False  # there was no connection
    return not isinstance(error, aiohttp.ServerDisconnectedError) or isinstance(error.message, str)
