"""Redaction: one place decides which names are secret, and masks passwords inside text."""

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
MOST_ERROR_CHARACTERS = 500

_SECRET_NAME = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|authorization|cookie|api[._-]?key|private[._-]?key"
    r"|(^|[._])key[._]?pem$|(^|[._])bearer$|jaas|sasl[._]oauthbearer[._]config|^payload$|^body$",
    re.IGNORECASE,
)
# The text may come from anyone and be long: each pattern looks at a character a bounded number of times. So none begins
# with a part that may be long itself, but with the word that it looks for.
# `://user:password@host` is left as it is: our own remedies show it as the form of a URL.
_USERINFO = re.compile(r"(?P<user>://[^\s:/?#@]*):(?!(?<=://user:)password@host[:/])[^\s/?#]+@")
# A word, and the next one too if the first ends with a name, or if a line break parts them and that is not a header.
_RUN = r"\S+(?:(?:(?<=bearer)|(?<=basic)|(?<=:))\s+\S+|\r?\n[ \t]*(?![\w-]+:(?:\s|$))\S+)*"
_ASSIGNED = re.compile(
    r"(?P<name>(?:passw(?:or)?d|passphrase|secret|token|api[._-]?key)\b[\"']?\s*[=:]\s*)"
    rf"(?:'[^']*'|\"[^\"]*\"|(?:Bearer|Basic)\s+{_RUN}|[^\s&,;]+)",
    re.IGNORECASE,
)
# The words "bearer token" and "basic authentication" name no value.
_PROSE = r"(?:tokens?|auth(?:entication|orization)?)(?=[.,;:)]?(?:\s|$))"
# Inside quotes, everything up to the closing quote.
_AUTHORIZED = re.compile(
    r"(?P<quoted>'(?:Bearer|Basic)\s)[^']+(?=')|(?P<double>\"(?:Bearer|Basic)\s)[^\"]+(?=\")"
    rf"|(?P<bare>\b(?:Bearer\s|Basic\s(?=\s*\S{{6}}))(?!{_PROSE})\s*){_RUN}",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return True if a value with this name must be masked."""
    return bool(_SECRET_NAME.search(name))


def redact(text: str) -> str:
    """Mask passwords in URLs, `password=...` and authorization headers. The time grows with the length alone."""
    text = _USERINFO.sub(rf"\g<user>:{MASK}@", text)
    text = _ASSIGNED.sub(rf"\g<name>{MASK}", text)
    return _AUTHORIZED.sub(lambda found: f"{found[1] or found[2] or found[3]}{MASK}", text)


def stored_error(words: str) -> str:
    """Return the words as the database may hold them: one line, no secret, not too long."""
    line = redact(" ".join(words.replace("\0", "").split()))
    return line if len(line) <= MOST_ERROR_CHARACTERS else line[: MOST_ERROR_CHARACTERS - 1] + "…"


def redact_value(name: str, value: Any) -> Any:
    """Mask a value by its name, through nested mappings and sequences."""
    if value is not None and is_secret(name):
        return MASK
    if isinstance(value, Mapping):
        return {key: redact_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value("", inner) for inner in value]
    return redact(value) if isinstance(value, str) else value
