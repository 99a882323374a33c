"""The check of the provider of mails: it is asked as a process does that sends them, and nothing is sent."""

import asyncio

from ferryman.channels.email import email_channel
from ferryman.doctor.model import Check, failed, from_error, ok, warning
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_email import Email

_NAME = "email.reached"
_SENDERS_ONLY = ("email.smtp.password", "email.resend.key")


def check(settings: Settings) -> Check:
    """Check the settings of the provider; connect to a mail server, encrypt and log in as the settings say."""
    email = settings.email
    try:
        email_channel(email, settings.http, slots=1)
        return asyncio.run(_reached(email)) if email.provider == "smtp" else _not_asked(email)
    except FerrymanError as error:
        if error.setting in _SENDERS_ONLY:  # this may be another host than theirs
            remedy = "run this where mails are sent: only that process needs it"
            return warning(_NAME, error.message, remedy, error.setting)
        return from_error(_NAME, error)


def _not_asked(email: Email) -> Check:
    said = f"mails become files in {email.path}" if email.provider == "file" else "a key of Resend's API is set"
    return ok(_NAME, f"{said}; nothing is asked")


async def _reached(email: Email) -> Check:
    from aiosmtplib import SMTPException

    from ferryman.channels.email.smtp_connection import NotReady, SmtpConnector

    server, why = f"{email.smtp.host}, tls {email.smtp.tls}", "it closed the connection"
    connector = SmtpConnector(email.smtp)
    connector.open()
    try:
        async with asyncio.timeout(email.timeout_seconds):
            line = await connector.connect()
        await line.quit()
    except NotReady as error:
        why = error.outcome.error
    except TimeoutError:
        why = f"no reply within {email.timeout_seconds:g} s"
    except (SMTPException, OSError):
        pass
    else:
        return ok(_NAME, f"{server}, {'logged in' if email.smtp.user else 'without a login'}")
    return failed(_NAME, f"{server}: {why}", "correct [email.smtp], or the server", "email.smtp")
