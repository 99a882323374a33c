"""N14: secrets never reach a log, a message or `config show`."""

import pytest

from ferryman.runtime.redaction import MASK, is_secret, redact, redact_value


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:s3cret@host/db",
        "cannot reach amqp://svc:s3cret@broker:5671/x today",
        "sasl.password=s3cret, next",
        "connection failed: password='s3cret' host=h",
        "Authorization: Bearer s3cret.s3cret",
        "https://hook.example/?token=s3cret&x=1",
        "api_key: s3cret",
    ],
)
def test_a_secret_inside_text_is_masked(text: str) -> None:
    assert "s3cret" not in redact(text)
    assert MASK in redact(text)


@pytest.mark.parametrize("text", ["postgresql://user@host/db", "12:30 at the gate", "http://host:8080/path", "a=b"])
def test_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "name",
    ["password", "sasl.password", "ssl.key.password", "client_secret", "ssl.key.pem", "token", "payload", "Cookie"],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["topic", "key", "ssl.ca.location", "sasl.username", "idempotency_key"])
def test_an_ordinary_name_is_no_secret(name: str) -> None:
    assert not is_secret(name)


def test_values_are_masked_through_nesting() -> None:
    shown = redact_value("kafka", {"sasl.password": "s3cret", "urls": ["postgresql://u:s3cret@h/d"], "port": 5})
    assert shown == {"sasl.password": MASK, "urls": ["postgresql://u:***@h/d"], "port": 5}
