"""The one place that reads the environment and builds objects from settings."""

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from ferryman.consumer.api import Consumer
from ferryman.migrations.chains import ENGINE
from ferryman.relay.described.courier import Courier
from ferryman.runtime import logs
from ferryman.runtime.chore import Chore, ChoreService
from ferryman.runtime.errors import ENV_PREFIX, FerrymanError, Misconfigured
from ferryman.runtime.service import Service
from ferryman.runtime.setting import leaves
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_outbox import Outbox
from ferryman.runtime.sources import URL_VARIABLE, Loaded, first_problem, load, read_file
from ferryman.runtime.system import Run, System, settings_model
from ferryman.runtime.system import load as load_target
from ferryman.saga.declaration import Saga
from ferryman.saga.engine import SagaEngine
from ferryman.schemas import active
from ferryman.schemas.registry import options
from ferryman.services import systems

if TYPE_CHECKING:
    from ferryman.relay.service import DrainResult
    from ferryman.schemas.catalogue import Catalogue


def settings_class() -> type[Settings]:
    """Return the model of the whole settings file: the engine's sections and those of every system."""
    return settings_model(systems())


def load_settings(environ: Mapping[str, str], file: Path | None = None) -> Loaded:
    """Read the settings of the engine and of every system."""
    return load(environ, file, settings_class())


def loaded(context: click.Context) -> Loaded:
    """Return the settings of this command line, and where each came from."""
    return load_settings(os.environ, context.find_object(Path))


def settings(context: click.Context) -> Settings:
    """Return the settings, and set logs up as they say."""
    found = loaded(context).settings
    logs.configure(found.log)
    return with_outboxes(found)


def settings_here() -> Settings:
    """Return the settings of a process that is not ours: its logs stay as they are."""
    return with_outboxes(load_settings(os.environ).settings)


def names_in_file(context: click.Context) -> set[str]:
    """Return the names of settings in the settings file, and in the one that a program in this folder reads."""
    files = (read_file(os.environ, context.find_object(Path)), read_file({}))
    return {name for values, _ in files for name, _ in leaves(values)}


def check_scopes(found: Settings) -> None:
    """Refuse scopes of the API's tokens that no route requires; without the extra `api` there are no routes to ask."""
    if found.api.tokens and find_spec("fastapi"):
        from ferryman.console.service import check_scopes as check

        check(found)


def check_email(found: Settings) -> None:
    """Refuse what a process that sends mails would refuse; without the extra `email` none could be sent here."""
    if found.email.provider and find_spec("aiosmtplib"):
        from ferryman.channels.email import email_channel

        email_channel(found.email, found.http, slots=1)


def with_outboxes(found: Settings) -> Settings:
    """Add the described outboxes of the systems, unless the settings describe them otherwise."""
    ours = {name: (system, told) for system in systems() for name, told in _described_by(system, found).items()}
    added = {name: _outbox_of(*each) for name, each in ours.items() if name not in found.outbox}
    for name, outbox in found.outbox.items():
        another = outbox.table != ours[name][1]["table"] if name in ours else not _has_outbox(name)
        if outbox.channel != "kafka" and name in runs() and another:
            raise Misconfigured(
                f"`ferryman run {name}` is a service of Ferryman, and would not deliver this outbox",
                setting=f"outbox.{name}", remedy="give the outbox another name",
            )  # fmt: skip
    return found.model_copy(update={"outbox": {**added, **found.outbox}}) if added else found


def asked_for(found: Settings) -> list[str]:
    """Return the outboxes that somebody uses: all but those that a system describes whether it is used or not."""
    always = {name for system in systems() if not system.outboxes_need for name in _described_by(system, found)}
    return [name for name in found.outbox if name not in always]


def _described_by(system: System, found: Settings) -> Mapping[str, Any]:
    """Return the descriptions of a system's outboxes, by name."""
    return load_target(system.outboxes)(found) if system.outboxes else {}


def _has_outbox(name: str) -> bool:
    """Return True if a system of this name has an outbox, which settings may describe otherwise."""
    return any(system.name == name and system.outboxes for system in systems())


def _outbox_of(system: System, description: Any) -> Outbox:
    try:
        return Outbox.model_validate(description)
    except ValidationError as error:
        said, remedy = first_problem(error, Outbox)
        raise Misconfigured(
            f"the settings under [{system.name}] make no valid outbox: {said}", setting=system.name, remedy=remedy
        ) from error


@dataclass(frozen=True, slots=True)
class NamedOutbox:
    """A described outbox as a person names it: by its name, or by a courier that describes it itself."""

    called: str
    name: str
    outbox: Outbox


def described_outbox(called: str, found: Settings) -> NamedOutbox:
    """Return the described outbox that is called so; a courier of the user's is called module:object."""
    from ferryman.relay.described.couriers import outbox_of

    name, courier = called, _load(called) if ":" in called else None
    if isinstance(courier, Courier):
        if not isinstance(courier.outbox, str):
            return NamedOutbox(called, courier.name, outbox_of(courier))
        name = courier.outbox
    if name not in found.outbox:
        needed = {system.name: system.outboxes_need for system in systems()}.get(name)
        known = "describe its table" + (f", or name one of: {', '.join(found.outbox)}" if found.outbox else "")
        if close := difflib.get_close_matches(name, found.outbox, n=1):
            known = f"did you mean {close[0]}?"
        raise Misconfigured(
            f"there is no outbox called {name}" + (f" while {needed} is not set" if needed else ""),
            setting=(needed or f"outbox.{name}").partition(" ")[0], remedy=f"set {needed}" if needed else known,
        )  # fmt: skip
    return NamedOutbox(called, name, found.outbox[name])


def check_courier(called: str, found: Settings) -> None:
    """Refuse what `ferryman run` with this name would refuse before it connects. Our own systems check theirs."""
    named = described_outbox(called, found)
    if ":" in called or (called not in runs() and named.outbox.channel != "kafka"):
        _services(called, found)


def environment(**urls: str) -> Mapping[str, str]:
    """Return our environment with these servers in place of any settings: for a child process."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX) and name != URL_VARIABLE
    }  # fmt: skip
    return {**kept, **urls}


def embedded() -> ModuleType:
    """Import the servers for trying things out; they need an extra of the package, which `app.EXTRAS` knows."""
    return import_module("ferryman.testing.stack")


def systems_called(names: Sequence[str]) -> list[System]:
    """Return the systems with these names; `all` names every one."""
    known = {system.name: system for system in systems()}
    if unknown := sorted(set(names) - known.keys() - {"all"}):
        raise Misconfigured(
            f"no system is called {', '.join(unknown)}", remedy=f"the systems are: {', '.join(known)}, or all"
        )
    return [system for system in known.values() if "all" in names or system.name in names]


def catalogue(found: Settings, systems: Sequence[str] = ()) -> "Catalogue":
    """Return the catalogue that `schemas.path` names, or Ferryman's own if it is asked for by names of its systems."""
    from ferryman.schemas import OURS
    from ferryman.schemas.catalogue import load as load_catalogue

    if systems:
        if not any(system.catalogue for system in systems_called(systems)):
            raise Misconfigured(f"{', '.join(systems)} has no topics and types in Ferryman's catalogue")
        return load_catalogue(OURS)
    if not found.schemas.path:
        ours = ", ".join(system.name for system in systems_called(["all"]) if system.catalogue)
        raise Misconfigured(
            "there is no catalogue of topics and types", setting="schemas.path",
            remedy="set it to the folder of your catalogue, or name the systems of Ferryman that you run by --for: "
            f"{ours}, or all",
        )  # fmt: skip
    return load_catalogue(Path(found.schemas.path))


def use_catalogue(found: Settings) -> None:
    """Check what is appended from now on against the catalogue that is set, or against Ferryman's own."""
    active.use_schemas(found.schemas.path, registry_url=found.registry_url, **options(found))


def runs() -> dict[str, Run]:
    """Return what `ferryman run` starts by name: the engine's services and those of every system."""
    return {
        "relay": (
            "ferryman.relay.service:services",
            "publishes the journals of database_url or [relay.sources] to Kafka, and tables described by [outbox.NAME]",
        ),
        "api": (
            "ferryman.console.service:ApiService",
            f"answers over HTTP, for {', '.join(system.name for system in _systems_of('api'))}",
        ),
        **{name: run for system in systems() for name, run in system.runs.items()},
    }


def services(names: Sequence[str], found: Settings) -> list[Service]:
    """Build what `ferryman run NAME...` names, with the catalogue that is set, or ours for services of ours."""
    if found.schemas.path or any(system.catalogue for name in names for system in _systems_of(name)):
        use_catalogue(found)
    return [service for name in names for service in _services(name, found)]


def drain(name: str, found: Settings, stopping: Event) -> "DrainResult":
    """Drain what is called so: the relay, or one described outbox, whose chores are done afterwards."""
    from ferryman.relay.described.couriers import drain as drain_outbox
    from ferryman.relay.described.service import DescribedOutbox
    from ferryman.relay.service import drain as drain_relay

    if name == "relay":
        return drain_relay(found, stopping)
    if not (name in runs() or ":" in name):
        described_outbox(name, found)
    made = services([name], found)
    outboxes = [each for each in made if isinstance(each, DescribedOutbox)]
    chores = [each for each in made if isinstance(each, ChoreService)]
    if len(outboxes) != 1 or len(made) != 1 + len(chores):
        raise Misconfigured(f"{name} is not an outbox: it cannot be drained")
    drained = drain_outbox(outboxes[0], stopping)
    for chore in chores:
        chore.drain(stopping)
    return drained


def _systems_of(name: str) -> list[System]:
    """Return the systems that a service belongs to: for the API, each that has routes."""
    return [system for system in systems() if name in system.runs or (name == "api" and system.routes)]


def _services(name: str, found: Settings) -> list[Service]:
    """Build one service, or the several that one name stands for."""
    known = runs()
    if name not in known and name in found.outbox:
        from ferryman.relay.described.couriers import described_service

        _import_from_here()  # its channel may be a class of the user's
        return [described_service(name, found)]
    target = load_target(known[name][0]) if name in known else _load(name)
    owners = (ENGINE, *(system.owner for system in _systems_of(name)))
    if not isinstance(target, Consumer | Saga | Courier | Chore) and (
        isinstance(target, type) or (not hasattr(target, "run") and callable(target))
    ):
        target = target(found)
    targets = target if isinstance(target, list | tuple) else [target]
    return [_service(name, each, found, owners) for target in targets for each in _parts(target)]


def saga(name: str, found: Settings) -> Saga[Any]:
    """Return the saga that a person names: one of a system, or the user's own as module:object, or by its name if the
    setting `sagas` has it.
    """
    known = runs()
    if ":" not in name and name not in known:
        name = _saga_named(name, found)
    target = load_target(known[name][0]) if name in known else _load(name)
    if not isinstance(target, Saga | type) and callable(target):
        target = target(found)
    if isinstance(target, list | tuple):  # a saga, and what runs beside it
        target = next((each for each in target if isinstance(each, Saga)), target)
    if not isinstance(target, Saga):
        raise Misconfigured(f"{name} is not a saga", remedy="name a ferryman.Saga, or a function that returns one")
    return target


def _saga_named(name: str, found: Settings) -> str:
    """Return what `ferryman run` calls the saga with this name: one that is set, or one of a system."""
    ours = (run for each in systems() for run in each.runs if name in {load_target(one).name for one in each.machines})
    theirs = (each for each in found.sagas if ":" in each and saga(each, found).name == name)
    if called := next(iter([*ours, *theirs]), None):
        return called
    remedy = "name it as module:object, or set that under `sagas`"
    raise Misconfigured(f"there is no saga called {name}", setting="sagas", remedy=remedy)


def _parts(target: Any) -> Sequence[Any]:
    """Return what runs for this target: for a saga its consumers, and the engine for its timeouts."""
    return [*target.consumers(), target.engine] if isinstance(target, Saga) else [target]


def _service(name: str, target: Any, found: Settings, owners: Sequence[str]) -> Service:
    if isinstance(target, Consumer):
        from ferryman.consumer.service import ConsumerService

        return ConsumerService(target, found, owners=owners)
    if isinstance(target, Courier):
        from ferryman.relay.described.couriers import courier_service

        return courier_service(target, found)
    if isinstance(target, Chore):
        return ChoreService(target, found)
    if isinstance(target, SagaEngine):
        from ferryman.saga.timeouts import DueLoop

        return DueLoop(target, found, owners=owners)
    if not (callable(getattr(target, "run", None)) and isinstance(getattr(target, "name", None), str)):
        raise Misconfigured(
            f"{name} is not a service: it has no name and run(life)",
            remedy="name an object with both, or a function that takes the settings and returns one",
        )
    service: Service = target
    return service


def _import_from_here() -> None:
    """Let a user's own modules be found where the command is run, as `python -m` would."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)


def _load(name: str) -> Any:
    """Import a service of the user's own."""
    module, separator, attribute = name.partition(":")
    if not separator or not module or not attribute:
        raise Misconfigured(f"there is no service called {name}", remedy="name your own as module:object")
    _import_from_here()
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"cannot import {module}: {error.msg}", remedy="run it where the module is, or install it"
        ) from error
    except FerrymanError:
        raise
    except Exception as error:  # whatever the user's module raises
        from ferryman.runtime.user_code import told

        raise Misconfigured(
            f"cannot import {module}: {told(error)}", remedy="correct the module; --debug shows the traceback"
        ) from error
    if not hasattr(found, attribute):
        raise Misconfigured(f"{module} has no {attribute}", remedy="correct the name behind the colon")
    return getattr(found, attribute)
