"""A post arrives as it was given, signed. No redirect is followed, no cookie kept, no proxy used, nothing unpacked."""

import asyncio
import gzip
import threading
import time
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from ferryman.channels.http.client import HttpChannel
from ferryman.channels.outcome import Code, Delivered, Outcome, Rejected, Retry
from ferryman.runtime.version import __version__
from ferryman.testing.receiver import Answer, Receiver
from support.pace import in_time
from support.rawhttp import LOCAL, OK, Peer, RawServer, answers, keeps_answering, outcome_of, post, sent

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RAW = bytes(range(256))


def test_receiver_gets_the_bytes_and_a_signature_that_its_library_accepts() -> None:
    """N3."""
    body = '{"name": "Łódź"}'.encode()
    with Receiver() as receiver:
        given = post(f"{receiver.url}/in?x=1", body, secrets=(SECRET,), bearer="token", headers={"X-Shop": "7"})
        assert sent(given) == [Delivered(http_status=200)]
    [request] = receiver.requests
    assert (request.method, request.path, request.body) == ("POST", "/in?x=1", body)
    assert Webhook(SECRET).verify(request.body, dict(request.headers)) is not None
    told = {name: value for name, value in request.headers.items() if not name.startswith("webhook-")}
    assert told.pop("host") in receiver.url
    assert told == {
        "content-type": "application/json", "content-length": str(len(body)), "authorization": "Bearer token",
        "x-shop": "7", "user-agent": f"Ferryman/{__version__}", "accept": "*/*", "accept-encoding": "identity",
    }  # fmt: skip


def test_any_bytes_are_sent_as_they_are() -> None:
    with Receiver() as receiver:
        sent(post(receiver.url, RAW, content_type="application/octet-stream"), post(receiver.url, b""))
    assert [each.body for each in receiver.requests] == [RAW, b""]


def test_each_attempt_has_its_own_time_and_the_same_id() -> None:
    times = iter([1000.0, 1000.5, 2000.0, 2000.5])
    with Receiver() as receiver:
        given = post(receiver.url, secrets=(SECRET,))
        sent(given, given, clock=lambda: next(times))
    first, second = (each.headers for each in receiver.requests)
    assert (first["webhook-timestamp"], second["webhook-timestamp"]) == ("1000", "2000")
    assert first["webhook-id"] == second["webhook-id"]
    assert first["webhook-signature"] != second["webhook-signature"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_rejected_and_not_followed(status: int) -> None:
    """N15."""
    with Receiver() as target, Receiver(lambda _: Answer(status, headers={"Location": f"{target.url}/x"})) as receiver:
        found = outcome_of(sent(post(receiver.url)))
        assert isinstance(found, Rejected)
        assert found.code == Code.REDIRECTED
        assert target.requests == []
        assert len(receiver.requests) == 1


def test_cookies_are_neither_kept_nor_sent() -> None:
    with Receiver(lambda _: Answer(200, headers={"Set-Cookie": "a=b; Path=/"})) as receiver:
        sent(*[post(receiver.url)] * 3)
    assert all("cookie" not in each.headers for each in receiver.requests)


def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as proxy, Receiver() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert sent(post(receiver.url)) == [Delivered(http_status=200)]
        assert proxy.requests == []


def test_netrc_gives_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password geheim\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with Receiver() as receiver:
        sent(post(receiver.url))
    assert "authorization" not in receiver.requests[0].headers


def test_compressed_answer_is_not_unpacked() -> None:
    packed = gzip.compress(b"x" * 1_000_000)
    head = b"HTTP/1.1 400 Bad\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    with RawServer(answers(head + packed)) as server:
        found = outcome_of(sent(post(server.url)))
    assert isinstance(found, Rejected)
    assert found.excerpt is not None
    assert "xxx" not in found.excerpt


def test_excerpt_is_short_redacted_and_fit_for_the_database() -> None:
    """N14."""
    body = b"\0 password=geheim Bearer geheim \xff" + b"y" * 3000
    with Receiver(lambda _: Answer(422, body)) as receiver:
        found = outcome_of(sent(post(receiver.url)))
    assert isinstance(found, Rejected)
    assert found.excerpt is not None
    assert "geheim" not in found.excerpt
    assert "\0" not in found.excerpt
    assert 900 < len(found.excerpt) <= 1024


def test_answer_that_repeats_the_secrets_shows_none() -> None:
    """N14: a receiver may send back what it got, in any form."""
    with Receiver(
        lambda request: Answer(400, "; ".join(request.headers.values()).encode() + b" raw-secret")
    ) as receiver:
        found = outcome_of(sent(post(receiver.url, secrets=("raw-secret",), bearer="t0ken")))
    assert isinstance(found, Rejected)
    assert found.excerpt is not None
    assert "raw-secret" not in found.excerpt
    assert "t0ken" not in found.excerpt


def test_answers_and_retry_after_become_outcomes() -> None:
    plan = {
        "/200": Answer(204),
        "/429": Answer(429, headers={"Retry-After": "9"}),
        "/500": Answer(500),
        "/410": Answer(410),
    }
    with Receiver(lambda request: plan[request.path]) as receiver:
        found = sent(*[post(f"{receiver.url}{path}") for path in plan])
    kinds = [(type(each), getattr(each, "code", None), getattr(each, "after_seconds", None)) for each in found]
    assert kinds == [
        (Delivered, None, None), (Retry, Code.RATE_LIMITED, 9), (Retry, Code.SERVER_FAILED, None),
        (Rejected, Code.GONE, None),
    ]  # fmt: skip


def test_connection_is_kept_between_posts() -> None:
    with RawServer(keeps_answering()) as server:
        assert sent(*[post(server.url)] * 10) == [Delivered(excerpt="ok", http_status=200)] * 10
        assert server.connections == 1


def test_answer_of_exactly_the_limit_and_one_more_are_both_bounded() -> None:
    with Receiver(lambda request: Answer(200, b"z" * int(request.path[1:]))) as receiver:
        found = sent(*[post(f"{receiver.url}/{size}") for size in (4095, 4096, 4097, 0, 1)])
    assert [len(each.excerpt or "") for each in found if isinstance(each, Delivered)] == [1024, 1024, 1024, 0, 1]


def test_kept_connections_that_are_closed_burn_no_attempt() -> None:
    """A server that closes after each answer without saying so: without the second try half of the posts failed."""
    served: list[int] = []

    def serve(peer: Peer) -> None:
        if peer.request() is not None:
            served.append(peer.number)
            peer.say(OK)

    with RawServer(serve) as server:
        assert sent(*[post(server.url)] * 50) == [Delivered(excerpt="ok", http_status=200)] * 50
    assert len(served) == 50


@pytest.mark.parametrize("how", ["end", "reset"])
def test_kept_connection_closed_at_the_second_request_is_tried_once_on_a_new_one(how: str) -> None:
    requests: list[int] = []

    def serve(peer: Peer) -> None:
        while peer.request() is not None:
            requests.append(peer.number)
            if requests.count(peer.number) == 2:
                if how == "reset":
                    peer.reset()
                return
            peer.say(OK)

    with RawServer(serve) as server:
        assert sent(*[post(server.url)] * 2) == [Delivered(excerpt="ok", http_status=200)] * 2
    assert requests == [1, 1, 2]


def test_there_is_only_one_second_try() -> None:
    requests: list[int] = []

    def serve(peer: Peer) -> None:
        while peer.request() is not None:
            requests.append(peer.number)
            if len(requests) > 1:
                return
            peer.say(OK)

    with RawServer(serve) as server:
        _, found = sent(*[post(server.url)] * 2)
    assert isinstance(found, Retry)
    assert found.code == Code.CONNECTION_LOST
    assert requests == [1, 1, 2]


def test_new_connection_that_is_closed_is_not_tried_again() -> None:
    with RawServer(lambda peer: peer.request()) as server:
        found = outcome_of(sent(post(server.url)))
        assert isinstance(found, Retry)
        assert found.code == Code.CONNECTION_LOST
        assert server.connections == 1


def test_kept_connection_that_began_to_answer_is_not_tried_again() -> None:
    requests: list[int] = []

    def serve(peer: Peer) -> None:
        while peer.request() is not None:
            requests.append(peer.number)
            if len(requests) == 2:
                peer.say(b"HTTP/1.1 2")
                return
            peer.say(OK)

    with RawServer(serve) as server:
        _, found = sent(*[post(server.url)] * 2)
    assert isinstance(found, Retry)
    assert requests == [1, 1]


def test_64_slots_make_64_requests_at_once() -> None:
    together = threading.Barrier(64)

    def serve(peer: Peer) -> None:
        peer.request()
        together.wait(20)
        peer.say(OK)

    async def send_all(url: str) -> list[Outcome]:
        channel = HttpChannel(LOCAL.model_copy(update={"timeout_seconds": 30}))
        await channel.open()
        try:
            return list(await asyncio.gather(*[channel.send(post(url)) for _ in range(64)]))
        finally:
            await channel.close()

    with RawServer(serve) as server:
        began = time.monotonic()
        assert asyncio.run(send_all(server.url)) == [Delivered(excerpt="ok", http_status=200)] * 64
        assert in_time(time.monotonic() - began, 20)
