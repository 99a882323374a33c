"""A check and its result."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from ferryman.runtime.errors import FerrymanError


class Status(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: its name, what was found, and a remedy if that is not good."""

    name: str
    status: Status
    detail: str
    remedy: str | None = None
    setting: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}


def ok(name: str, detail: str) -> Check:
    return Check(name, Status.OK, detail)


def warning(name: str, detail: str, remedy: str, setting: str | None = None) -> Check:
    return Check(name, Status.WARNING, detail, remedy, setting)


def failed(name: str, detail: str, remedy: str, setting: str | None = None) -> Check:
    return Check(name, Status.FAILED, detail, remedy, setting)


def skipped(name: str, detail: str) -> Check:
    return Check(name, Status.SKIPPED, detail)


def from_error(name: str, error: FerrymanError) -> Check:
    return Check(name, Status.FAILED, error.message, error.remedy, error.setting)
