"""Signatures are those of the Standard Webhooks reference library, over the raw bytes."""

import base64
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from ferryman.channels.http.signing import (
    ID_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
    is_signable,
    signed_headers,
)
from ferryman.runtime.endpoints import InvalidSecret, signing_key

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
IDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="."), min_size=1, max_size=64)
KEYS = st.binary(min_size=1, max_size=64)


def accepts(secret: str, body: bytes, headers: dict[str, str]) -> bool:
    """Return True if the reference library accepts the request."""
    try:
        verified: Any = Webhook(secret).verify(body, headers, json_parse=False)
    except Exception:
        return False
    return bool(verified == body or verified is None or verified == body.decode())


def whsec(key: bytes) -> str:
    return "whsec_" + base64.b64encode(key).decode()


def test_known_signature() -> None:
    """The example of the specification's own test vectors."""
    body = b'{"test": 2432232314}'
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", body, [SECRET], at=1614265330)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@given(IDS, st.text(), KEYS)
def test_reference_library_accepts_every_signature(identifier: str, text: str, key: bytes) -> None:
    body = text.encode()
    headers = signed_headers(identifier, body, [whsec(key)], at=int(time.time()))
    assert accepts(whsec(key), body, headers)
    assert not accepts(whsec(key), body + b" ", headers)
    assert not accepts(whsec(key), body, headers | {ID_HEADER: identifier + "x"})
    assert not accepts(whsec(key + b"x"), body, headers)


@given(st.binary(), KEYS)
def test_bytes_that_are_no_text_are_signed_as_they_are(body: bytes, key: bytes) -> None:
    """The reference library decodes the body, so the expected value is calculated from the specification."""
    import hashlib
    import hmac

    headers = signed_headers("id", body, [whsec(key)], at=7)
    expected = hmac.new(key, b"id.7." + body, hashlib.sha256).digest()
    assert headers[SIGNATURE_HEADER] == "v1," + base64.b64encode(expected).decode()


def test_each_of_several_secrets_verifies_alone() -> None:
    secrets = [whsec(b"old"), whsec(b"new")]
    headers = signed_headers("evt-1", b"{}", secrets, at=int(time.time()))
    assert all(accepts(each, b"{}", headers) for each in secrets)
    assert headers[SIGNATURE_HEADER].count("v1,") == 2


def test_raw_secret_signs_with_its_own_bytes() -> None:
    headers = signed_headers("evt-1", b"{}", ["not base64!"], at=int(time.time()))
    assert accepts(whsec(b"not base64!"), b"{}", headers)


def test_each_attempt_has_its_own_time_and_signature() -> None:
    first, second = (signed_headers("evt-1", b"{}", [SECRET], at=at) for at in (100, 101))
    assert (first[TIME_HEADER], second[TIME_HEADER]) == ("100", "101")
    assert first[SIGNATURE_HEADER] != second[SIGNATURE_HEADER]
    assert first[ID_HEADER] == second[ID_HEADER]


def test_without_a_secret_there_is_an_id_and_no_signature() -> None:
    assert signed_headers("evt-1", b"{}", [], at=1) == {ID_HEADER: "evt-1", TIME_HEADER: "1"}


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_geheim!", "whsec_Z2VoZWl", "whsec_Z2Vo ZWlt", "whsec_ü"])
def test_bad_secret_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(InvalidSecret) as caught:
        signing_key(secret)
    assert "geheim" not in str(caught.value)
    assert "Z2Vo" not in str(caught.value)


@pytest.mark.parametrize("identifier", ["", "a.b", "a b", "ä", "a\n", "\x7f", "x" * 257, "a\r\nx: y"])
def test_id_that_would_be_ambiguous_or_no_header_is_refused(identifier: str) -> None:
    assert not is_signable(identifier)


@pytest.mark.parametrize("identifier", ["evt_1", "8f14e45f-ceea-467f-a0e6-5f1f3d2c9c11", "x" * 256, "a/b:c"])
def test_ordinary_id_is_signable(identifier: str) -> None:
    assert is_signable(identifier)
