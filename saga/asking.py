"""The commands that a saga asks with: their ids, and to which visit of a state an answer belongs.

A state that a saga may enter again is visited several times, and its commands are of one type each time. They carry the
visit, and whoever answers hands it on, so that a late answer of the first visit does not count for the second.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from ferryman.consumer.model import Received
from ferryman.message import Message
from ferryman.saga.columns import command_data
from ferryman.schemas.headers import CORRELATION

if TYPE_CHECKING:
    from ferryman.saga.declaration import Saga

ENGINES_FIELDS = ("state", "attempt", "reason")
VISIT = "visit"
"""The field of the row that counts how often a saga entered a state again that asks for something."""

_COMMANDS = UUID("6f3f6a0e-6a3f-5b0b-9d43-2f5a2f0e9c11")
"""The namespace of the ids of commands."""


def command(saga: "Saga[Any]", row: Any) -> Message:
    """Return the command of the state that a row is in. Its id follows from the saga, the state, visit and attempt."""
    state, given = row.state, row._asdict()
    ask = saga.states[state].ask
    if callable(ask):
        message: Message = ask(row)
        if not isinstance(message, Message):
            raise TypeError(f"`ask` of {saga.name} in {state} returned {message!r:.100}: return a Message")
        data = command_data(message.type, message.data) if isinstance(message.data, Mapping) else message.data
        if data is not message.data:
            message = replace(message, data=data)
    else:
        left_out = (*ENGINES_FIELDS, VISIT) if saga.revisited else ENGINES_FIELDS
        data = {name: given[name] for name in saga.fields if name not in left_out}
        message = Message(ask, command_data(ask, data), key=str(row[0]))
    headers: Mapping[str, str] = message.headers
    place = f"{saga.name}/{row[0]}/{state}"
    follows = f"{place}/{given['attempt']}"
    if state in saga.revisited:
        follows += f"/{row.visit}"
        if CORRELATION in headers:
            what = f"`ask` of {saga.name} in {state} gives {CORRELATION}, which tells the visits of the state apart"
            raise ValueError(f"{what}: leave it out")
        headers = {CORRELATION: f"{place}/{row.visit}", **headers}
    elif message.id is not None and (message.topic is not None or saga.commands is None):
        return message
    identity = message.id or uuid5(_COMMANDS, follows)
    return replace(message, id=identity, topic=message.topic or saga.commands, headers=headers)


def answers_earlier_visit(saga: "Saga[Any]", row: Any, result: Received) -> bool:
    """Return True if a result says that it answers the state that the row is in, as it was visited before."""
    said = result.record.header(CORRELATION)
    if said is None:
        return False
    place, _, visit = said.decode("utf-8", "replace").rpartition("/")
    return place == f"{saga.name}/{row[0]}/{row.state}" and visit != str(row.visit)
