"""`prove` of a saga: its results through every fault of its consumers, and a timeout right before each result."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, UUID, uuid5

import psycopg

from ferryman.consumer.api import Consumer
from ferryman.consumer.model import Outcome, Received
from ferryman.message import Message

if TYPE_CHECKING:
    from ferryman.saga.declaration import Saga

_BEFORE = "timeout before message {}: "
_MOST = 10_000


def beginning_of(name: str) -> str:
    """Return the beginning of a run's name that says which consumer it is of."""
    found = re.match(_BEFORE.format(r"\d+"), name)
    return found[0] if found else ""


@dataclass(frozen=True, slots=True)
class ProvenSaga:
    """A saga with its results, which come in their order: so they are in one topic, and each knows its own."""

    saga: "Saga[Any]"
    messages: Sequence[Message]
    topics: Mapping[UUID, str]
    """The topic of each result, by its id."""

    @classmethod
    def of(cls, saga: "Saga[Any]", messages: Sequence[Message]) -> "ProvenSaga":
        made, topics = list[Message](), dict[UUID, str]()
        for number, each in enumerate(messages):
            identity = each.id or uuid5(NAMESPACE_OID, f"prove/{number}")
            topics[identity] = each.topic or _topic(saga, each)
            made.append(replace(each, topic=f"{saga.name}.results", id=identity))
        return cls(saga, made, topics)

    def consumers(self) -> dict[str, Consumer]:
        """Return the consumers to prove, by the beginning of the names of their runs.

        One applies the results. In each of the others all sagas that are on their way time out right before one result.
        """
        timed_out = {
            _BEFORE.format(number): self._consumer(partial(self._timing_out, identity))
            for number, identity in enumerate(self.topics, 1)
        }
        return {"": self._consumer(self.saga.engine.apply), **timed_out}

    def _consumer(self, apply: Callable[..., Sequence[Outcome]]) -> Consumer:
        saga = self.saga
        made = Consumer(
            saga.name, [f"{saga.name}.results"], connection=psycopg.Connection, unknown="reject", rereport=False
        )
        made.handles_batch(*saga.types)(lambda db, results: apply(db, [self._at_home(each) for each in results]))
        return made

    def _at_home(self, result: Received) -> Received:
        return replace(result, record=result.record._replace(topic=self.topics[result.id]))

    def _timing_out(self, identity: UUID, db: Any, results: Sequence[Received]) -> Sequence[Outcome]:
        """Apply results, and let every saga time out right before the one with this id."""
        engine, outcomes = self.saga.engine, list[Outcome]()
        for each in results:
            if each.id == identity:
                engine.store.hasten(db)
                engine.due(db, _MOST)
            outcomes += engine.apply(db, [each])
        return outcomes


def _topic(saga: "Saga[Any]", message: Message) -> str:
    source = saga.results.source(message.type)
    if source is None:
        raise ValueError(f"{message.type} comes from no topic of the saga {saga.name}: name one of its results")
    return source.topic
