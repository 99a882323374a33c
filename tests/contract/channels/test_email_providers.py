"""Every e-mail provider delivers a mail as it was given, and never twice by itself."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from ferryman.channels.outcome import Code, Delivered, Held, Rejected, Unavailable
from support.mailing import SECRETS, MailPlace, as_json, in_doubt, mail, mail_place, mailed


@pytest.fixture(params=["smtp", "resend", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MailPlace]:
    with mail_place(request.param, tmp_path) as place:
        yield place


def test_mail_arrives_as_it_was_given(place: MailPlace) -> None:
    text = "Dear Ann,\n.\n..two dots\nFrom here it costs 7 €.\n\nBye\n"
    [outcome] = mailed(mail("Ann@München.example", "Grüße: 7 €", text=text), settings=place.settings)
    assert isinstance(outcome, Delivered)
    assert place.received() == [("Ann@xn--mnchen-3ya.example", "Grüße: 7 €", text)]


def test_many_mails_at_once_arrive_once_each(place: MailPlace) -> None:
    many = [mail(f"user{n}@example.com", f"Mail {n}") for n in range(40)]
    outcomes = mailed(*many, settings=place.settings, at_once=True)
    assert [type(each) for each in outcomes] == [Delivered] * 40
    assert sorted(to for to, _, _ in place.received()) == sorted(each.to for each in many)


def test_mail_in_doubt_does_not_arrive_twice(place: MailPlace) -> None:
    """N3: it is found, sent again under a key that the provider knows, or held."""
    given = mail()
    first, again = mailed(given, in_doubt(given), settings=place.settings)
    assert isinstance(first, Delivered)
    if place.name == "smtp":
        assert isinstance(again, Held)
        assert again.code == Code.NOT_LOOKED_UP
    else:
        assert again == Delivered(first.reference)
    assert len(place.received()) == 1


def test_mail_that_is_not_valid_is_rejected_and_nothing_arrives(place: MailPlace) -> None:
    outcomes = mailed(
        mail("a" * 256), mail("a@b.c,d@e.f"), mail(subject="x\r\nBcc: all@example.com"), mail(text="a\0b"),
        mail(text="x" * (10 << 20)), settings=place.settings,
    )  # fmt: skip
    assert [type(each) for each in outcomes] == [Rejected] * 5
    assert [getattr(each, "code", None) for each in outcomes] == [Code.MAIL_INVALID] * 4 + [Code.MAIL_TOO_LARGE]
    assert place.received() == []


def test_mail_of_10_mb_arrives_where_the_settings_allow_it(place: MailPlace) -> None:
    text = ("é" * 30 + "\n") * (10 * (1 << 20) // 61)
    settings = place.settings.model_copy(update={"max_bytes": 11 << 20, "timeout_seconds": 60})
    [outcome] = mailed(mail(text=text), settings=settings)
    assert isinstance(outcome, Delivered)
    [(_, _, received)] = place.received()
    same = received == text  # the difference of such texts would take minutes to show
    assert same


def test_provider_that_is_away_uses_up_no_attempt(place: MailPlace) -> None:
    """N8."""
    place.go_away()
    with pytest.MonkeyPatch.context() as patch:
        if place.name == "file":  # the folder is there when the channel opens
            patch.setattr(Path, "mkdir", lambda *_, **__: None)
        [outcome] = mailed(mail(), settings=place.settings)
    assert isinstance(outcome, Unavailable)
    assert not outcome.in_doubt
    assert place.received() == [] or place.name == "file"


def test_no_outcome_and_no_log_shows_what_is_sent(place: MailPlace, caplog: pytest.LogCaptureFixture) -> None:
    """N14."""
    with structlog.testing.capture_logs() as logs, caplog.at_level(logging.DEBUG):
        outcomes = mailed(mail(), mail("ann@example.com, b@c.d"), mail(text="\ud800"), settings=place.settings)
        place.go_away()
        if place.name != "file":
            outcomes += mailed(mail(), settings=place.settings)
    ours = [each.getMessage() for each in caplog.records if not each.name.startswith("mail.log")]  # aiosmtpd's own
    shown = " ".join(map(as_json, outcomes)) + str(logs) + " ".join(ours)
    assert [secret for secret in SECRETS if secret in shown] == []
