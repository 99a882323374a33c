"""The doctor connects to the mail server, encrypts and logs in, and sends nothing."""

from pathlib import Path

import pytest

from ferryman.doctor import Status
from ferryman.doctor.email import check
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_email import Email
from ferryman.testing.mail import MailServer
from ferryman.testing.resend import ResendServer
from support.mailing import by_resend, by_smtp, email, tls_server
from support.memoing import at

PASSWORD = "geheim-4711"


def found(settings: Email) -> tuple[Status, str, str | None]:
    told = check(Settings(email=settings))
    assert PASSWORD not in told.detail
    return told.status, told.detail, told.setting


def test_mail_server_is_greeted_encrypted_and_logged_in_to(tmp_path: Path) -> None:
    tls, ca_file = tls_server(tmp_path, "127.0.0.1")
    with MailServer(tls=tls, login=("shop", PASSWORD)) as server:
        status, detail, _ = found(by_smtp(server, tls="starttls", ca_file=ca_file, user="shop", password=PASSWORD))
        assert (status, "logged in" in detail) == (Status.OK, True)
        assert {"STARTTLS", "AUTH", "QUIT"} <= set(server.commands)
        assert not {"MAIL", "RCPT", "DATA"} & set(server.commands)
        assert found(by_smtp(server, tls="starttls", user="shop", password=PASSWORD))[0] is Status.FAILED  # untrusted


@pytest.mark.parametrize(
    ("command", "reply"),
    [("CONNECT", "554 no"), ("EHLO", "500 what"), ("EHLO", "421 busy"), ("AUTH", "535 wrong"), ("CONNECT", "hello")],
)
def test_mail_server_that_refuses_is_named(command: str, reply: str) -> None:
    with MailServer(script=at(command, reply), login=("shop", PASSWORD)) as server:
        status, detail, setting = found(by_smtp(server, user="shop", password=PASSWORD))
    assert (status, setting) == (Status.FAILED, "email.smtp")
    assert "127.0.0.1" in detail


def test_mail_server_that_is_away_is_named() -> None:
    assert found(by_smtp(1))[0] is Status.FAILED
    assert found(email("smtp"))[2] == "email.smtp.host"


def test_secret_of_another_host_is_no_failure_here() -> None:
    """Only the process that sends mails needs the password or the key."""
    with ResendServer() as resend, MailServer() as server:
        assert found(by_resend(resend))[0] is Status.OK
        assert found(by_resend(resend, key=""))[::2] == (Status.WARNING, "email.resend.key")
        assert found(by_smtp(server, user="shop"))[::2] == (Status.WARNING, "email.smtp.password")
        assert (server.connections, resend.sent) == (0, [])
