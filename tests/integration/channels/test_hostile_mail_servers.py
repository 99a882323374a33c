"""Mail servers and APIs that break every rule: each mail has a clear end, and nothing is lost, doubled or leaked."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unavailable
from ferryman.runtime.settings_email import Email
from ferryman.testing.receiver import Answer, Receiver
from ferryman.testing.resend import KEY
from support.mailing import SECRETS, as_json, by_smtp, email, in_doubt, mail, mailed
from support.pace import in_time
from support.rawhttp import Peer, RawServer

USUAL = {
    "CONNECT": b"220 hello\r\n", "EHLO": b"250 hello\r\n", "MAIL": b"250 ok\r\n", "RCPT": b"250 ok\r\n",
    "DATA": b"354 go\r\n", "TEXT": b"250 queued\r\n", "RSET": b"250 ok\r\n", "QUIT": b"221 bye\r\n",
}  # fmt: skip
BEFORE_TEXT = ("CONNECT", "EHLO", "MAIL", "RCPT", "DATA")
CLOSE = b""


class Hostile:
    """An SMTP server that says any bytes in place of its usual reply to a command, and keeps what it got."""

    def __init__(self, **said: bytes | Callable[[Peer], object]) -> None:
        self.said = {**USUAL, **said}
        self.texts: list[bytes] = []
        self.commands: list[str] = []

    def __call__(self, peer: Peer) -> None:
        lines = peer.connection.makefile("rb")
        if not self._say(peer, "CONNECT"):
            return
        while line := lines.readline():
            command = line[:4].decode("latin-1").upper()
            self.commands.append(command)
            if not self._say(peer, command):
                return
            said = self.said.get(command)
            if command == "DATA" and isinstance(said, bytes) and said.startswith(b"354"):
                text = b"".join(iter(lines.readline, b".\r\n"))
                self.texts.append(text)
                if not self._say(peer, "TEXT"):
                    return

    def _say(self, peer: Peer, command: str) -> bool:
        said = self.said.get(command, b"502 what\r\n")
        if callable(said):
            said(peer)
            return False
        if said == CLOSE:
            return False
        peer.say(said)
        return True


@contextmanager
def hostile(**said: bytes | Callable[[Peer], object]) -> Iterator[tuple[Hostile, Email]]:
    server = Hostile(**said)
    with RawServer(server) as running:
        yield server, by_smtp(running.port, timeout_seconds=2)


def kind(outcome: Outcome) -> tuple[type[Outcome], Code]:
    return type(outcome), getattr(outcome, "code", Code.OTHER)


def memory() -> int:
    return int(psutil.Process().memory_info().rss)


def floods(line: bytes, code: bytes = b"") -> Callable[[Peer], object]:
    """Say a line again and again, without an end."""

    def say(peer: Peer) -> None:
        peer.say(code)
        while True:
            peer.say(line * 1000)

    return say


def drips(word: bytes, over: threading.Event) -> Callable[[Peer], object]:
    """Say a byte at a time, slower than the client waits."""

    def say(peer: Peer) -> None:
        for each in word * 100:
            peer.say(bytes([each]))
            if over.wait(0.05):
                return

    return say


# Replies without an end.


@pytest.mark.parametrize("command", BEFORE_TEXT)
@pytest.mark.parametrize("line", [b"250-more\r\n", b"220-" + b"x" * 4000 + b"\r\n", b"x" * 60, b"\r\n", b"\0"])
def test_reply_without_an_end_has_sent_nothing_and_takes_no_memory(command: str, line: bytes) -> None:
    """N12."""
    before = memory()
    with hostile(**{command: floods(line)}) as (server, settings):
        [outcome] = mailed(mail(), settings=settings)
    assert isinstance(outcome, Unavailable)
    assert not outcome.in_doubt
    assert server.texts == []
    assert memory() - before < 32 << 20


@pytest.mark.parametrize("line", [b"250-more\r\n", b"x" * 60])
def test_reply_without_an_end_after_the_text_leaves_doubt(line: bytes) -> None:
    """N3, N12."""
    with hostile(TEXT=floods(line)) as (server, settings):
        [outcome] = mailed(mail(), settings=settings)
    assert isinstance(outcome, Held)
    assert len(server.texts) == 1


def test_banner_of_ten_thousand_lines_is_an_outage() -> None:
    with hostile(CONNECT=b"220-welcome\r\n" * 10_000 + b"220 to us\r\n") as (server, settings):
        [outcome] = mailed(mail(), settings=settings)
    assert kind(outcome) == (Unavailable, Code.ANSWER_INVALID)
    assert server.texts == []


@pytest.mark.parametrize("command", [*BEFORE_TEXT, "TEXT"])
def test_reply_that_drips_ends_with_the_time_of_the_mail(command: str) -> None:
    over = threading.Event()
    with hostile(**{command: drips(b"250-slow\r\n", over)}) as (server, settings):
        began = time.monotonic()
        [outcome] = mailed(mail(), settings=settings)
        over.set()
    assert in_time(time.monotonic() - began, 10)
    assert kind(outcome) == (Held if command == "TEXT" else Unavailable, Code.TIMED_OUT)
    assert len(server.texts) == (command == "TEXT")


# Wrong replies.


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("CONNECT", b"250 ok\r\n"), ("CONNECT", b"354 go\r\n"), ("EHLO", b"354 go\r\n"), ("EHLO", b"220 hello\r\n"),
        ("MAIL", b"354 go\r\n"), ("MAIL", b"220 ok\r\n"), ("RCPT", b"354 go\r\n"), ("DATA", b"250 ok\r\n"),
        ("DATA", b"220 ok\r\n"), ("DATA", b"000 ok\r\n"), ("DATA", b"-54 go\r\n"), ("RCPT", b"1e2 ok\r\n"),
        ("MAIL", b"2\xb2\xb3 ok\r\n"), ("MAIL", b"\xff\xfe\r\n"), ("RCPT", b"<html>\r\n"),
    ],
)  # fmt: skip
def test_wrong_reply_before_the_text_has_sent_nothing(command: str, said: bytes) -> None:
    with hostile(**{command: said}) as (server, settings):
        [outcome] = mailed(mail(), settings=settings)
    assert isinstance(outcome, Unavailable)
    assert not outcome.in_doubt
    assert server.texts == []


@pytest.mark.parametrize("said", [b"354 go\r\n", b"000 ok\r\n", b"ok\r\n", b"\xff\r\n", b"-50 ok\r\n", b"150 wait\r\n"])
def test_wrong_reply_after_the_text_leaves_doubt(said: bytes) -> None:
    with hostile(TEXT=said) as (server, settings):
        [outcome] = mailed(mail(), settings=settings)
    assert kind(outcome) == (Held, Code.ANSWER_INVALID)
    assert len(server.texts) == 1


@pytest.mark.parametrize("command", [*BEFORE_TEXT, "TEXT"])
def test_server_that_closes_at_a_command_has_got_nothing_but_the_text(command: str) -> None:
    with hostile(**{command: CLOSE}) as (server, settings):
        [outcome] = mailed(mail(), settings=settings)
    assert isinstance(outcome, Held if command == "TEXT" else Unavailable)
    assert len(server.texts) == (command == "TEXT")


# Replies that nobody asked for.


@pytest.mark.parametrize(
    ("command", "said", "text"),
    [
        ("RCPT", b"250 ok\r\n354 go\r\n250 queued\r\n", b"550 5.7.1 spam\r\n"),
        ("DATA", b"354 go\r\n250 queued\r\n", b"550 5.7.1 spam\r\n"),
        ("DATA", b"354 go\r\n250 queued\r\n", b"451 4.3.0 later\r\n"),
        ("MAIL", b"250 ok\r\n250 ok\r\n354 go\r\n250 queued\r\n", b"550 5.7.1 spam\r\n"),
        ("CONNECT", b"220 hello\r\n250 a\r\n250 b\r\n250 c\r\n354 go\r\n250 queued\r\n", b"550 5.7.1 spam\r\n"),
    ],
)
def test_reply_that_was_said_too_early_is_not_the_reply_to_the_text(command: str, said: bytes, text: bytes) -> None:
    """N1: a mail that the server refuses is not delivered, whatever it said before."""
    with hostile(**{command: said, "TEXT": text}) as (_, settings):
        [outcome] = mailed(mail(), settings=settings)
    assert not isinstance(outcome, Delivered)


def test_reply_that_is_left_over_is_not_taken_for_one_to_the_next_mail() -> None:
    """N1, N10: the connection is given up, and the next mail has a new one."""
    with hostile(TEXT=b"250 queued\r\n250 ok\r\n354 go\r\n") as (server, settings):
        outcomes = mailed(mail(), mail("b@example.com"), mail("c@example.com"), settings=settings)
    assert [type(each) for each in outcomes] == [Delivered] * 3
    assert len(server.texts) == 3


def test_words_between_two_mails_are_not_taken_for_replies() -> None:
    """A server may say 421 at any time, and close."""

    with hostile(TEXT=b"250 queued\r\n421 4.4.2 idle\r\n") as (server, settings):
        outcomes = mailed(mail(), mail("b@example.com"), settings=settings)
    assert [type(each) for each in outcomes] == [Delivered] * 2
    assert len(server.texts) == 2


# Words.


@pytest.mark.parametrize("command", [*BEFORE_TEXT, "TEXT"])
@pytest.mark.parametrize("code", [b"450", b"550"])
def test_words_in_any_bytes_can_be_stored(command: str, code: bytes) -> None:
    """N14: neither half characters nor NUL, nor the words of the mail."""
    words = b" \xff\xfe\xed\xa0\x80\0 ann@example.com \xe2\x80\xa8 Order 7 is on its way\r\n"
    with hostile(**{command: code + words}) as (_, settings):
        [outcome] = mailed(mail(), settings=settings)
    shown = as_json(outcome)
    shown.encode()
    assert "\0" not in shown
    assert "ann@example.com" not in shown
    assert len(getattr(outcome, "error", "")) < 600


@pytest.mark.parametrize(
    "to", ["grüße@example.com", "用户@example.com", "ann@exa mple.com", "a\r\nRCPT TO:<b@c.d>@e.f"]
)
def test_address_that_needs_more_than_ascii_is_refused_before_a_connection(to: str) -> None:
    with hostile() as (server, settings):
        [outcome] = mailed(mail(to), settings=settings)
    assert kind(outcome) == (Rejected, Code.MAIL_INVALID)
    assert server.commands == []


def test_domain_in_any_letters_is_converted_for_servers_without_smtputf8() -> None:
    with hostile() as (server, settings):
        [outcome] = mailed(mail("ann@münchen.example"), settings=settings)
    assert isinstance(outcome, Delivered)
    assert b"xn--mnchen-3ya.example" in server.texts[0]


# Resend's API.


def answered(answer: Answer) -> tuple[list[Outcome], Receiver]:
    with Receiver(lambda _: answer) as server:
        settings = email("resend", resend={"url": server.url, "key": KEY}, timeout_seconds=5)
        return mailed(mail(), settings=settings), server


@pytest.mark.parametrize(
    "body",
    [
        b"<html>ok</html>", b"", b"{}", b"[]", b"null", b'"id"', b'{"id": 7}', b'{"id": null}', b'{"id": {"id": "a"}}',
        b'{"id": "' + b"x" * (4 << 20) + b'"}', b"[" * 200_000, b'{"id": "\\ud800"}', b'\xff\xfe{"id": 1}', b"9" * 5000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
    ],
)  # fmt: skip
def test_accepted_mail_is_delivered_whatever_the_body_says(body: bytes) -> None:
    """N3: a 2xx is an answer; to ask again would be in vain, and to fail would send it twice."""
    [outcome], server = answered(Answer(200, body))
    assert outcome == Delivered()
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>oops</html>", b"[" * 200_000, b"\xff" * 5000, b'{"name": 7, "message": []}'])
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Rejected), (401, Unavailable), (403, Unavailable), (404, Unavailable), (409, Retry), (413, Rejected),
        (422, Rejected), (429, Unavailable), (451, Rejected), (500, Unavailable), (502, Unavailable),
    ],
)  # fmt: skip
def test_status_decides_where_the_body_is_not_the_apis(status: int, expected: type[Outcome], body: bytes) -> None:
    [outcome], _ = answered(Answer(status, body))
    assert type(outcome) is expected
    assert [each for each in SECRETS if each in as_json(outcome)] == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed_and_takes_the_key_nowhere(status: int) -> None:
    """N14, N15."""
    with Receiver() as other:
        [outcome], server = answered(Answer(status, headers={"Location": other.url + "/emails"}))
    assert kind(outcome) == (Unavailable, Code.REDIRECTED)
    assert (len(server.requests), len(other.requests)) == (1, 0)


@pytest.mark.parametrize("after", ["-5", "soon", "1e999", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_wait_that_makes_no_sense_is_bounded(after: str) -> None:
    [outcome], _ = answered(Answer(429, headers={"Retry-After": after}))
    assert isinstance(outcome, Unavailable)
    assert 0 <= (outcome.after_seconds or 0.0) <= 604_800


@pytest.mark.parametrize("body", [b"<html>", b"[" * 200_000, b'{"id": "other"}'])
def test_look_up_that_says_nothing_sensible_sends_nothing(body: bytes) -> None:
    """N3: only the status of the look-up counts; a mail outside the window is not sent."""
    with Receiver(lambda request: Answer(200 if request.method == "GET" else 500, body)) as server:
        settings = email("resend", resend={"url": server.url, "key": KEY})
        [outcome] = mailed(in_doubt(mail(), 1e6, "49a3999c"), settings=settings)
    assert outcome == Delivered("49a3999c")
    assert [each.method for each in server.requests] == ["GET"]
