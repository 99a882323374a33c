"""Where schemas have their ids: a server with Confluent's API, a folder, or the catalogue itself."""

from typing import Protocol

from ferryman.runtime.errors import Permanent


class UnknownSchema(Permanent):
    """The registry answers, and has no schema with this id."""


class Refused(Permanent):
    """The registry does not take the schema: it is none, or breaks what the subject promises."""


class Registry(Protocol):
    """What the codec and the commands ask. Each call may raise `Unreachable` or `Misconfigured` too."""

    def schema(self, number: int) -> str:
        """The text with this id; raises `UnknownSchema`."""

    def lookup(self, subject: str, text: str) -> int | None:
        """The id of this schema; None where the subject does not have it."""

    def register(self, subject: str, text: str) -> int:
        """Its id, a new one where the subject did not have it; raises `Refused`."""

    def objections(self, subject: str, text: str) -> list[str]:
        """Why the registry would refuse it; empty where it would not."""

    def insist(self, subject: str, level: str) -> None:
        """From now on the subject takes only what is compatible by this level, such as FULL_TRANSITIVE."""
