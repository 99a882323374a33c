"""The two clients of a registry server, what they are asked, and a login that no error may show."""

import base64
import json
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest

from ferryman.runtime.errors import FerrymanError
from ferryman.schemas.registry.confluent import ConfluentRegistry
from ferryman.schemas.registry.official import OfficialRegistry
from support import catalogues

Server: TypeAlias = ConfluentRegistry | OfficialRegistry
Client: TypeAlias = Callable[..., Server]
Ask: TypeAlias = Callable[[Server], Any]

CLIENTS = ("our client", "Confluent's client")
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
    "a type that is none": '{"type": "record", "name": "X", "fields": [{"name": "a", "type": "nonsense"}]}',
}  # fmt: skip


def schema(subject: str, *fields: dict[str, Any]) -> str:
    return json.dumps(catalogues.record(catalogues.field("id", "string"), *fields, name=subject), indent=2)


def version(subject: str, number: int) -> str:
    """Each with one more field, all compatible."""
    return schema(subject, *(catalogues.field(f"n{n}", "int", default=n) for n in range(number)))


def incompatible(subject: str) -> str:
    return schema(subject, catalogues.field("n0", "string"))


@contextmanager
def connecting(name: str) -> Iterator[Client]:
    """Makes clients of a kind, which are closed at the end."""
    made: list[Server] = []

    def connected(url: str, timeout_seconds: float = 5.0, **properties: str) -> Server:
        ours = name == CLIENTS[0]
        made.append(
            ConfluentRegistry(url, timeout_seconds) if ours else OfficialRegistry(url, properties, timeout_seconds)
        )
        return made[-1]

    try:
        yield connected
    finally:
        for each in made:
            if isinstance(each, OfficialRegistry):
                each._client.close()


def with_login(url: str) -> str:
    return url.replace("://", f"://{LOGIN}")


def errors_of(registry: Server, asks: Iterable[str] = ASKS) -> Iterator[FerrymanError]:
    """What is raised by each question."""
    for name in asks:
        print(name)
        yield error_of(ASKS[name], registry)


def error_of(ask: Ask, registry: Server) -> FerrymanError:
    """What is raised, after looking through all of it for the password."""
    with pytest.raises(FerrymanError) as raised:
        ask(registry)
    shown = "".join(traceback.format_exception(raised.value))
    encoded = base64.b64encode(f"us@er:{PASSWORD}".encode()).decode()
    for secret in (PASSWORD, "p%40ss", "w%2Frd", encoded):
        assert secret not in shown
    return raised.value
