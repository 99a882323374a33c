"""The servers that all tests of a run share: started on first use, in one process, whatever the number of workers.

Under pytest-xdist the controller holds them and its workers ask over a socket; they end with the controller.
"""

import secrets
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple

from ferryman.runtime.errors import FerrymanError
from ferryman.testing import house, kafka, postgres, registry
from ferryman.testing.ladder import Climb
from ferryman.testing.part import Part

TEMPLATE = "ferryman_template"


class Given(NamedTuple):
    """The URLs of servers that the environment named; None where it did not."""

    postgres: str | None = None
    kafka: str | None = None
    registry: str | None = None


class SharedParts:
    """Starts each part once, when it is first asked for."""

    def __init__(self, given: Given) -> None:
        self._finders: dict[str, Callable[[], tuple[Part, Climb]]] = {
            "postgres": partial(postgres.find, given.postgres, settings=postgres.FAST),
            "kafka": partial(kafka.find, given.kafka),
            "registry": partial(registry.find, given.registry),
        }
        self._locks = {kind: threading.Lock() for kind in (*self._finders, "template")}
        self._parts: dict[str, Part] = {}
        self._template: str | None = None
        self._listener: Listener | None = None
        self.climbs: list[Climb] = []

    def url(self, kind: str) -> str:
        """Where the part of that kind is; "template" is a migrated database to copy, on the shared server."""
        with self._locks[kind]:
            return self._made_template() if kind == "template" else self._found(kind).url

    def close(self) -> None:
        if self._template is not None:
            house.drop_database(self._parts["postgres"].url, self._template)
        if self._listener is not None:
            self._listener.close()
        for part in self._parts.values():
            part.close()

    def serve(self) -> tuple[str, int, str]:
        """Answers workers from now on; gives them the address and key."""
        key = secrets.token_hex(16)
        self._listener = Listener(("127.0.0.1", 0), authkey=key.encode())
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        host, port = self._listener.address
        return str(host), int(port), key

    def _found(self, kind: str) -> Part:
        if kind not in self._parts:
            self._parts[kind], climb = self._finders[kind]()
            self.climbs.append(climb)
        return self._parts[kind]

    def _made_template(self) -> str:
        if self._template is None:
            server = self.url("postgres")
            name = f"{TEMPLATE}_{secrets.token_hex(4)}"
            house.migrate(house.new_database(server, name))
            self._template = name
        return self._template

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                worker = listener.accept()
            except OSError:  # closed: the run is over
                return
            threading.Thread(target=self._answer, args=(worker,), daemon=True).start()

    def _answer(self, worker: "Connection[Any, Any]") -> None:
        with worker:
            kind = worker.recv()
            try:
                worker.send((True, self.url(kind)))
            except Exception as error:
                worker.send((False, str(error)))


class RemoteParts:
    """A worker's side of `SharedParts`."""

    def __init__(self, address: tuple[str, int, str]) -> None:
        self._host, self._port, self._key = address
        self._urls: dict[str, str] = {}

    def url(self, kind: str) -> str:
        if kind not in self._urls:
            with Client((self._host, self._port), authkey=self._key.encode()) as controller:
                controller.send(kind)
                good, answer = controller.recv()
            if not good:
                raise FerrymanError(f"no {kind} for this test run: {answer}")
            self._urls[kind] = answer
        return self._urls[kind]

    def close(self) -> None:
        """They belong to the controller."""
