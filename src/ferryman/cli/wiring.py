"""The one place that reads the environment and builds objects from settings."""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from ferryman.consumer.api import Consumer
from ferryman.migrations.chains import ENGINE
from ferryman.runtime import logs
from ferryman.runtime.errors import ENV_PREFIX, Misconfigured
from ferryman.runtime.service import Service
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_outbox import Outbox
from ferryman.saga.engine import Sagas
from ferryman.schemas import active

if TYPE_CHECKING:
    from ferryman.schemas.catalogue import Catalogue
    from ferryman.schemas.registry import Registry
from ferryman.runtime.sources import URL_VARIABLE, Loaded, load


def loaded(context: click.Context) -> Loaded:
    """The settings of this command line, and where each came from."""
    file: Path | None = context.find_object(Path)
    return load(os.environ, file)


def settings(context: click.Context) -> Settings:
    """The settings, with logs set up as they say."""
    found = loaded(context).settings
    logs.configure(found.log)
    return with_literal_outbox(found)


def with_literal_outbox(found: Settings) -> Settings:
    """In the literal mode the relay sends the outbox of payments too, unless it is described otherwise."""
    if found.payments.mode != "literal" or "payments" in found.outbox:
        return found
    from ferryman.services.payments.literal import OUTBOX

    return found.model_copy(update={"outbox": {**found.outbox, "payments": Outbox.model_validate(OUTBOX)}})


def environment(**urls: str) -> Mapping[str, str]:
    """Our environment, with these servers in place of any settings: what a child process is given."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX) and name != URL_VARIABLE
    }  # fmt: skip
    return {**kept, **urls}


def embedded() -> ModuleType:
    """The servers for trying things out; what they need is an extra of the package."""
    try:
        return import_module("ferryman.testing.house")
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"servers of its own need the package {error.name}", remedy="pip install 'ferryman[embedded]'"
        ) from error


def catalogue(found: Settings) -> "Catalogue":
    """The catalogue that the settings name, or our own."""
    from ferryman.schemas import OURS
    from ferryman.schemas.catalogue import load as load_catalogue

    return load_catalogue(Path(found.schemas.path) if found.schemas.path else OURS)


def registry(found: Settings, known: "Catalogue") -> "Registry":
    """The registry that the settings name, or the catalogue itself: asked, whatever a folder remembers of it."""
    from ferryman.schemas.registry.opening import open_registry

    return open_registry(found.registry_url, known, **{**_registry_options(found), "cache": None})


def _registry_options(found: Settings) -> dict[str, Any]:
    properties = {name: value.get_secret_value() for name, value in found.registry.properties.items()}
    cache = Path(found.registry.cache) if found.registry.cache else None
    return {"timeout_seconds": found.registry.timeout_seconds, "cache": cache, "properties": properties}


def use_catalogue(found: Settings) -> None:
    """From now on, what is appended is checked against the catalogue that is set, or ours."""
    active.use_schemas(found.schemas.path, registry_url=found.registry_url, **_registry_options(found))


def services(names: Sequence[str], found: Settings) -> list[Service]:
    """What `ferryman run NAME...` names: by the catalogue that is set; ours, where none is, by our own."""
    if found.schemas.path or not _BY_CATALOGUE.keys().isdisjoint(names):
        use_catalogue(found)
    return [service for name in names for service in _services(name, found)]


# Ours, by their names; anyone else's is module:object.
_SERVICES = {
    "relay": "ferryman.relay.service:services",
    "wallet": "ferryman.services.wallet.consumer:wallet_of",
    "wallet-literal": "ferryman.services.wallet.literal:wallet",
    "payments": "ferryman.services.payments.service:payments",
    "api": "ferryman.console.service:api",
}
# Those that speak our catalogue, and whose tables they need.
_BY_CATALOGUE = {"wallet": "wallet", "wallet-literal": "wallet", "payments": "payments", "api": "payments"}


def _services(name: str, found: Settings) -> list[Service]:
    """A service, or several that one name stands for."""
    target = _load(_SERVICES.get(name, name))
    owners = (ENGINE, _BY_CATALOGUE[name]) if name in _BY_CATALOGUE else (ENGINE,)
    if not isinstance(target, Consumer | Sagas) and (
        isinstance(target, type) or (not hasattr(target, "run") and callable(target))
    ):
        target = target(found)
    return [_service(name, each, found, owners) for each in (target if isinstance(target, list | tuple) else [target])]


def _service(name: str, target: Any, found: Settings, owners: Sequence[str]) -> Service:
    if isinstance(target, Consumer):
        from ferryman.consumer.service import ConsumerService

        return ConsumerService(target, found, owners=owners)
    if isinstance(target, Sagas):
        from ferryman.saga.service import DueLoop

        return DueLoop(target, found, owners=owners)
    if not (callable(getattr(target, "run", None)) and isinstance(getattr(target, "name", None), str)):
        raise Misconfigured(
            f"{name} is not a service: it has no name and run(life)",
            remedy="name an object with both, or a function that takes the settings and returns one",
        )
    service: Service = target
    return service


def _load(name: str) -> Any:
    module, separator, attribute = name.partition(":")
    if not separator or not module or not attribute:
        raise Misconfigured(f"there is no service called {name}", remedy="name your own as module:object")
    sys.path.insert(0, os.getcwd())  # as `python -m` would: the user's module is beside where the command is run
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"cannot import {module}: {error.msg}", remedy="run it where the module is, or install it"
        ) from error
    except AttributeError as error:
        raise Misconfigured(f"{module} has no {attribute}", remedy="correct the name behind the colon") from error
