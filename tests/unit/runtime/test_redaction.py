"""Secrets never reach a log, a message or `config show`."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.runtime.redaction import MASK, MOST_ERROR_CHARACTERS, is_secret, redact, redact_value, stored_error


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:s3cret@host/db",
        "cannot reach amqp://svc:s3cret@broker:5671/x today",
        "sasl.password=s3cret, next",
        "connection failed: password='s3cret' host=h",
        "Authorization: Bearer s3cret.s3cret",
        "https://hook.example/?token=s3cret&x=1",
        "postgresql://user:s3cret@host/db, not postgresql://user:password@host/db",
        "postgresql://admin:s3cret-password@host/db",
        "api_key: s3cret",
    ],
)
def test_a_secret_inside_text_is_masked(text: str) -> None:
    assert "s3cret" not in redact(text)
    assert MASK in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user@host/db",
        "12:30 at the gate",
        "set it to postgresql://user:password@host:port/name",
        "http://host:8080/path",
        "a=b",
        "a bearer token is one word of ASCII",
        "give a bearer token, or use basic authentication",
        "known bearer tokens: two",
    ],
)
def test_text_without_a_secret_is_not_changed(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "name",
    ["password", "sasl.password", "ssl.key.password", "client_secret", "ssl.key.pem", "token", "payload", "Cookie"],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["topic", "key", "ssl.ca.location", "sasl.username", "idempotency_key"])
def test_an_ordinary_name_is_not_a_secret(name: str) -> None:
    assert not is_secret(name)


def test_values_are_masked_through_nesting() -> None:
    shown = redact_value("kafka", {"sasl.password": "s3cret", "urls": ["postgresql://u:s3cret@h/d"], "port": 5})
    assert shown == {"sasl.password": MASK, "urls": ["postgresql://u:***@h/d"], "port": 5}


@pytest.mark.parametrize(
    "text",
    [
        "token: Bearer s3cret$s3cret",
        '{"password": "s3cret s3cret", "a": 1}',
        "Authorization: Bearer s3cret$s3cret{s3cret}",
        "Authorization: Bearer s3c\ns3cret\r\n s3cret\nHost: here",
        "Invalid header value 'Bearer s3 s3cret\ns3cret, s3cret'",
        'Invalid header value "Basic s3 s3cret\ns3cret"',
        "the scheme is Bearer Basic s3cret",
        "secret: Bearer token: s3cret",
        "Authorization: Bearer token-s3cret",
        "Authorization: Bearer token.s3cret",
        "Authorization: Bearer token:s3cret",
        "Authorization: Basic auths3cret",
    ],
)
def test_nothing_of_a_secret_remains(text: str) -> None:
    assert "s3cret" not in redact(text)


def test_the_header_after_an_authorization_is_not_masked() -> None:
    assert redact("Authorization: Bearer s3cret\nHost: here\nX: y") == "Authorization: Bearer ***\nHost: here\nX: y"


@given(
    st.text(max_size=30),
    st.sampled_from(
        ["postgresql://u:{}@host/db", "sasl.password={}", "password='{}'", 'api_key: "{}"', "x-token={}", "Bearer {}"]
    ),
    st.text("aZ0$!*+.-_~()", min_size=6, max_size=40),
    st.text(max_size=30),
)
def test_a_secret_is_masked_whatever_stands_around_it(before: str, form: str, secret: str, after: str) -> None:
    secret = f"(s3cret){secret}(s3cret)"
    assert "(s3cret)" not in redact(f"{before} {form.format(secret)} {after}")


NASTY = [
    "x", "a.a.a.", "a://", "a://u:", "://u:p", "secret", "secret ", 'token"  ', "secret=", "password='",
    "password='\"", "Bearer ", "Bearer\n", "Bearer x\n ", "'Bearer x", "'Bearer x\"Basic ", "Basic  ", " ", "\n",
    "x:\n", "Bearer x: ",
    "Bearer token ", "Bearer token",
]  # fmt: skip


@pytest.mark.parametrize("unit", NASTY)
@pytest.mark.parametrize("first", ["", "password=", "Bearer ", "'Bearer x\n"])
def test_the_time_of_redaction_grows_with_the_length_alone(unit: str, first: str) -> None:
    """Once, a tenth of this took seconds in which the process did nothing else; now it takes hundredths of a second."""
    began = time.process_time()
    redact(first + unit * (200_000 // len(unit)))
    assert time.process_time() - began < 1


def test_stored_error_is_one_line_without_secrets() -> None:
    """N14."""
    stored = stored_error("it\n said\0: sasl.password=geheim,\tat postgresql://u:geheim@h/d")
    assert stored == "it said: sasl.password=***, at postgresql://u:***@h/d"


@given(st.text(max_size=2000))
def test_stored_error_is_short_and_fit_for_the_database(text: str) -> None:
    stored = stored_error(text)
    assert len(stored) <= MOST_ERROR_CHARACTERS
    assert len(stored.splitlines()) <= 1
    assert "\0" not in stored


def test_shortened_error_ends_with_an_ellipsis() -> None:
    assert stored_error("x" * 1000) == "x" * (MOST_ERROR_CHARACTERS - 1) + "…"
    assert stored_error("x" * MOST_ERROR_CHARACTERS) == "x" * MOST_ERROR_CHARACTERS
