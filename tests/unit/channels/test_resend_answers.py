"""The meaning of each answer of Resend's API, and of none."""

import pytest

from ferryman.channels.email.mail import Letter, address_of, sender_of
from ferryman.channels.email.resend import ResendAnswer, outcome_of
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unavailable, storable

LETTER = Letter("k", sender_of("shop@example.com"), address_of("ann@example.com"), "Order 7", "Dear Ann")


def meant(answer: ResendAnswer | Outcome) -> Outcome:
    return outcome_of(answer, LETTER)


def answer(status: int, name: str = "", after: float | None = None) -> ResendAnswer:
    return ResendAnswer(status, {"name": name, "message": "for ann@example.com"} if name else {}, after)


@pytest.mark.parametrize(
    ("status", "name", "kind", "code"),
    [
        (409, "invalid_idempotent_request", Held, Code.KEY_TAKEN),
        (409, "concurrent_idempotent_requests", Retry, Code.ANSWER_RETRY),
        (409, "", Retry, Code.ANSWER_RETRY), (408, "", Retry, Code.ANSWER_RETRY),
        (401, "missing_api_key", Unavailable, Code.LOGIN_REFUSED), (401, "", Unavailable, Code.LOGIN_REFUSED),
        (401, "restricted_api_key", Unavailable, Code.LOGIN_REFUSED),
        (403, "invalid_api_key", Unavailable, Code.LOGIN_REFUSED), (403, "", Unavailable, Code.LOGIN_REFUSED),
        (403, "validation_error", Unavailable, Code.SENDER_REFUSED),
        (422, "invalid_from_address", Unavailable, Code.SENDER_REFUSED),
        (400, "validation_error", Rejected, Code.REFUSED), (422, "missing_required_field", Rejected, Code.REFUSED),
        (422, "", Rejected, Code.REFUSED), (451, "security_error", Rejected, Code.REFUSED),
        (413, "", Rejected, Code.MAIL_TOO_LARGE),
        (404, "not_found", Unavailable, Code.NOT_FOUND), (405, "", Unavailable, Code.NOT_FOUND),
        (301, "", Unavailable, Code.REDIRECTED), (308, "", Unavailable, Code.REDIRECTED),
        (429, "rate_limit_exceeded", Unavailable, Code.RATE_LIMITED),
        (429, "daily_quota_exceeded", Unavailable, Code.RATE_LIMITED),
    ],
)  # fmt: skip
def test_answer_means(status: int, name: str, kind: type[Outcome], code: Code) -> None:
    found = meant(answer(status, name))
    assert (type(found), getattr(found, "code", None)) == (kind, code)
    assert "ann@example.com" not in getattr(found, "error", ""), "N14"
    assert not getattr(found, "in_doubt", False)


@pytest.mark.parametrize(("status", "setting"), [
    (401, "email.resend.key"), (403, "email.resend.key"), (404, "email.resend.url"), (302, "email.resend.url"),
])  # fmt: skip
def test_answer_about_a_setting_names_it(status: int, setting: str) -> None:
    found = meant(answer(status))
    assert isinstance(found, Unavailable)
    assert setting in found.error


def test_words_about_a_refused_key_are_shown() -> None:
    """They have the form of a secret with its name, `api_key: ...`, and were masked."""
    refused = ResendAnswer(403, {"name": "invalid_api_key", "message": "API key is invalid"})
    found = storable(meant(refused))
    assert isinstance(found, Unavailable)
    assert "API key is invalid" in found.error


def test_mail_is_delivered_with_the_id_that_resend_gives_it() -> None:
    assert meant(ResendAnswer(200, {"id": "49a3999c-0ce1"})) == Delivered("49a3999c-0ce1")
    assert meant(ResendAnswer(202)) == Delivered()
    assert meant(ResendAnswer(200, {"id": "../?" * 9})) == Delivered(), "what is no id is not kept"


def test_provider_may_ask_for_a_wait() -> None:
    assert getattr(meant(answer(429, after=7.0)), "after_seconds", None) == 7.0
    assert getattr(meant(answer(503, after=7.0)), "after_seconds", None) == 7.0


FAILURES = [
    answer(500, "application_error"), answer(502), answer(503), answer(599),
    Retry("closed", Code.CONNECTION_LOST), Retry("slow", Code.TIMED_OUT), Retry("no HTTP", Code.ANSWER_INVALID),
]  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
def test_outage_after_the_provider_had_the_mail_uses_up_nothing_and_leaves_doubt(
    failure: ResendAnswer | Outcome,
) -> None:
    """N8."""
    found = meant(failure)
    assert isinstance(found, Unavailable)
    assert found.in_doubt


@pytest.mark.parametrize(
    "code", [Code.NAME_NOT_RESOLVED, Code.CONNECTION_FAILED, Code.CONNECTION_TIMED_OUT, Code.TLS_FAILED]
)
def test_provider_that_is_not_reached_leaves_no_doubt(code: Code) -> None:
    for why in (Retry("x", code), Unavailable("x", code)):
        found = meant(why)
        assert isinstance(found, Unavailable)
        assert not found.in_doubt


def test_request_that_cannot_be_made_is_the_mails_or_a_settings_failure() -> None:
    found = meant(Rejected("too large", Code.BODY_TOO_LARGE))
    assert found == Rejected("too large", Code.MAIL_TOO_LARGE)
    found = meant(Rejected("the URL is not valid", Code.URL_INVALID))
    assert isinstance(found, Unavailable)
    assert "email.resend.url" in found.error
