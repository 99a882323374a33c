"""Errors by remedy: the name of a class says what to do about it.

    FerrymanError            exit code 1
    ├── Transient            try again, nothing needs to change
    │   └── Unreachable      a dependency does not answer: exit code 4
    ├── Permanent            trying again cannot help: dead-letter it
    └── Misconfigured        stop, and say which setting: exit code 3

Each adapter translates the errors of its library, `raise ... from`; `codes` decides which is which.
"""

from enum import IntEnum
from typing import ClassVar

ENV_PREFIX = "FERRYMAN_"
ENV_NESTING = "__"


class Exit(IntEnum):
    """The exit codes that scripts can rely on."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    CONFIGURATION = 3
    UNREACHABLE = 4
    PARTIAL = 5
    INTERRUPTED = 130


def env_name(setting: str) -> str:
    """Return the environment name of a setting: FERRYMAN_KAFKA__BOOTSTRAP_SERVERS for `kafka.bootstrap_servers`."""
    section, *rest = setting.split(".")
    parts = [section, "_".join(rest)] if section == "kafka" and rest else [section, *rest]
    return ENV_PREFIX + ENV_NESTING.join(parts).upper()


class FerrymanError(Exception):
    """An error that says in one line what is wrong, which setting it concerns and what to do."""

    exit_code: ClassVar[Exit] = Exit.FAILURE

    def __init__(self, message: str, *, setting: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.setting = setting
        self.remedy = remedy

    def __str__(self) -> str:
        setting = f" [setting {self.setting}, or {env_name(self.setting)}]" if self.setting else ""
        remedy = f" Remedy: {self.remedy}" if self.remedy else ""
        return f"{self.message.rstrip('.')}.{setting}{remedy}"


class Transient(FerrymanError):
    """A failure that may pass: try again, nothing needs to change."""


class Unreachable(Transient):
    """A dependency that does not answer."""

    exit_code = Exit.UNREACHABLE


class Permanent(FerrymanError):
    """A failure that trying again cannot help."""


class Misconfigured(FerrymanError):
    """A wrong setting, privilege or schema, which the message names: stop."""

    exit_code = Exit.CONFIGURATION
