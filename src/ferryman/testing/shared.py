"""The servers that all tests of a run share: they start on first use, once for all workers.

Under pytest-xdist the controller holds them, and its workers ask for them over a socket.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing.managers import BaseManager
from typing import Any

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


class PartsManager(BaseManager):
    """The way of workers to the controller's servers."""


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

    def serve(self) -> tuple[tuple[str, int], str]:
        """Answer workers from now on, and return the address and key that they need."""
        key = secrets.token_hex(16)
        PartsManager.register("parts", callable=lambda: self, exposed=("url", "lend_database", "take_back_database"))
        server: Any = PartsManager(("127.0.0.1", 0), key.encode()).get_server()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.address, key

    def _keep(self, found: tuple[Part, Climb]) -> str:
        part, climb = found
        self._closing.callback(part.close)
        self.climbs.append(climb)
        return part.url

    def _prepare_databases(self) -> SpareDatabases:
        server, name = self.url("postgres"), f"{TEMPLATE}_{secrets.token_hex(4)}"
        stack.migrate(self._closing.enter_context(stack.temporary_database(server, name)))
        return self._closing.enter_context(closing(SpareDatabases(server, name)))


def remote_parts(address: tuple[str, int], key: str) -> SharedParts:
    """Return a worker's proxy of the controller's servers: it asks for URLs and databases, and closes nothing."""
    PartsManager.register("parts")
    controller = PartsManager(address, key.encode())
    controller.connect()
    parts: SharedParts = controller.parts()  # type: ignore[attr-defined]
    return parts
