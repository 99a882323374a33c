"""The URL, the secret and the token of an HTTP endpoint, as settings that say what is wrong with them."""

import base64
import binascii
import re
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, SecretStr

from ferryman.runtime.errors import Permanent
from ferryman.runtime.setting import InvalidSetting

PREFIX = "whsec_"
_MOST_URL_CHARACTERS = 8192
_MOST_HOST_CHARACTERS = 253
_LABEL = re.compile(r"(?!-)(?:[A-Za-z0-9_-]|[^\x00-\x7f]){1,63}(?<!-)")
_TOKEN = re.compile(r"[!-~]+")
_SECRET_REMEDY = f"set it to {PREFIX} and base64, or to any other text"


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


def why_no_endpoint(text: str) -> str | None:
    """Return why no request can go to a URL, or None. The words show none of it: it may hold a secret."""
    if not 0 < len(text) <= _MOST_URL_CHARACTERS:
        return f"is longer than {_MOST_URL_CHARACTERS} characters" if text else "is empty"
    if not text.isprintable() or " " in text:
        return "has a space or a control character"
    try:
        return next(_flaws(urlsplit(text)), None)
    except ValueError:
        return "is not valid"


def _flaws(parts: SplitResult) -> Iterator[str]:
    if parts.scheme not in ("http", "https"):
        yield "does not begin with http:// or https://"
    if "@" in parts.netloc:
        yield "has a user or a password, which a URL may not have here"
    if not parts.hostname:
        yield "has no host"
    elif not _is_host(parts.hostname, bracketed="[" in parts.netloc):
        yield "has a host that is neither a name nor an address"
    if not _has_port(parts):
        yield "has a port that is not a number from 1 to 65535"


def _is_host(host: str, *, bracketed: bool) -> bool:
    """Return True for an address, and for a name as DNS or a container network has it, underscores included."""
    if bracketed:
        return _is_ipv6(host)
    labels = host.removesuffix(".").split(".")
    if labels[-1].isdigit():
        return _is_ipv4(host)
    return all(map(_LABEL.fullmatch, labels)) and len(host) <= _MOST_HOST_CHARACTERS


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False


def _is_ipv4(host: str) -> bool:
    """Return True for an address in any form that the system takes, 127.1 too: it is judged at the connect."""
    try:
        return bool(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return False


def _has_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def _url(text: str) -> str:
    if why := why_no_endpoint(text):
        raise InvalidSetting(f"the URL {why}", remedy="write it as https://host/path or http://host:port/path")
    return text


def _secret(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    try:
        signing_key(text)
    except InvalidSecret as error:
        raise InvalidSetting(error.message, remedy=_SECRET_REMEDY) from error
    if text != text.strip():
        raise InvalidSetting("a secret begins or ends with a space or a line break", remedy="remove it")
    return secret


def _token(token: SecretStr) -> SecretStr:
    if not is_token(token.get_secret_value()):
        raise InvalidSetting(
            "the token is empty, or has a character that a header cannot have",
            remedy="set it to visible ASCII characters without spaces and line breaks, and without the word Bearer",
        )
    return token


def is_token(text: str) -> bool:
    """Return True if a text can be the token of an `Authorization` header."""
    return _TOKEN.fullmatch(text) is not None


HttpUrl = Annotated[str, AfterValidator(_url)]
"""A setting that is the URL of an endpoint."""

SigningSecret = Annotated[SecretStr, AfterValidator(_secret)]
"""A setting that is a secret which signs requests: `whsec_` and base64, or any other text as it is."""

BearerToken = Annotated[SecretStr, AfterValidator(_token)]
"""A setting that is the token of an `Authorization` header."""
