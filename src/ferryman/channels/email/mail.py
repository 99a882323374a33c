"""Checked mails: everything about a mail that can be wrong is found here, before there is a connection.

The words of an error never hold an address or a text: they are stored, shown and logged.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from email.headerregistry import Address

import idna

from ferryman.channels.email.mime import message
from ferryman.channels.model import InvalidMail, Mail, MailPart
from ferryman.channels.outcome import Code, Rejected
from ferryman.runtime.redaction import MASK, stored_error

_MOST_ADDRESS_CHARACTERS = 254
_MOST_LOCAL_CHARACTERS = 64
_MOST_DOMAIN_CHARACTERS = 253
_MOST_SUBJECT_CHARACTERS = 998
_MOST_TOLD_CHARACTERS = 300

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")
_NAMED = re.compile(r"(?P<name>[^<>]*)<(?P<address>[^<>]*)>")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_KEY = re.compile(r"[A-Za-z0-9_-]{1,200}")
_LARGE_BYTES = 1 << 18

_ADDRESS_LIKE = re.compile(r"[^\s<>()\[\],;:\"']*@[^\s<>()\[\],;:\"']*")
_IP_LIKE = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|(?<![\w:])(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Letter:
    """A mail that can be sent: addresses in ASCII, no text that could become a header, and not too large."""

    key: str
    sender: Address = field(repr=False)
    to: Address = field(repr=False)
    subject: str = field(repr=False)
    text: str = field(repr=False)
    html: str | None = field(default=None, repr=False)

    @property
    def is_large(self) -> bool:
        """True if making its MIME takes so long that other sends would wait for it."""
        return len(self.text) + len(self.html or "") > _LARGE_BYTES

    @property
    def message_id(self) -> str:
        """The header Message-ID of each attempt."""
        return f"<{self.key}@{self.sender.domain}>"

    def mime(self, at: datetime) -> bytes:
        """Return the message of an attempt at this time. But for its Date, each attempt has the same bytes."""
        return message(
            sender=str(self.sender), to=self.to.addr_spec, subject=self.subject, at=at, message_id=self.message_id,
            text=self.text, html=self.html, boundary=f"={self.key[:60]}=",
        )  # fmt: skip

    def told(self, words: str) -> str:
        """Return a server's words without addresses, as the database may hold them."""
        hidden = [str(self.to.addr_spec), self.subject]
        if len(self.to.username) > 2:
            hidden.append(self.to.username)
        return told(words, *hidden)


def letter_of(mail: Mail, sender: Address, max_bytes: int) -> Letter | Rejected:
    """Return the mail as it can be sent, or why it cannot."""
    try:
        if not _KEY.fullmatch(mail.key):
            words = "the key of the mail must be 1 to 200 letters, digits, - or _: a courier fills it in"
            raise InvalidMail(words, "key")
        return Letter(mail.key, sender, checked(mail, max_bytes), mail.subject, mail.text, mail.html)
    except InvalidMail as error:
        return Rejected(error.message, error.code)


def checked(mail: Mail, max_bytes: int) -> Address:
    """Return the recipient of a mail that can be sent. Raise `InvalidMail` if it cannot."""
    _check_subject(mail.subject)
    size = _bytes(mail.subject, "subject") + _bytes(mail.text, "text") + _bytes(mail.html or "", "html")
    if size > max_bytes:
        words = f"subject, text and HTML have {size} bytes, and email.max_bytes allows {max_bytes}"
        raise InvalidMail(words, "text", Code.MAIL_TOO_LARGE)
    return address_of(mail.to)


def address_of(text: str) -> Address:
    """Return an address whose domain is in A-labels. Raise `InvalidMail` if it is not exactly one address."""
    if not text:
        raise InvalidMail("the address is empty")
    if len(text) > _MOST_ADDRESS_CHARACTERS:
        raise InvalidMail(f"the address has {len(text)} characters: more than {_MOST_ADDRESS_CHARACTERS}")
    local, _, domain = text.partition("@")
    if text.count("@") != 1:
        raise InvalidMail(f"the address has {text.count('@') or 'no'} @, and needs exactly one")
    if not _LOCAL.fullmatch(local) or len(local) > _MOST_LOCAL_CHARACTERS:
        raise InvalidMail(
            "the part of the address before the @ is not valid: letters, digits and the marks that need no quotes, "
            f"in ASCII, at most {_MOST_LOCAL_CHARACTERS}"
        )
    return Address(username=local, domain=_a_labels(domain))


def sender_of(text: str) -> Address:
    """Return the address of `shop@example.com` or `Shop <shop@example.com>`, with the name."""
    named = _NAMED.fullmatch(text.strip())
    if named is None:
        return address_of(text.strip())
    name = named["name"].strip().removeprefix('"').removesuffix('"')
    if _CONTROL.search(name) or '"' in name:
        raise InvalidMail("the name has a character that a header cannot have")
    address = address_of(named["address"].strip())
    return Address(name, address.username, address.domain)


def told(words: str, *hidden: str) -> str:
    """Return the words of a server without addresses and the hidden texts: one line, no secret, not too long."""
    text = words[: 4 * _MOST_TOLD_CHARACTERS]
    for each in hidden:
        if each.strip() and each.lower() in text.lower():
            text = re.sub(re.escape(each), MASK, text, flags=re.IGNORECASE)
    text = _IP_LIKE.sub(MASK, _ADDRESS_LIKE.sub(MASK, text))
    return stored_error(text.encode("utf-8", "replace").decode())[:_MOST_TOLD_CHARACTERS]


def _a_labels(domain: str) -> str:
    try:
        ascii_domain = domain.lower() if domain.isascii() else idna.encode(domain, uts46=True).decode("ascii")
    except idna.IDNAError:
        ascii_domain = ""
    if len(ascii_domain) > _MOST_DOMAIN_CHARACTERS or not _DOMAIN.fullmatch(ascii_domain):
        raise InvalidMail("the domain of the address is not valid")
    return ascii_domain


def _check_subject(subject: str) -> None:
    if len(subject) > _MOST_SUBJECT_CHARACTERS:
        words = f"the subject has {len(subject)} characters: more than {_MOST_SUBJECT_CHARACTERS}"
        raise InvalidMail(words, "subject")
    if _CONTROL.search(subject):
        raise InvalidMail("the subject has a line break or another control character", "subject")


def _bytes(text: str, part: MailPart) -> int:
    """Return the size of a part of a mail."""
    if "\0" in text:
        raise InvalidMail(f"the {part} has a NUL character", part)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidMail(f"the {part} is not valid Unicode", part) from error
