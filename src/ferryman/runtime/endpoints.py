"""The URL and the secret of an HTTP endpoint: what is wrong with one is said where it is set, if it is a setting."""

import base64
import binascii
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, SecretStr

from ferryman.runtime.errors import Permanent

PREFIX = "whsec_"


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


def why_no_endpoint(scheme: str, authority: str, host: str | None) -> str | None:
    """Return why no request can go to a URL with these parts, or None. The words show none of it."""
    if scheme not in ("http", "https"):
        return "does not begin with http:// or https://"
    if "@" in authority:
        return "has a user or a password, which a URL may not have here"
    if not host:
        return "has no host"
    return None


def _url(text: str) -> str:
    parts = urlsplit(text)
    if why := why_no_endpoint(parts.scheme, parts.netloc, parts.hostname):
        raise ValueError(f"the URL {why}")
    return text


def _secret(secret: SecretStr) -> SecretStr:
    try:
        signing_key(secret.get_secret_value())
    except InvalidSecret as error:
        raise ValueError(error.message) from error
    return secret


HttpUrl = Annotated[str, AfterValidator(_url)]
"""A setting that is the URL of an endpoint."""

SigningSecret = Annotated[SecretStr, AfterValidator(_secret)]
"""A setting that is a secret which signs requests: `whsec_` and base64, or any other text as it is."""
