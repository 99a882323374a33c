"""Ferryman: what was committed gets across, and takes effect once.

The public names. They load on first use, so that `import ferryman` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferryman.channels.email import check_mail
    from ferryman.channels.http import check_endpoint
    from ferryman.channels.model import InvalidEndpoint, InvalidMail, Mail, Post
    from ferryman.consumer.api import Consumer
    from ferryman.consumer.model import Done, Outcome, Received, Retry
    from ferryman.message import Encoded, Message, Refused, encoded
    from ferryman.outbox import append, append_async, append_many, append_many_async
    from ferryman.relay.described.courier import Courier, Ended
    from ferryman.relay.described.rows import Claimed
    from ferryman.runtime.chore import Chore
    from ferryman.runtime.endpoints import BearerToken, HttpUrl, SigningSecret
    from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient, Unreachable
    from ferryman.runtime.life import Life
    from ferryman.runtime.setting import Section, setting
    from ferryman.runtime.system import System
    from ferryman.runtime.version import __version__
    from ferryman.saga.answers import Go, Row
    from ferryman.saga.declaration import Saga
    from ferryman.saga.engine import Started
    from ferryman.saga.machine import Columns, End, State
    from ferryman.saga.results import ResultSource
    from ferryman.schemas.active import use_schemas

_HOMES = {
    "BearerToken": "ferryman.runtime.endpoints",
    "Chore": "ferryman.runtime.chore",
    "Claimed": "ferryman.relay.described.rows",
    "Columns": "ferryman.saga.machine",
    "Consumer": "ferryman.consumer.api",
    "Courier": "ferryman.relay.described.courier",
    "Done": "ferryman.consumer.model",
    "Encoded": "ferryman.message",
    "End": "ferryman.saga.machine",
    "Ended": "ferryman.relay.described.courier",
    "FerrymanError": "ferryman.runtime.errors",
    "Go": "ferryman.saga.answers",
    "HttpUrl": "ferryman.runtime.endpoints",
    "InvalidEndpoint": "ferryman.channels.model",
    "InvalidMail": "ferryman.channels.model",
    "Life": "ferryman.runtime.life",
    "Mail": "ferryman.channels.model",
    "Message": "ferryman.message",
    "Misconfigured": "ferryman.runtime.errors",
    "Outcome": "ferryman.consumer.model",
    "Permanent": "ferryman.runtime.errors",
    "Post": "ferryman.channels.model",
    "Received": "ferryman.consumer.model",
    "Refused": "ferryman.message",
    "ResultSource": "ferryman.saga.results",
    "Retry": "ferryman.consumer.model",
    "Row": "ferryman.saga.answers",
    "Saga": "ferryman.saga.declaration",
    "Section": "ferryman.runtime.setting",
    "SigningSecret": "ferryman.runtime.endpoints",
    "Started": "ferryman.saga.engine",
    "State": "ferryman.saga.machine",
    "System": "ferryman.runtime.system",
    "Transient": "ferryman.runtime.errors",
    "Unreachable": "ferryman.runtime.errors",
    "__version__": "ferryman.runtime.version",
    "append": "ferryman.outbox",
    "append_async": "ferryman.outbox",
    "append_many": "ferryman.outbox",
    "append_many_async": "ferryman.outbox",
    "check_endpoint": "ferryman.channels.http",
    "check_mail": "ferryman.channels.email",
    "encoded": "ferryman.message",
    "setting": "ferryman.runtime.setting",
    "use_schemas": "ferryman.schemas.active",
}

__all__ = [
    "BearerToken",
    "Chore",
    "Claimed",
    "Columns",
    "Consumer",
    "Courier",
    "Done",
    "Encoded",
    "End",
    "Ended",
    "FerrymanError",
    "Go",
    "HttpUrl",
    "InvalidEndpoint",
    "InvalidMail",
    "Life",
    "Mail",
    "Message",
    "Misconfigured",
    "Outcome",
    "Permanent",
    "Post",
    "Received",
    "Refused",
    "ResultSource",
    "Retry",
    "Row",
    "Saga",
    "Section",
    "SigningSecret",
    "Started",
    "State",
    "System",
    "Transient",
    "Unreachable",
    "__version__",
    "append",
    "append_async",
    "append_many",
    "append_many_async",
    "check_endpoint",
    "check_mail",
    "encoded",
    "setting",
    "use_schemas",
]


def __getattr__(name: str) -> Any:
    if home := _HOMES.get(name):
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'ferryman' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
