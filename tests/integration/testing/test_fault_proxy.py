"""Each fault of the proxy does what its name says, on real sockets. Without faults the proxy changes nothing."""

import contextlib
import queue
import random
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Self

import psycopg
import pytest
from psycopg import conninfo

from ferryman.testing import stack
from ferryman.testing.proxy import Direction, FaultProxy, Faults

MEGABYTE = 2**20
PATIENCE_SECONDS = 10
DICE = random.Random(20)


class Server:
    """A server with a thread for each client. The connection is closed when the handler returns."""

    def __init__(self, handler: Callable[["Server", socket.socket], None]) -> None:
        self.seen: queue.Queue[bytes | Exception] = queue.Queue()
        self._handler = handler
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def see(self) -> bytes | Exception:
        """Return the next item that a handler has seen."""
        return self.seen.get(timeout=PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            self._handler(self, client)


def echo(_: Server, client: socket.socket) -> None:
    while data := client.recv(65536):
        client.sendall(data)


def answer_at_the_end(_: Server, client: socket.socket) -> None:
    """Send everything back once the client has sent all of it."""
    client.sendall(read(client))


def see_everything(server: Server, client: socket.socket) -> None:
    """Note each piece of data, and then the end: b"" or the error."""
    try:
        while data := client.recv(65536):
            server.seen.put(data)
        server.seen.put(b"")
    except OSError as error:
        server.seen.put(error)


def pour(_: Server, client: socket.socket) -> None:
    """Send a megabyte without waiting for a reader, and close."""
    client.sendall(bytes(MEGABYTE))


def pour_when_asked(server: Server, client: socket.socket) -> None:
    """Wait for a byte of the client, so that a reset hits an established connection; then send a megabyte."""
    client.recv(1)
    pour(server, client)


@contextlib.contextmanager
def behind_proxy(handler: Callable[[Server, socket.socket], None]) -> Iterator[tuple[Server, FaultProxy]]:
    with Server(handler) as server, FaultProxy(server.address) as proxy:
        yield server, proxy


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS)


def ask(proxy: FaultProxy) -> bytes:
    with connect(proxy) as client:
        return client.recv(1)


def read(client: socket.socket, size: float = float("inf")) -> bytes:
    """Read so many bytes, or all until the end."""
    received = bytearray()
    while len(received) < size and (data := client.recv(int(min(65536, size - len(received))))):
        received += data
    return bytes(received)


def read_until_reset(client: socket.socket) -> bytes:
    received = bytearray()
    try:
        while data := client.recv(65536):
            received += data
    except ConnectionResetError:
        return bytes(received)
    raise AssertionError("the connection was closed in order")


def nothing_comes(client: socket.socket, seconds: float) -> bool:
    client.settimeout(seconds)
    try:
        return not client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(PATIENCE_SECONDS)


@contextlib.contextmanager
def takes(at_least: float, at_most: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert at_least <= time.monotonic() - start < at_most


def test_proxy_without_faults_changes_no_byte() -> None:
    """Several megabytes pass in each direction, on many connections at once."""
    blocks = [DICE.randbytes(MEGABYTE // 4) for _ in range(24)]

    def there_and_back(block: bytes) -> bytes:
        with connect(proxy) as client, ThreadPoolExecutor(1) as sending:
            sending.submit(client.sendall, block)
            return read(client, len(block))

    with behind_proxy(echo) as (_, proxy), ThreadPoolExecutor(12) as pool:
        assert list(pool.map(there_and_back, blocks)) == blocks


def test_hundreds_of_connections_are_open_at_once() -> None:
    with behind_proxy(echo) as (_, proxy), contextlib.ExitStack() as closing:
        clients = [closing.enter_context(connect(proxy)) for _ in range(200)]
        for number, client in enumerate(clients):
            client.sendall(b"%d" % number)
        assert [client.recv(10) for client in clients] == [b"%d" % number for number in range(200)]


def test_half_closed_connection_gets_its_answer() -> None:
    block = DICE.randbytes(4 * MEGABYTE)
    with behind_proxy(answer_at_the_end) as (_, proxy), connect(proxy) as client:
        client.sendall(block)
        client.shutdown(socket.SHUT_WR)
        assert read(client) == block


def test_answer_of_a_server_that_closes_at_once_is_complete() -> None:
    """The client reads late: by then the answer is in the buffers of the wire."""
    sent = threading.Event()

    def pour_and_say(server: Server, client: socket.socket) -> None:
        pour(server, client)
        sent.set()

    with behind_proxy(pour_and_say) as (_, proxy), connect(proxy) as client:
        assert sent.wait(PATIENCE_SECONDS)
        assert len(read(client)) == MEGABYTE


def test_latency_delays_each_way() -> None:
    """After it heals, a round trip takes less than the latency of one direction."""
    with behind_proxy(echo) as (_, proxy), connect(proxy) as client:
        proxy.faults = Faults(latency_seconds=0.2)
        with takes(0.4, PATIENCE_SECONDS):
            client.sendall(b"ping")
            assert client.recv(10) == b"ping"
        proxy.heal()
        with takes(0, 0.2):
            client.sendall(b"ping")
            assert client.recv(10) == b"ping"


def test_latency_costs_no_bandwidth() -> None:
    """Eight megabytes are in transit together: waiting for each chunk in turn would take half a minute."""
    block = DICE.randbytes(8 * MEGABYTE)
    with behind_proxy(answer_at_the_end) as (_, proxy), connect(proxy) as client, takes(0.4, PATIENCE_SECONDS):
        proxy.faults = Faults(latency_seconds=0.2)
        client.sendall(block)
        client.shutdown(socket.SHUT_WR)
        assert read(client) == block


def test_bandwidth_is_limited() -> None:
    """At no moment has more arrived than the rate allows, give or take 50 ms."""
    rate, size = 200_000, 100_000
    with behind_proxy(see_everything) as (server, proxy), connect(proxy) as client:
        proxy.faults = Faults(bytes_per_second=rate)
        start = time.monotonic()
        client.sendall(bytes(size))
        arrived = 0
        while arrived < size:
            data = server.see()
            assert isinstance(data, bytes)
            arrived += len(data)
            assert arrived <= rate * (time.monotonic() - start + 0.05)
        assert time.monotonic() - start < PATIENCE_SECONDS


def test_healed_slow_wire_delivers_the_rest_at_once() -> None:
    """At one byte a second, the rest would take a day."""
    with behind_proxy(see_everything) as (server, proxy), connect(proxy) as client:
        proxy.faults = Faults(bytes_per_second=1)
        client.sendall(bytes(100_000))
        client.shutdown(socket.SHUT_WR)
        assert server.see() == bytes(1)
        proxy.heal()
        assert len(b"".join(iter(server.see, b""))) == 99_999  # type: ignore[arg-type]


def test_zero_bandwidth_is_refused() -> None:
    with pytest.raises(ValueError, match="black_hole"):
        Faults(bytes_per_second=0)


def test_black_hole_delivers_only_after_it_heals() -> None:
    """It works in both directions, and delivers everything in the end."""
    with behind_proxy(echo) as (_, proxy), connect(proxy) as client:
        proxy.faults = Faults(black_hole=True)
        client.sendall(b"into the hole")
        assert nothing_comes(client, 0.2)
        proxy.heal()
        assert read(client, 13) == b"into the hole"


def test_connection_into_a_black_hole_is_served_after_it_heals() -> None:
    with behind_proxy(echo) as (_, proxy):
        proxy.faults = Faults(black_hole=True)
        with connect(proxy) as client:
            client.sendall(b"hello")
            assert nothing_comes(client, 0.1)
            proxy.heal()
            assert read(client, 5) == b"hello"


def test_both_sides_see_a_reset() -> None:
    """New connections are accepted afterwards."""
    with behind_proxy(see_everything) as (server, proxy), connect(proxy) as client:
        client.sendall(b"hello")
        assert server.see() == b"hello"
        proxy.reset()
        assert read_until_reset(client) == b""
        assert isinstance(server.see(), ConnectionResetError)
        with connect(proxy) as anew:
            anew.sendall(b"again")
            assert server.see() == b"again"


def test_reset_by_one_side_reaches_the_other() -> None:
    """It arrives after everything that was sent before it, even on a slow wire."""
    with behind_proxy(see_everything) as (server, proxy), connect(proxy) as client:
        proxy.faults = Faults(latency_seconds=0.1)
        client.sendall(b"last words")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert server.see() == b"last words"
        assert isinstance(server.see(), ConnectionResetError)


@pytest.mark.parametrize("bytes_", [0, 1, 1000, 500_000])
def test_cut_after_n_bytes_passes_exactly_n_to_the_client(bytes_: int) -> None:
    with behind_proxy(pour_when_asked) as (_, proxy):
        proxy.faults = Faults(cut_after_bytes=bytes_, cut_direction="to_client")
        with connect(proxy) as client:
            client.sendall(b"?")
            assert len(read_until_reset(client)) == bytes_


@pytest.mark.parametrize("bytes_", [0, 1, 1000, 500_000])
def test_cut_after_n_bytes_passes_exactly_n_to_the_server(bytes_: int) -> None:
    with behind_proxy(see_everything) as (server, proxy):
        proxy.faults = Faults(cut_after_bytes=bytes_, cut_direction="to_server")
        with connect(proxy) as client, contextlib.suppress(ConnectionError):
            client.sendall(bytes(MEGABYTE))
        arrived = b""
        while isinstance(data := server.see(), bytes) and data:
            arrived += data
        assert isinstance(data, ConnectionResetError)
        assert len(arrived) == bytes_


def test_cut_waits_for_a_late_reader() -> None:
    """The bytes before the cut are more than the reader's buffer holds, and still reach it."""
    with behind_proxy(lambda _, client: client.sendall(bytes(32 * MEGABYTE))) as (_, proxy):
        proxy.faults = Faults(cut_after_bytes=16 * MEGABYTE, cut_direction="to_client")
        with connect(proxy) as client:
            assert len(client.recv(1)) == 1
            assert len(read_until_reset(client)) == 16 * MEGABYTE - 1


def test_cut_counts_only_later_bytes() -> None:
    """Without a direction, both are counted together. Earlier bytes do not count."""
    with behind_proxy(echo) as (_, proxy), connect(proxy) as client:
        client.sendall(bytes(1000))
        assert len(read(client, 1000)) == 1000
        proxy.faults = Faults(cut_after_bytes=150)
        client.sendall(bytes(100))
        assert len(read_until_reset(client)) == 50


def test_slow_close_is_seen_late() -> None:
    """Data that was sent before is not late."""
    with behind_proxy(see_everything) as (server, proxy), connect(proxy) as client:
        proxy.faults = Faults(slow_close_seconds=0.3)
        with takes(0.3, PATIENCE_SECONDS):
            client.sendall(b"bye")
            client.shutdown(socket.SHUT_WR)
            with takes(0, 0.3):
                assert server.see() == b"bye"
            assert server.see() == b""


def test_proxy_goes_down_and_up_on_the_same_port() -> None:
    """Open connections are reset when it goes down, whatever they are doing."""
    with behind_proxy(pour) as (_, proxy), connect(proxy) as reading, connect(proxy) as waiting:
        address = proxy.address
        assert reading.recv(1) == bytes(1)
        proxy.down()
        proxy.down()
        read_until_reset(reading)
        read_until_reset(waiting)
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                connect(proxy)
        proxy.up()
        proxy.up()
        assert proxy.address == address
        with connect(proxy) as client:
            assert len(read(client)) == MEGABYTE


def test_missing_server_is_seen_as_a_reset() -> None:
    with Server(echo) as server:
        address = server.address
    with FaultProxy(address) as proxy, pytest.raises(ConnectionResetError):  # it may come before `connect` returns
        ask(proxy)


def test_target_can_be_assigned_after_the_start() -> None:
    """A broker needs this, because it tells its clients the proxy's port."""
    with FaultProxy() as proxy, Server(echo) as server:
        proxy.target = server.address
        with connect(proxy) as client:
            client.sendall(b"hello")
            assert read(client, 5) == b"hello"


def test_ended_proxy_leaves_nothing_with_open_connections() -> None:
    """It can be entered again, on its old port."""
    before = threading.active_count()
    with behind_proxy(pour) as (_, proxy), connect(proxy), connect(proxy) as client:
        proxy.faults = Faults(latency_seconds=60)
        client.shutdown(socket.SHUT_WR)
        connect(proxy).close()
    assert threading.active_count() == before
    with Server(echo) as server, proxy:
        proxy.heal()
        proxy.target = server.address
        with connect(proxy) as client:
            client.sendall(b"hello")
            assert read(client, 5) == b"hello"


def test_faults_can_change_in_any_thread_while_data_flows() -> None:
    """Faults that do not cut lose nothing: every byte arrives, in order."""
    block = DICE.randbytes(8 * MEGABYTE)
    weathers = [Faults(latency_seconds=0.005), Faults(bytes_per_second=1e7), Faults(black_hole=True), Faults()]
    over = threading.Event()

    def change() -> None:
        for weather in cycle(weathers):
            if over.wait(0.002):
                return
            proxy.faults = weather

    with behind_proxy(answer_at_the_end) as (_, proxy), connect(proxy) as client, ThreadPoolExecutor(2) as changing:
        for _ in range(2):
            changing.submit(change)
        client.sendall(block)
        client.shutdown(socket.SHUT_WR)
        try:
            assert read(client) == block
        finally:
            over.set()


@pytest.fixture
def database(ferryman_postgres: str) -> Iterator[str]:
    """Give the direct URL of a database with a table of words."""
    name = f"fault_proxy_{secrets.token_hex(4)}"
    url = stack.new_database(ferryman_postgres, name)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE words (word text)")
    yield url
    stack.drop_database(ferryman_postgres, name)


@pytest.fixture
def wire(database: str) -> Iterator[FaultProxy]:
    where = conninfo.conninfo_to_dict(database)
    with FaultProxy(f"{where['host']}:{where['port']}") as wire:
        yield wire


def through(proxy: FaultProxy, database: str) -> "psycopg.Connection[tuple[object, ...]]":
    return psycopg.connect(conninfo.make_conninfo(database, host="127.0.0.1", port=proxy.port))


def test_cut_within_a_result_is_an_operational_error(wire: FaultProxy, database: str) -> None:
    with through(wire, database) as connection:
        wire.faults = Faults(cut_after_bytes=MEGABYTE, cut_direction="to_client")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT repeat('x', 1000) FROM generate_series(1, 5000)").fetchall()
        assert connection.broken


@pytest.mark.parametrize(("direction", "kept"), [("to_server", []), ("to_client", [("hello",)])])
def test_cut_during_commit_leaves_the_commit_in_doubt(
    direction: Direction, kept: list[tuple[str]], wire: FaultProxy, database: str
) -> None:
    """The client sees the same error whether its COMMIT or the answer to it was lost."""
    with through(wire, database) as connection:
        connection.execute("INSERT INTO words VALUES ('hello')")
        wire.faults = Faults(cut_after_bytes=0, cut_direction=direction)
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    with psycopg.connect(database) as direct:
        assert direct.execute("SELECT word FROM words").fetchall() == kept
