"""A type's first sample as the bytes that stand in Kafka."""

from ferryman.schemas import natural
from ferryman.schemas.catalogue import Catalogue, Type
from ferryman.schemas.codec import Codec
from ferryman.schemas.registry.catalogued import CatalogueRegistry


def as_bytes(catalogue: Catalogue, kind: Type) -> bytes:
    """As it would be published where there is no registry."""
    codec = Codec(kind, CatalogueRegistry(catalogue))
    return codec.encode(natural.read(kind.schema, kind.samples[0]))
