"""Requests to a registry, schemas to register, and a login that no error may show."""

import base64
import json
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import pytest

from ferryman.runtime.errors import FerrymanError
from ferryman.schemas.registry.confluent import ConfluentRegistry
from support import catalogues

Ask: TypeAlias = Callable[[ConfluentRegistry], Any]

PASSWORD = "p@ss:w/rd é"
LOGIN = "us%40er:p%40ss:w%2Frd%20%C3%A9@"
TEXT = json.dumps({"type": "record", "name": "shop.Placed", "fields": [{"name": "id", "type": "string"}]})

ASKS: dict[str, Ask] = {
    "schema": lambda registry: registry.schema(7),
    "lookup": lambda registry: registry.lookup("shop.Placed", TEXT),
    "register": lambda registry: registry.register("shop.Placed", TEXT),
    "objections": lambda registry: registry.objections("shop.Placed", TEXT),
    "insist": lambda registry: registry.insist("shop.Placed", "FULL_TRANSITIVE"),
}


NOBODY = 2**31 - 7
"""An id that no schema has."""

BAD = {
    "not JSON": "{", "nothing": "", "a list": "[]", "no name": '{"type": "record"}', "a word": '"string"',
    "an unknown type": '{"type": "record", "name": "X", "fields": [{"name": "a", "type": "nonsense"}]}',
}  # fmt: skip


def schema(subject: str, *fields: dict[str, Any]) -> str:
    return json.dumps(catalogues.record(catalogues.field("id", "string"), *fields, name=subject), indent=2)


def version(subject: str, number: int) -> str:
    """Return a schema with this many optional fields: all versions are compatible."""
    return schema(subject, *(catalogues.field(f"n{n}", "int", default=n) for n in range(number)))


def incompatible(subject: str) -> str:
    return schema(subject, catalogues.field("n0", "string"))


def with_login(url: str) -> str:
    return url.replace("://", f"://{LOGIN}")


def errors_of(registry: ConfluentRegistry, asks: Iterable[str] = ASKS) -> Iterator[FerrymanError]:
    """Yield the error that each request raises."""
    for name in asks:
        print(name)
        yield error_of(ASKS[name], registry)


def error_of(ask: Ask, registry: ConfluentRegistry) -> FerrymanError:
    """Return the error that a request raises, after searching all of it for the password."""
    with pytest.raises(FerrymanError) as raised:
        ask(registry)
    shown = "".join(traceback.format_exception(raised.value))
    encoded = base64.b64encode(f"us@er:{PASSWORD}".encode()).decode()
    for secret in (PASSWORD, "p%40ss", "w%2Frd", encoded):
        assert secret not in shown
    return raised.value
