"""What must never be shown: one place decides which names are secret and masks passwords inside text."""

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"

_SECRET_NAME = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|authorization|cookie|api[._-]?key|private[._-]?key"
    r"|(^|[._])key[._]?pem$|jaas|sasl[._]oauthbearer[._]config|^payload$|^body$",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://[^\s:/?#@]*):(?P<password>[^\s/?#]+)@", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<name>\b[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|api[._-]?key)\b\s*[=:]\s*)(?P<value>'[^']*'|\"[^\"]*\"|[^\s&,;]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(?P<kind>Bearer|Basic)\s+[A-Za-z0-9+/._~=-]{6,}", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a value under this name must be masked."""
    return bool(_SECRET_NAME.search(name))


def redact(text: str) -> str:
    """The text with passwords in URLs, `password=...` and authorization headers masked."""
    text = _USERINFO.sub(rf"\g<scheme>:{MASK}@", text)
    text = _ASSIGNED.sub(rf"\g<name>{MASK}", text)
    return _BEARER.sub(rf"\g<kind> {MASK}", text)


def redact_value(name: str, value: Any) -> Any:
    """A value fit to be shown under its name, through nested mappings and sequences."""
    if value is None or isinstance(value, bool | int | float):
        return MASK if value is not None and is_secret(name) else value
    if is_secret(name):
        return MASK
    if isinstance(value, Mapping):
        return {key: redact_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value("", inner) for inner in value]
    return redact(value) if isinstance(value, str) else value
