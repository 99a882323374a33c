"""Registries of schemas: what each can do, the ids of schemas, and which registry a URL means."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard
from urllib.parse import unquote, urlsplit

from ferryman.runtime.errors import Misconfigured, Permanent
from ferryman.runtime.settings import Settings
from ferryman.schemas import avro

LARGEST_ID = 2**31 - 1
"""Registries count with Java's int: a larger number in a payload is never a schema's id."""


class UnknownSchema(Permanent):
    """The registry answered that it has no schema with this id."""


class SchemaRefused(Permanent):
    """The registry does not take the schema: it is not valid, or not compatible with the subject's versions."""


class SchemaSource(Protocol):
    """The schemas that a codec asks for. Each call may also raise `Unreachable` or `Misconfigured`."""

    def schema(self, number: int) -> str:
        """Return the text of the schema with this id, or raise `UnknownSchema`."""

    def lookup(self, subject: str, text: str) -> int | None:
        """Return the id of this schema, or None if the subject does not have it."""


class SchemaRegistry(SchemaSource, Protocol):
    """A registry, as the commands use it."""

    def register(self, subject: str, text: str) -> int:
        """Return the schema's id, a new one if the subject did not have it, or raise `SchemaRefused`."""

    def objections(self, subject: str, text: str) -> list[str]:
        """Return why the registry would refuse the schema; an empty list if it would take it."""

    def insist(self, subject: str, level: str) -> None:
        """Make the subject refuse schemas that are not compatible by this level, such as FULL_TRANSITIVE."""


def open_registry(
    url: str,
    *,
    timeout_seconds: float = 5.0,
    cache: str | os.PathLike[str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> SchemaRegistry:
    """Return the registry at this URL, a server or a folder, behind a cache."""
    from ferryman.schemas.registry.cache import CachedRegistry

    if url.startswith("file:"):
        from ferryman.schemas.registry.local import FolderRegistry

        return CachedRegistry(FolderRegistry(_folder(url)))
    from ferryman.schemas.registry.confluent import ConfluentRegistry

    server = ConfluentRegistry(url, timeout_seconds, properties)
    return CachedRegistry(server, Path(cache) / hashlib.sha256(server.url.encode()).hexdigest()[:16] if cache else None)


def options(settings: Settings) -> dict[str, Any]:
    """Return the settings of the registry as arguments of `open_registry`."""
    given = settings.registry
    properties = {name: value.get_secret_value() for name, value in given.properties.items()}
    return {"timeout_seconds": given.timeout_seconds, "cache": given.cache, "properties": properties}


def registry_of(settings: Settings) -> SchemaRegistry:
    """Return the registry that the settings name, without a cache in a folder: what it says now is wanted."""
    assert settings.registry_url is not None
    return open_registry(settings.registry_url, **{**options(settings), "cache": None})


def _folder(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise Misconfigured(
            "the registry URL does not name a folder of this machine", setting="registry_url",
            remedy="write file:///folder",
        )  # fmt: skip
    return Path(unquote(parts.path))


def content_id(text: str) -> int:
    """Return the id that follows from the schema itself: 31 bits of its hash, the same on every machine, never 0."""
    try:
        canonical = avro.canonical(text)
    except (ValueError, RecursionError) as error:
        raise SchemaRefused("it is not a valid Avro schema: it is not JSON", remedy="correct it") from error
    return int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:4]) >> 1 or 1


def is_id(number: Any) -> TypeGuard[int]:
    """Return True if the value can be the id of a schema."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= LARGEST_ID


def flaws(text: str) -> list[str]:
    """Return why the text is not a message's schema. We check it ourselves: servers say it late or take anything."""
    try:
        avro.parse(text)
    except avro.BadSchema as error:
        return [f"it is not a valid Avro schema: {error}"]
    return []


def refuse_flaws(text: str) -> None:
    """Raise `SchemaRefused` if the text is not a message's schema."""
    for flaw in flaws(text):
        raise SchemaRefused(flaw, remedy="correct it")
