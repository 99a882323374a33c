"""E-mail: each mail is sent once, by an SMTP server, by Resend's API, or into a folder; any answer is an outcome."""

import re
from email.headerregistry import Address
from pathlib import Path
from typing import TYPE_CHECKING

from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_email import Email
from ferryman.runtime.settings_http import Http

if TYPE_CHECKING:
    from ferryman.channels.email.channel import EmailChannel
    from ferryman.channels.email.provider import Provider

_EXTRAS = {"aiosmtplib": "email", "idna": "email", "aiohttp": "http", "yarl": "http"}
_HEADER_VALUE = re.compile(r"[!-~]+")


def email_channel(email: Email, http: Http, slots: int) -> "EmailChannel":
    """Return the channel for these settings and so many mails at once.

    Raise `Misconfigured` if a setting is missing or not valid, or the extra that it needs is not installed.
    """
    try:
        from ferryman.channels.email.channel import EmailChannel
        from ferryman.channels.email.mail import InvalidMail, sender_of

        if not email.sender:
            raise Misconfigured(
                "an outbox sends e-mail, and no sender is set", setting="email.sender",
                remedy='name who the mails come from: sender = "Shop <shop@example.com>"',
            )  # fmt: skip
        try:
            sender = sender_of(email.sender)
        except InvalidMail as error:
            raise Misconfigured(
                f"the sender is not valid: {error.message}", setting="email.sender",
                remedy='set it to an address: "shop@example.com" or "Shop <shop@example.com>"',
            ) from error  # fmt: skip
        provider = _provider(email, http, sender, slots)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise Misconfigured(
            f"sending e-mail needs the package {error.name}", remedy=f"pip install 'ferryman[{_EXTRAS[error.name]}]'"
        ) from error
    return EmailChannel(provider, sender, in_doubt=email.in_doubt, max_bytes=email.max_bytes)


def _provider(email: Email, http: Http, sender: Address, slots: int) -> "Provider":
    match email.provider:
        case "smtp":
            from ferryman.channels.email.smtp import SmtpProvider

            _needs(email.smtp.host, "smtp.host", "name the mail server")
            return SmtpProvider(email.smtp, sender, email.timeout_seconds)
        case "resend":
            from ferryman.channels.email.resend import ResendProvider

            key = email.resend.key.get_secret_value() if email.resend.key else ""
            _needs(_HEADER_VALUE.fullmatch(key), "resend.key", "set the API key, without spaces: re_...")
            return ResendProvider(email, http, sender, slots)
        case "file":
            from ferryman.channels.email.file import FileProvider

            _needs(email.path, "path", "name a folder")
            return FileProvider(Path(email.path or ""))
        case None:
            raise Misconfigured(
                "an outbox sends e-mail, and no provider is set", setting="email.provider",
                remedy='set it to "smtp", "resend" or "file"',
            )  # fmt: skip


def _needs(value: object, name: str, remedy: str) -> None:
    if not value:
        raise Misconfigured(f"email.{name} is missing or not valid", setting=f"email.{name}", remedy=remedy)
