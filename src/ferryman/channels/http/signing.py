"""Signatures by the Standard Webhooks specification: HMAC-SHA256 over id, time and the raw bytes of the body."""

import base64
import binascii
import hmac
import re
from collections.abc import Sequence

from ferryman.runtime.errors import Permanent

PREFIX = "whsec_"
ID_HEADER = "webhook-id"
TIME_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
_ID = re.compile(r"[!-\-/-~]{1,256}")


class InvalidSecret(Permanent):
    """A secret that cannot sign. The message never shows it."""


def signing_key(secret: str) -> bytes:
    """Return the bytes that sign: those behind `whsec_` decoded from base64, or the text as it is."""
    if not secret.startswith(PREFIX):
        key = secret.encode("utf-8", "surrogatepass")
    else:
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidSecret(f"the text of a secret behind {PREFIX} is not valid base64") from error
    if not key:
        raise InvalidSecret("a secret is empty")
    return key


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
        digests = [hmac.digest(signing_key(each), signed, "sha256") for each in secrets]
        headers[SIGNATURE_HEADER] = " ".join("v1," + base64.b64encode(each).decode() for each in digests)
    return headers
