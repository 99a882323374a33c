"""Checks of everything that a process depends on: a line for each, with a remedy for each failure."""

from collections.abc import Iterator

from ferryman.doctor import email, kafka, postgres
from ferryman.doctor.model import Check, Status, from_error, ok, skipped
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.redaction import redact
from ferryman.runtime.settings import Settings
from ferryman.schemas.registry import registry_of

__all__ = ["Check", "Status", "examine"]

_REGISTRY = "registry.reached"
_NOBODYS = "ferryman.Doctor"


def examine(settings: Settings) -> Iterator[Check]:
    """Make every check, in the order in which a person would ask. A check that cannot be made does not stop others."""
    yield from postgres.checks(settings)
    yield from kafka.checks(settings)
    yield _registry(settings)
    if settings.email.provider is not None:
        yield email.check(settings)


def _registry(settings: Settings) -> Check:
    """Ask the registry as a process does: for a schema, which nobody registers."""
    if not settings.registry_url:
        return skipped(_REGISTRY, "no schema registry is named (registry_url)")
    try:
        registry_of(settings).lookup(_NOBODYS, f'{{"type": "record", "name": "{_NOBODYS}", "fields": []}}')
    except FerrymanError as error:
        return from_error(_REGISTRY, error)
    return ok(_REGISTRY, redact(settings.registry_url))
