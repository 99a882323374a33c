"""The reports of the literal wallet: one try each, in bounded time, without a secret in the log."""

import socket
import time
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from ferryman import Done, Received
from ferryman.consumer.model import Record
from ferryman.services.wallet.literal_wallet import putting

REQUEST = uuid4()
TOKEN = "s3cret"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Accept connections, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def message(request: UUID = REQUEST) -> Received:
    data = {"request_id": request, "wallet_id": uuid4(), "amount": 500, "currency": "EUR"}
    return Received(request, "wallet.deduct", data, "", Record("payments.commands", 0, 0, b"", b"", [], 0), b"")


def told(port: int, token: str, timeout_seconds: float = 2.0) -> list[dict[str, object]]:
    """Return what the log says of a report."""
    with capture_logs() as logs:
        putting(f"http://127.0.0.1:{port}", token, timeout_seconds)(message(), Done())
    return [dict(each) for each in logs]


def test_a_silent_client_is_disconnected_after_a_while(server: socket.socket) -> None:
    began = time.monotonic()
    [warning] = told(server.getsockname()[1], TOKEN, timeout_seconds=0.1)
    assert time.monotonic() - began < 5
    assert (warning["event"], warning["request_id"]) == ("payment not told", str(REQUEST))
    assert "timed out" in str(warning["error"])


def test_a_report_that_nobody_receives_is_logged_and_not_repeated(server: socket.socket) -> None:
    port = server.getsockname()[1]
    server.close()
    [warning] = told(port, TOKEN)
    assert (warning["log_level"], warning["request_id"]) == ("warning", str(REQUEST))
    assert "refused" in str(warning["error"])


def test_a_token_that_no_header_can_carry_does_not_reach_the_log(server: socket.socket) -> None:
    """N14."""
    [warning] = told(server.getsockname()[1], TOKEN + "\nand more")
    assert (warning["event"], warning["error"]) == ("payment not told", "ValueError")
