"""A case file: what a service adds to `trace`, `reconcile` and `audit`. Its system's descriptor names it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ferryman.evidence.audit import CaseAudit
from ferryman.evidence.reconcile import CaseReconciler
from ferryman.evidence.sides import Sides
from ferryman.evidence.trace import CaseTracer
from ferryman.runtime.system import System, load


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A service's knowledge of its own subjects."""

    name: str
    """The name of what is reconciled, as the command has it: `payments`."""
    noun: str
    """One of them."""
    databases: Mapping[str, str]
    """The settings of the databases that it needs, by what these are called."""
    tracer: CaseTracer
    reconciler: Callable[[Sides], CaseReconciler]
    audit: Callable[..., CaseAudit]
    """Prepares an audit of the sides, `since` and `until` moments."""
    short: str
    """The help of `reconcile NAME`, in a line."""
    help: str
    """The help of `reconcile NAME`, in full."""
    mending_role: str | None = None
    """The role that `reconcile NAME --yes` needs."""


def tracers_of(systems: Iterable[System]) -> list[CaseTracer]:
    """Load what tells the stories of every system."""
    known = list(systems)
    return [*(each.tracer for each in case_files(known)), *(load(each.tracer) for each in known if each.tracer)]


def case_files(systems: Iterable[System]) -> list[CaseFile]:
    """Load the case file of every system that has one."""
    return [load(each.evidence) for each in systems if each.evidence]
