"""Signatures by the Standard Webhooks specification: HMAC-SHA256 over id, time and the raw bytes of the body."""

import base64
import hmac
import re
from collections.abc import Sequence
from functools import lru_cache

from ferryman.runtime.endpoints import signing_key

ID_HEADER = "webhook-id"
TIME_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
_ID = re.compile(r"[!-\-/-~]{1,256}")
_key_of = lru_cache(maxsize=256)(signing_key)


def is_signable(identifier: str) -> bool:
    """Return True if an id can be signed: visible ASCII, without the dot that separates the signed parts."""
    return _ID.fullmatch(identifier) is not None


def signed_headers(identifier: str, body: bytes, secrets: Sequence[str], *, at: int) -> dict[str, str]:
    """Return the headers of one attempt at this time, in seconds since 1970. Without secrets there is no signature.

    Every secret signs, so that a receiver accepts either while one replaces the other.
    """
    headers = {ID_HEADER: identifier, TIME_HEADER: str(at)}
    if secrets:
        signed = b"%b.%d.%b" % (identifier.encode("ascii"), at, body)
        digests = [hmac.digest(_key_of(each), signed, "sha256") for each in secrets]
        headers[SIGNATURE_HEADER] = " ".join("v1," + base64.b64encode(each).decode() for each in digests)
    return headers
