"""The mail server and the HTTP receiver keep everything they get, and answer as they are told."""

import smtplib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from http.client import HTTPConnection, RemoteDisconnected
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from ferryman.testing.mail import ACCEPTED, MailServer, ReceivedMail
from ferryman.testing.receiver import Answer, ReceivedRequest, Receiver
from support.pace import in_time

PATIENCE_SECONDS = 10


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        yield server


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiving:
        yield receiving


def letter(subject: str = "Order 7") -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Shop <shop@example.com>", "ann@example.com", subject
    message.set_content("Dear Ann,\n.\nit costs 7 €.\n")
    message.add_attachment(bytes(range(256)), maintype="application", subtype="octet-stream", filename="all.bin")
    return message


def client_of(server: MailServer) -> smtplib.SMTP:
    return smtplib.SMTP("127.0.0.1", server.port, timeout=PATIENCE_SECONDS, local_hostname="localhost")


def deliver(server: MailServer, message: EmailMessage) -> None:
    with client_of(server) as client:
        client.send_message(message)


def ask_again(connection: HTTPConnection) -> None:
    connection.request("GET", "/")
    connection.getresponse()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def exchange(receiver: Receiver, method: str = "POST", path: str = "/", body: bytes = b"") -> tuple[int, bytes]:
    with urlopen(Request(receiver.url + path, body, method=method), timeout=PATIENCE_SECONDS) as answer:
        return answer.status, answer.read()


def test_accepted_mail_is_kept_with_envelope_and_content(mail_server: MailServer) -> None:
    with client_of(mail_server) as client:
        client.send_message(letter("Grüße"), "bounces@example.com", ["ann@example.com", "bcc@example.com"])
    (mail,) = mail_server.received
    assert (mail.sender, mail.recipients) == ("bounces@example.com", ("ann@example.com", "bcc@example.com"))
    assert mail.content["Subject"] == "Grüße"
    body = mail.content.get_body()
    assert body is not None
    assert body.get_content() == "Dear Ann,\n.\nit costs 7 €.\n"
    assert [part.get_content() for part in mail.content.iter_attachments()] == [bytes(range(256))]


def test_refused_mail_is_not_kept_and_the_sender_gets_the_reply(mail_server: MailServer) -> None:
    """Each mail gets its own reply, even within one connection."""
    mail_server.answer = lambda mail: "550 no such mailbox" if "nobody" in mail.recipients[0] else ACCEPTED
    with client_of(mail_server) as client:
        with pytest.raises(smtplib.SMTPDataError) as refused:
            client.send_message(letter(), to_addrs=["nobody@example.com"])
        client.send_message(letter())
    assert (refused.value.smtp_code, refused.value.smtp_error) == (550, b"no such mailbox")
    assert [mail.recipients for mail in mail_server.received] == [("ann@example.com",)]


def test_exception_closes_the_smtp_connection_without_a_reply(mail_server: MailServer) -> None:
    """The server still answers the next client."""

    def die(_: ReceivedMail) -> str:
        raise RuntimeError

    mail_server.answer = die
    client = client_of(mail_server)
    with pytest.raises(smtplib.SMTPServerDisconnected):
        client.send_message(letter())
    mail_server.answer = lambda _: ACCEPTED
    deliver(mail_server, letter())
    assert len(mail_server.received) == 1


def test_waiting_reply_delays_no_other_sender(mail_server: MailServer) -> None:
    """Twenty senders wait for one another: this works only if all are answered concurrently."""
    together = threading.Barrier(20)

    def wait_for_the_others(_: ReceivedMail) -> str:
        together.wait(PATIENCE_SECONDS)
        return ACCEPTED

    mail_server.answer = wait_for_the_others
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(deliver, [mail_server] * 20, [letter(str(number)) for number in range(20)]))
    assert sorted(int(mail.content["Subject"]) for mail in mail_server.received) == list(range(20))


def test_mail_accepted_after_its_sender_gave_up_is_kept(mail_server: MailServer) -> None:
    """A real mailbox keeps it too: to send it again is to send it twice."""
    asked, gone = threading.Event(), threading.Event()

    def answer_late(_: ReceivedMail) -> str:
        asked.set()
        gone.wait(PATIENCE_SECONDS)
        return ACCEPTED

    mail_server.answer = answer_late
    client = client_of(mail_server)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.send_message, letter())
        assert asked.wait(PATIENCE_SECONDS)
        assert client.sock is not None
        client.sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises((smtplib.SMTPServerDisconnected, OSError)):
            sending.result(PATIENCE_SECONDS)
    client.close()
    gone.set()
    until(lambda: mail_server.received)


def test_ended_mail_server_closes_its_connections() -> None:
    with MailServer() as server:
        client = client_of(server)
    with pytest.raises(smtplib.SMTPServerDisconnected):
        client.noop()
    with pytest.raises(ConnectionRefusedError):
        client_of(server)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_request_is_kept_with_method_path_headers_and_body(method: str, receiver: Receiver) -> None:
    body = bytes(range(256)) * 100
    ask = Request(f"{receiver.url}/hooks/7?a=b%20c", body, {"X-Signature": "sha256=Ab"}, method=method)
    with urlopen(ask, timeout=PATIENCE_SECONDS) as answer:
        assert answer.status == 200
    (request,) = receiver.requests
    assert (request.method, request.path, request.body) == (method, "/hooks/7?a=b%20c", body)
    assert request.headers["x-signature"] == "sha256=Ab"


def test_chunked_body_is_kept_as_one(receiver: Receiver) -> None:
    """The next request on the connection is read correctly."""
    connection = HTTPConnection(receiver.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    for body in ([b"first, ", b"x" * 100_000], [b"second"]):
        connection.request("POST", "/", iter(body), encode_chunked=True)
        assert connection.getresponse().read() == b""
    connection.close()
    assert [request.body for request in receiver.requests] == [b"first, " + b"x" * 100_000, b"second"]


def test_client_gets_the_configured_answer(receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(503, b"later", {"Retry-After": "7"})
    with pytest.raises(HTTPError) as refused:
        exchange(receiver)
    with refused.value as answer:
        assert (answer.code, answer.headers["Retry-After"], answer.read()) == (503, "7", b"later")
    receiver.answer = lambda request: Answer(202, request.body.upper())
    assert exchange(receiver, body=b"hello") == (202, b"HELLO")


def test_answer_to_head_has_no_body(receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(200, b"body")
    connection = HTTPConnection(receiver.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    for _ in range(2):
        connection.request("HEAD", "/")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Length"], answer.read()) == (200, "4", b"")
    connection.close()


def test_exception_closes_the_connection_without_an_answer(receiver: Receiver) -> None:
    """The request is kept, because it did arrive."""

    def die(_: ReceivedRequest) -> Answer:
        raise RuntimeError

    receiver.answer = die
    with pytest.raises(RemoteDisconnected):
        exchange(receiver, body=b"hello")
    receiver.answer = lambda _: Answer()
    assert exchange(receiver) == (200, b"")
    assert [request.body for request in receiver.requests] == [b"hello", b""]


def test_concurrent_requests_are_answered_concurrently(receiver: Receiver) -> None:
    """Fifty clients wait for one another: this works only if all are answered concurrently."""
    together = threading.Barrier(50)

    def wait_for_the_others(request: ReceivedRequest) -> Answer:
        together.wait(PATIENCE_SECONDS)
        return Answer(body=request.path.encode())

    receiver.answer = wait_for_the_others
    paths = [f"/{number}" for number in range(50)]
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda path: exchange(receiver, path=path), paths))
    assert answers == [(200, path.encode()) for path in paths]
    assert sorted(request.path for request in receiver.requests) == sorted(paths)


def test_answer_does_not_wait_for_an_acknowledgement(receiver: Receiver) -> None:
    """Without TCP_NODELAY each of the fifty answers would take 40 ms."""
    receiver.answer = lambda _: Answer(body=b"hello")
    connection = HTTPConnection(receiver.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    start = time.monotonic()
    for _ in range(50):
        connection.request("POST", "/", b"ask")
        assert connection.getresponse().read() == b"hello"
    connection.close()
    assert in_time(time.monotonic() - start, 1.5)


def test_ended_receiver_answers_no_request() -> None:
    """This includes connections that were kept open."""
    with Receiver() as receiver:
        connection = HTTPConnection(receiver.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
        connection.request("GET", "/")
        connection.getresponse().read()
    with pytest.raises(ConnectionError):
        ask_again(connection)
    connection.close()
    assert len(receiver.requests) == 1


def test_client_that_leaves_early_causes_no_error(receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    left = threading.Event()

    def answer_late(_: ReceivedRequest) -> Answer:
        left.wait(PATIENCE_SECONDS)
        return Answer(body=bytes(2**24))

    receiver.answer = answer_late
    with socket.create_connection(("127.0.0.1", receiver._server.server_port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        until(lambda: receiver.requests)
    left.set()
    until(lambda: not receiver._server._connections)
    assert capsys.readouterr().err == ""
