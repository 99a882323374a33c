"""The catalogue that this process writes and reads by, chosen once when it starts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferryman.schemas.codec import Codecs

_codecs: "Codecs | None" = None


def use_schemas(
    path: str | os.PathLike[str] | None = None,
    *,
    registry_url: str | None = None,
    timeout_seconds: float = 5.0,
    cache: str | os.PathLike[str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> "Codecs":
    """Choose the catalogue that this process's messages are checked against, and return its codecs.

    `path` is the folder of the catalogue; without it, Ferryman's own is used, for Ferryman's own services.
    `registry_url` names the registry that assigns the ids of schemas; without it, ids follow from the schemas
    themselves. Types and topics that are not in the catalogue are not checked. `ferryman run` calls this with its
    settings.
    """
    from ferryman.schemas import OURS
    from ferryman.schemas.catalogue import load
    from ferryman.schemas.codec import Codecs
    from ferryman.schemas.registry import SchemaSource, open_registry
    from ferryman.schemas.registry.local import CatalogueRegistry

    global _codecs
    catalogue = load(OURS if path is None else Path(path))
    registry: SchemaSource = CatalogueRegistry(catalogue)
    if registry_url is not None:
        registry = open_registry(registry_url, timeout_seconds=timeout_seconds, cache=cache, properties=properties)
    _codecs = Codecs(catalogue, registry)
    return _codecs


def codecs() -> "Codecs | None":
    """Return the codecs of the chosen catalogue, or None: then every message is carried as it is."""
    return _codecs


def forget() -> None:
    """Forget the chosen catalogue, for tests."""
    global _codecs
    _codecs = None
