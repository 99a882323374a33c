"""What is to be run in the wallet's database says so: by a source's name, or by its URL. Pure."""

import re
from typing import NamedTuple

from ferryman.evidence.databases import WALLETS
from ferryman.runtime.errors import env_name
from ferryman.runtime.settings import Settings

RUN_RELAY = "ferryman run relay"
UNKNOWN = "<the wallet's URL>"

_BY_SOURCE = re.compile(r"(ferryman (?:outbox|inbox|resume) .*?)(?=   or   |$)")


class Address(NamedTuple):
    """How a command finds a database: its URL, as a shell is given it, and the relay's source that has the same one."""

    url: str = UNKNOWN
    source: str | None = None

    def of(self, command: str) -> str:
        """The same command, run there; also of several, as `one   or   another`."""
        if self.source and command == RUN_RELAY:  # it publishes every source
            return command
        if self.source and "ferryman run " not in command:
            return _BY_SOURCE.sub(rf"\1 --source {self.source}", command)
        return command.replace("ferryman ", f"FERRYMAN_DATABASE_URL={self.url} ferryman ")


BY_URL = Address()
"""Where nobody said more: a person writes the URL in."""


def wallet_address(settings: Settings, origin: str | None) -> Address:
    """Where the setting comes from says whether its variable has it: in a file it stands by itself, and is not shown
    with its password.
    """
    url, variable = settings.payments.wallet_database_url, env_name(WALLETS)
    named = (name for name, source in settings.relay.sources.items() if source.database_url == url)
    return Address(f'"${variable}"' if origin == variable else UNKNOWN, next(named, None))
