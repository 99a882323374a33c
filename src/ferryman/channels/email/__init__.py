"""E-mail: each mail is sent once, by an SMTP server, by Resend's API, or into a folder; any answer is an outcome."""

import re
from email.headerregistry import Address
from pathlib import Path
from typing import TYPE_CHECKING

from ferryman.channels.model import InvalidMail, Mail
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.metrics import Named
from ferryman.runtime.settings_email import MAX_MAIL_BYTES, Email
from ferryman.runtime.settings_http import Http

if TYPE_CHECKING:
    from ferryman.channels.email.channel import EmailChannel
    from ferryman.channels.email.provider import Provider

RISKED = Named("ferryman_email_", (), ()).counter(
    "risked_total", "Mails in doubt that were sent again because of `email.in_doubt`: each may have arrived twice."
)

_EXTRAS = {"aiosmtplib": "email", "idna": "email", "aiohttp": "http", "yarl": "http"}
_HEADER_VALUE = re.compile(r"[!-~]+")


def email_channel(email: Email, http: Http, slots: int) -> "EmailChannel":
    """Return the channel for these settings and so many mails at once.

    Raise `Misconfigured` if a setting is missing or not valid, or the extra that it needs is not installed.
    """
    try:
        from ferryman.channels.email.channel import EmailChannel
        from ferryman.channels.email.mail import sender_of

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
        raise _lacking(error) from error
    return EmailChannel(provider, sender, in_doubt=email.in_doubt, max_bytes=email.max_bytes)


def check_mail(mail: Mail, max_bytes: int = MAX_MAIL_BYTES) -> None:
    """Raise `InvalidMail` if this mail could not be sent, so that its writer knows at once.

    `max_bytes` is what `email.max_bytes` allows.
    """
    try:
        from ferryman.channels.email.mail import checked
    except ModuleNotFoundError as error:
        raise _lacking(error) from error
    checked(mail, max_bytes)


def _lacking(error: ModuleNotFoundError) -> Exception:
    """Return what to raise where an extra is not installed."""
    if error.name not in _EXTRAS:
        return error
    return Misconfigured(
        f"sending e-mail needs the package {error.name}", remedy=f"pip install 'ferryman[{_EXTRAS[error.name]}]'"
    )


def _provider(email: Email, http: Http, sender: Address, slots: int) -> "Provider":
    match email.provider:
        case "smtp":
            from ferryman.channels.email.smtp import SmtpProvider

            _needs(email.smtp.host, "smtp.host", "name the mail server")
            if email.smtp.user is not None:
                _needs(email.smtp.password, "smtp.password", "set it, or FERRYMAN_EMAIL__SMTP__PASSWORD_FILE")
            elif email.smtp.password is not None:
                _needs(None, "smtp.user", "name the user whose password is set")
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
