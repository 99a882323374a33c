"""Errors by remedy: what a class is called says what to do about it.

    FerrymanError            exit code 1 (`exits` has them all)
    ├── Transient            try again, nothing needs to change
    │   └── Unreachable      a dependency does not answer: exit code 4
    ├── Permanent            trying again cannot help: dead-letter it
    └── Misconfigured        stop, and say which setting: exit code 3

Errors of libraries are translated at the adapter's own door, `raise ... from`; `codes` decides which is which.
"""

from typing import ClassVar

from ferryman.runtime.exits import Exit

ENV_PREFIX = "FERRYMAN_"
ENV_NESTING = "__"


def env_name(setting: str) -> str:
    """The environment name of a setting: `kafka.bootstrap_servers` is FERRYMAN_KAFKA__BOOTSTRAP_SERVERS."""
    section, *rest = setting.split(".")
    parts = [section, "_".join(rest)] if section == "kafka" and rest else [section, *rest]
    return ENV_PREFIX + ENV_NESTING.join(parts).upper()


class FerrymanError(Exception):
    """Says in one line what is wrong, which setting it concerns and what to do."""

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
    """Try again: nothing needs to change."""


class Unreachable(Transient):
    """A dependency does not answer."""

    exit_code = Exit.UNREACHABLE


class Permanent(FerrymanError):
    """Trying again cannot help."""


class Misconfigured(FerrymanError):
    """Stop: a setting, a privilege or a schema is wrong, and the message names it."""

    exit_code = Exit.CONFIGURATION
