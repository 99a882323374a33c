"""The catalogue that this process writes and reads by: chosen once, when it starts."""

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
    """From now on, what is appended is checked against this catalogue: its topics and types, and no others' bytes.

    `path` is the folder of the catalogue; without one it is Ferryman's own. `registry_url` names the registry that has
    the ids of its schemas; without one they follow from the schemas themselves. What `ferryman run` runs has both from
    its settings.
    """
    from ferryman.schemas import OURS
    from ferryman.schemas.catalogue import load
    from ferryman.schemas.codec import Codecs
    from ferryman.schemas.registry.opening import open_registry

    global _codecs
    catalogue = load(Path(path) if path is not None else OURS)
    registry = open_registry(
        registry_url, catalogue, timeout_seconds=timeout_seconds, cache=Path(cache) if cache else None,
        properties=properties,
    )  # fmt: skip
    _codecs = Codecs(catalogue, registry)
    return _codecs


def codecs() -> "Codecs | None":
    """None where no catalogue was chosen: then every message is carried as it is."""
    return _codecs


def forget() -> None:
    """As if none had been chosen: for tests."""
    global _codecs
    _codecs = None
