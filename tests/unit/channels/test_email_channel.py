"""The e-mail channel sends a mail unless it may have arrived, and says which setting is missing."""

import asyncio
import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ValidationError

from ferryman.channels.email import email_channel
from ferryman.channels.email.channel import EmailChannel
from ferryman.channels.email.mail import Letter, sender_of
from ferryman.channels.email.provider import Absent, CannotTell, Found
from ferryman.channels.model import Doubt, Mail
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unavailable, Unknown
from ferryman.cli import config
from ferryman.cli.app import EXTRAS
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_email import Email, Smtp
from ferryman.runtime.settings_http import Http

LOST = Unknown("lost", Code.CONNECTION_LOST)


@dataclass
class Told:
    """A provider that answers as it is told."""

    outcome: Outcome = field(default_factory=Delivered)
    found: Found | Absent | CannotTell | None = None
    window_seconds: float = 0.0
    settling_seconds: float = 30.0
    calls: list[str] = field(default_factory=list)

    def can_find(self, reference: str | None) -> bool:
        return self.found is not None

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def send(self, letter: Letter) -> Outcome:
        self.calls.append("send")
        return self.outcome

    async def find(self, letter: Letter, reference: str | None) -> Found | Absent | CannotTell:
        self.calls.append("find")
        assert self.found is not None
        return self.found


def sent(provider: Told, doubt: Doubt | None = None, *, in_doubt: Any = "hold", to: str = "a@b.c") -> Outcome:
    channel = EmailChannel(provider, sender_of("s@b.c"), in_doubt=in_doubt, max_bytes=1024)
    return asyncio.run(channel.send(Mail(to, "x", "y", key="k", doubt=doubt)))


def test_mail_without_doubt_is_sent_and_nobody_is_asked() -> None:
    provider = Told(found=Absent())
    assert sent(provider) == Delivered()
    assert provider.calls == ["send"]


def test_mail_that_is_not_valid_is_not_sent() -> None:
    provider = Told()
    assert isinstance(sent(provider, to="a"), Rejected)
    assert provider.calls == []


def test_found_mail_is_delivered_and_not_sent_again() -> None:
    """N3."""
    provider = Told(found=Found("re-1"), window_seconds=math.inf)
    assert sent(provider, Doubt(1.0)) == Delivered("re-1")
    assert provider.calls == ["find"]


def test_absent_mail_is_sent_once_it_cannot_be_on_its_way() -> None:
    young, old = Told(found=Absent()), Told(found=Absent())
    found = sent(young, Doubt(10.0))
    assert isinstance(found, Retry)
    assert (found.code, found.after_seconds) == (Code.NOT_LOOKED_UP, 20.0)
    assert sent(old, Doubt(30.0)) == Delivered()
    assert (young.calls, old.calls) == (["find"], ["find", "send"])


@pytest.mark.parametrize(
    ("window", "in_doubt", "calls"),
    [(100.0, "hold", ["find", "send"]), (10.0, "hold", ["find"]), (10.0, "resend", ["find", "send"])],
)
def test_provider_that_cannot_tell_leaves_the_window_and_the_settings(
    window: float, in_doubt: str, calls: list[str]
) -> None:
    provider = Told(found=CannotTell(), window_seconds=window)
    found = sent(provider, Doubt(10.0), in_doubt=in_doubt)
    assert provider.calls == calls
    assert isinstance(found, Delivered if "send" in calls else Held)


def test_look_up_during_an_outage_is_tried_later_and_decides_nothing() -> None:
    """N8."""
    away = Unavailable("away", Code.CONNECTION_FAILED)
    provider = Told(found=CannotTell(away))
    assert sent(provider, Doubt(1e6)) == away
    assert provider.calls == ["find"]


def test_doubt_outside_the_window_is_held_or_sent_as_the_setting_says() -> None:
    held, again = Told(window_seconds=10.0), Told(window_seconds=10.0)
    found = sent(held, Doubt(10.0))
    assert isinstance(found, Held)
    assert found.code == Code.NOT_LOOKED_UP
    assert sent(again, Doubt(10.0), in_doubt="resend") == Delivered()
    assert (held.calls, again.calls) == ([], ["send"])


def test_lost_mail_is_held_at_once_where_nobody_can_be_asked() -> None:
    assert sent(Told(LOST)) == Held("lost", Code.CONNECTION_LOST)
    assert sent(Told(LOST), in_doubt="resend") == LOST
    assert sent(Told(LOST, window_seconds=10.0)) == LOST
    assert sent(Told(LOST, found=Absent())) == LOST


# The settings.


def made(**settings: Any) -> EmailChannel:
    smtp = {"host": "h"}
    return email_channel(Email.model_construct(**{**Email(smtp=smtp).__dict__, **settings}), Http(), 4)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sender": "a@b.c"}, "email.provider"), ({"provider": "smtp"}, "email.sender"), ({}, "email.sender"),
        ({"provider": "smtp", "sender": "a@b.c, d@e.f"}, "email.sender"),
        ({"provider": "file", "sender": "a@b.c"}, "email.path"),
        ({"provider": "resend", "sender": "a@b.c"}, "email.resend.key"),
        ({"provider": "smtp", "sender": "a@b.c", "smtp": Smtp()}, "email.smtp.host"),
        ({"provider": "smtp", "sender": "a@b.c", "smtp": Smtp(host="h", user="u")}, "email.smtp.password"),
        ({"provider": "smtp", "sender": "a@b.c", "smtp": Smtp(host="h", password="p")}, "email.smtp.user"),
    ],
)  # fmt: skip
def test_missing_setting_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        made(**settings)
    assert refused.value.setting == named
    assert refused.value.remedy


@pytest.mark.parametrize("provider", ["smtp", "resend", "file"])
def test_settings_without_the_secrets_of_the_provider_are_read(provider: str) -> None:
    """`outbox show` and `migrate` read the same ferryman.toml, and are not given the password of the mail server."""
    assert Email(provider=provider, smtp={"user": "u"}).provider == provider


def test_config_check_finds_what_a_worker_would_refuse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PROVIDER", "smtp"), ("SENDER", "a@b.c"), ("SMTP__HOST", "h"), ("SMTP__USER", "u")):
        monkeypatch.setenv(f"FERRYMAN_EMAIL__{name}", value)
    assert config.check.main(["--json"], standalone_mode=False) == 3
    assert [each["setting"] for each in json.loads(capsys.readouterr().out)["problems"]] == ["email.smtp.password"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"provider": "sendgrid"}, {"smtp": {"tls": "maybe"}}, {"resend": {"url": "https://u:p@api.resend.com"}},
        {"max_bytes": 0},
    ],
)  # fmt: skip
def test_setting_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Email(**wrong)


@pytest.mark.parametrize(
    ("missing", "provider", "extra"),
    [
        ("aiosmtplib", "smtp", "email"), ("idna", "file", "email"), ("aiohttp", "resend", "http"),
        ("yarl", "resend", "http"),
    ],
)  # fmt: skip
def test_missing_package_is_misconfigured_and_names_the_extra(
    missing: str, provider: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("ferryman.channels.email.", "ferryman.channels.http.", "aiohttp", "yarl", "aiosmtplib", "idna")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(Misconfigured, match=rf"ferryman\[{extra}\]"):
        email_channel(
            Email(provider=provider, sender="a@b.c", path="x", smtp={"host": "h"}, resend={"key": "re_1"}), Http(), 4
        )


def test_command_line_names_the_extra_too() -> None:
    assert EXTRAS["aiosmtplib"] == "email"


def test_secrets_of_the_settings_are_not_shown() -> None:
    """N14."""
    settings = Email(smtp={"host": "h", "user": "u", "password": "geheim"}, resend={"key": "re_geheim"})
    assert "geheim" not in repr(settings)
