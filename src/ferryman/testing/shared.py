"""The servers that all tests of a run share: they start on first use, once for all workers.

Under pytest-xdist the controller holds them, and its workers ask for them over a socket.
"""

import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from ferryman.runtime.errors import FerrymanError
from ferryman.testing import kafka, postgres, registry, stack
from ferryman.testing.parts import Climb, Part

TEMPLATE = "ferryman_template"


class SharedParts:
    """The controller's servers: each is started once, when it is first needed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        given = environ.get
        self._started: dict[str, Callable[[], str]] = {
            "postgres": lambda: self._keep(postgres.find(given("FERRYMAN_DATABASE_URL"), settings=postgres.FAST)),
            "kafka": lambda: self._keep(kafka.find(given("FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"))),
            "registry": lambda: self._keep(registry.find(given("FERRYMAN_REGISTRY_URL"))),
            "template": self._make_template,
        }
        self._locks = {kind: threading.Lock() for kind in self._started}
        self._urls: dict[str, str] = {}
        self._closing = ExitStack()
        self.climbs: list[Climb] = []

    def url(self, kind: str) -> str:
        """Return the URL of a kind of server; "template" is the name of a migrated database to copy."""
        with self._locks[kind]:
            if kind not in self._urls:
                self._urls[kind] = self._started[kind]()
            return self._urls[kind]

    def close(self) -> None:
        """Stop the servers."""
        self._closing.close()

    def serve(self) -> tuple[str, int, str]:
        """Answer workers from now on, and return the address and key that they need."""
        key = secrets.token_hex(16)
        listener = self._closing.enter_context(Listener(("127.0.0.1", 0), authkey=key.encode()))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        host, port = listener.address
        return str(host), int(port), key

    def _keep(self, found: tuple[Part, Climb]) -> str:
        part, climb = found
        self._closing.callback(part.close)
        self.climbs.append(climb)
        return part.url

    def _make_template(self) -> str:
        server, name = self.url("postgres"), f"{TEMPLATE}_{secrets.token_hex(4)}"
        stack.migrate(self._closing.enter_context(stack.temporary_database(server, name)))
        return name

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
        """Return what the controller knows as this kind's URL."""
        if kind not in self._urls:
            with Client((self._host, self._port), authkey=self._key.encode()) as controller:
                controller.send(kind)
                good, answer = controller.recv()
            if not good:
                raise FerrymanError(f"no {kind} for this test run: {answer}")
            self._urls[kind] = answer
        return self._urls[kind]

    def close(self) -> None:
        """Do nothing: the servers belong to the controller."""
