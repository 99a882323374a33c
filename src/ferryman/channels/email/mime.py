"""The bytes of a message, written as they are.

The library's classes parse each header that they write. That takes twice as long as to send the mail, so they are used
for subjects that need encoding alone. Everything is ASCII: no server has to offer 8BITMIME.
"""

import binascii
from datetime import datetime
from email.header import Header
from email.policy import SMTP
from email.utils import format_datetime
from functools import lru_cache

_POLICY = SMTP.clone(cte_type="7bit", refold_source="none")
_SHORT_CHARACTERS = 70
_MOST_LINE_BYTES = 78
_BASE64_BYTES = 57
"""The bytes that one line of base64 holds."""


def message(
    *, sender: str, to: str, subject: str, at: datetime, message_id: str, text: str, html: str | None, boundary: str
) -> bytes:
    """Return a message whose parts are checked: none of them can become a header. The text has at least one line."""
    head = (
        f"From: {_folded('From', sender)}\r\nTo: {to}\r\nSubject: {_subject(subject)}\r\n"
        f"Date: {format_datetime(at)}\r\nMessage-ID: {message_id}\r\nMIME-Version: 1.0\r\n"
    ).encode()
    if html is None:
        return head + _part("plain", text)
    line = f"--{boundary}\r\n".encode()
    content = f'Content-Type: multipart/alternative; boundary="{boundary}"\r\n\r\n'.encode()
    end = f"\r\n--{boundary}--\r\n".encode()
    return head + content + line + _part("plain", text) + b"\r\n" + line + _part("html", html) + end


def _subject(subject: str) -> str:
    if "=?" in subject:  # the library would take it for encoded already
        return Header(subject, "utf-8", header_name="Subject").encode(linesep="\r\n")
    if subject.isascii() and len(subject) < _SHORT_CHARACTERS:
        return subject
    return _encoded("Subject", subject)


@lru_cache(maxsize=4)
def _folded(name: str, value: str) -> str:
    """Return a header's value. There is one sender for a process."""
    return _encoded(name, value)


def _encoded(name: str, value: str) -> str:
    """Return a header's value, in lines that are short enough and without letters outside ASCII."""
    folded: str = _POLICY.fold(name, _POLICY.header_factory(name, value))
    return folded.partition(": ")[2].rstrip("\r\n")


def _part(kind: str, text: str) -> bytes:
    """Return a text with its headers: as it is, or else in the shorter of two encodings."""
    lines = text.encode().splitlines()
    plain = b"\r\n".join(lines) + b"\r\n"
    encoding, content = "7bit", plain
    if not plain.isascii() or max(map(len, lines), default=0) > _MOST_LINE_BYTES:
        encoding, content = "quoted-printable", binascii.b2a_qp(plain)
        if len(content) * 2 > len(plain) * 3:
            encoding, content = "base64", _base64(plain)
    head = f'Content-Type: text/{kind}; charset="utf-8"\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n'
    return head.encode() + content


def _base64(content: bytes) -> bytes:
    chunks = (content[first : first + _BASE64_BYTES] for first in range(0, len(content), _BASE64_BYTES))
    return b"".join(binascii.b2a_base64(chunk, newline=False) + b"\r\n" for chunk in chunks)
