"""The ids of schemas, and those that nobody has to hand out: the same schema has the same one on every machine."""

import hashlib
from typing import Any, TypeGuard

from ferryman.schemas import avro
from ferryman.schemas.registry import Refused

LARGEST = 2**31 - 1
"""Registries count with Java's int; in bytes of ours a larger one is never a schema's."""


def stable(text: str) -> int:
    """31 bits, as Confluent's wire format has room for; never 0."""
    try:
        plain = avro.plain(text)
    except (ValueError, RecursionError) as error:
        raise Refused("it is no Avro schema: it is not JSON", remedy="correct it") from error
    return int.from_bytes(hashlib.sha256(plain.encode()).digest()[:4]) >> 1 or 1


def possible(number: Any) -> TypeGuard[int]:
    """Whether it may be an id."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= LARGEST
