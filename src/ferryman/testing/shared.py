"""The servers that all tests of a run share: they start on first use, once for all workers.

Under pytest-xdist the controller holds them, and its workers ask for them over a socket.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from ferryman.runtime.errors import FerrymanError
from ferryman.testing import kafka, postgres, registry, stack
from ferryman.testing.parts import Climb, Part

TEMPLATE = "ferryman_template"
_MOST_AHEAD = 4


class SpareDatabases:
    """Copies of the template, created before tests ask for them and dropped behind them: no test waits for either."""

    def __init__(self, server: str, template: str) -> None:
        self._server, self._template = server, template
        self._lent = 0
        self._spare: deque[Future[str]] = deque()
        self._lock = threading.Lock()
        self._creating, self._dropping = ThreadPoolExecutor(2), ThreadPoolExecutor(1)

    def lend(self) -> str:
        """Return the URL of a migrated database of its own."""
        with self._lock:
            self._lent += 1
            while len(self._spare) <= min(self._lent, _MOST_AHEAD):  # a run of one test needs few
                self._spare.append(self._creating.submit(self._create))
            database = self._spare.popleft()
        return database.result()

    def take_back(self, url: str) -> None:
        """Drop a database that was lent, soon."""
        self._dropping.submit(stack.drop_database, self._server, stack.name_of(url))

    def close(self) -> None:
        """Drop all that are left."""
        while self._spare:
            if not (database := self._spare.popleft()).cancel():
                self.take_back(database.result())
        self._creating.shutdown()
        self._dropping.shutdown()

    def _create(self) -> str:
        return stack.new_database(self._server, f"ferryman_test_{secrets.token_hex(6)}", self._template)


class SharedParts:
    """The controller's servers: each is started once, when it is first needed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        given = environ.get
        self._started: dict[str, Callable[[], str]] = {
            "postgres": lambda: self._keep(postgres.find(given("FERRYMAN_DATABASE_URL"), settings=postgres.FAST)),
            "kafka": lambda: self._keep(kafka.find(given("FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"))),
            "registry": lambda: self._keep(registry.find(given("FERRYMAN_REGISTRY_URL"))),
        }
        self._databases: SpareDatabases | None = None
        self._databases_lock = threading.Lock()
        self._locks = {kind: threading.Lock() for kind in self._started}
        self._urls: dict[str, str] = {}
        self._closing = ExitStack()
        self.climbs: list[Climb] = []

    def url(self, kind: str) -> str:
        """Return the URL of a kind of server."""
        with self._locks[kind]:
            if kind not in self._urls:
                self._urls[kind] = self._started[kind]()
            return self._urls[kind]

    def lend_database(self) -> str:
        """Return the URL of a migrated database that nobody else has."""
        with self._databases_lock:
            if self._databases is None:
                self._databases = self._prepare_databases()
        return self._databases.lend()

    def take_back_database(self, url: str) -> None:
        """Drop a database that was lent."""
        assert self._databases is not None
        self._databases.take_back(url)

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

    def _prepare_databases(self) -> SpareDatabases:
        server, name = self.url("postgres"), f"{TEMPLATE}_{secrets.token_hex(4)}"
        stack.migrate(self._closing.enter_context(stack.temporary_database(server, name)))
        return self._closing.enter_context(closing(SpareDatabases(server, name)))

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                worker = listener.accept()
            except OSError:  # closed: the run is over
                return
            threading.Thread(target=self._answer, args=(worker,), daemon=True).start()

    def _answer(self, worker: "Connection[Any, Any]") -> None:
        with worker, suppress(EOFError, OSError):  # until it ends
            while True:
                method, *arguments = worker.recv()
                try:
                    worker.send((True, getattr(self, method)(*arguments)))
                except Exception as error:
                    worker.send((False, str(error)))


class RemoteParts:
    """A worker's side of `SharedParts`."""

    def __init__(self, address: tuple[str, int, str]) -> None:
        host, port, key = address
        self._connect = partial(Client, (host, port), authkey=key.encode())
        self._controller: Connection[Any, Any] | None = None
        self._urls: dict[str, str] = {}

    def url(self, kind: str) -> str:
        """Return what the controller knows as this kind's URL."""
        if kind not in self._urls:
            self._urls[kind] = self._ask("url", kind)
        return self._urls[kind]

    def lend_database(self) -> str:
        """Return the URL of a migrated database that nobody else has."""
        return str(self._ask("lend_database"))

    def take_back_database(self, url: str) -> None:
        """Drop a database that was lent."""
        self._ask("take_back_database", url)

    def close(self) -> None:
        """Close the connection; the servers belong to the controller."""
        if self._controller is not None:
            self._controller.close()

    def _ask(self, *request: str) -> Any:
        self._controller = self._controller or self._connect()
        self._controller.send(request)
        good, answer = self._controller.recv()
        if not good:
            raise FerrymanError(f"no {' '.join(request)} for this test run: {answer}")
        return answer
