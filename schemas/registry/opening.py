"""Which registry a URL means."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ferryman.schemas.catalogue import Catalogue
from ferryman.schemas.registry import Registry, address, answers
from ferryman.schemas.registry.cache import CachedRegistry
from ferryman.schemas.registry.catalogued import CatalogueRegistry
from ferryman.schemas.registry.confluent import ConfluentRegistry
from ferryman.schemas.registry.folder import FolderRegistry
from ferryman.schemas.registry.official import OfficialRegistry


def open_registry(
    url: str | None,
    catalogue: Catalogue,
    *,
    timeout_seconds: float = 5.0,
    cache: Path | None = None,
    properties: Mapping[str, str] | None = None,
) -> Registry:
    """A server, a folder, or the catalogue itself where no URL is given; what it says is remembered."""
    if url is None:
        return CatalogueRegistry(catalogue)
    if url.startswith("file:"):
        return CachedRegistry(FolderRegistry(_folder(url)))
    server: Registry
    if properties:
        server = OfficialRegistry(url, properties, timeout_seconds)
    else:
        server = ConfluentRegistry(url, timeout_seconds)
    of_this = cache / hashlib.sha256(address.read(url).url.encode()).hexdigest()[:16] if cache else None
    return CachedRegistry(server, of_this)


def _folder(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise answers.setting("the registry's URL names no folder of this machine", "write file:///folder")
    return Path(unquote(parts.path))
