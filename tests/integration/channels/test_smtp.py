"""Mails by SMTP, to a server that refuses, breaks off, is slow, or is not who it should be."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import structlog

from ferryman.channels.email import email_channel
from ferryman.channels.email.smtp import SmtpProvider
from ferryman.channels.email.smtp_connection import SmtpConnector
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unavailable, Unknown, storable
from ferryman.channels.sending import Item, Sending
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_http import Http
from ferryman.testing.mail import ACCEPTED, ACCEPTED_UNHEARD, MailServer, ReceivedMail
from ferryman.testing.proxy import FaultProxy, Faults
from ferryman.testing.resend import KEY
from support.mailing import SECRETS, as_json, by_smtp, in_doubt, mail, mailed, tls_server
from support.pace import in_time
from support.rawhttp import Peer, RawServer, addresses

LARGE = "x" * 70 + "\n"


def kind(outcome: Outcome) -> tuple[type[Outcome], Code]:
    return type(outcome), getattr(outcome, "code", Code.OTHER)


def at(command: str, reply: str) -> Callable[[str, str], str | None]:
    """Return a script that gives this reply to this command, and the usual one to the others."""
    return lambda given, _: reply if given == command else None


def dies_at(command: str) -> Callable[[str, str], str | None]:
    def script(given: str, _: str) -> str | None:
        if given == command:
            raise RuntimeError
        return None

    return script


# Replies.


@pytest.mark.parametrize(
    ("command", "reply", "expected"),
    [
        ("CONNECT", "421 4.3.2 closing", (Unavailable, Code.SERVER_BUSY)),
        ("CONNECT", "554 5.7.1 not you", (Unavailable, Code.SERVER_BUSY)),
        ("EHLO", "421 4.3.2 closing", (Unavailable, Code.SERVER_BUSY)),
        ("MAIL", "421 4.7.0 closing", (Unavailable, Code.SERVER_BUSY)),
        ("MAIL", "553 5.7.1 not yours", (Unavailable, Code.SENDER_REFUSED)),
        ("MAIL", "452 4.3.1 disk full", (Unavailable, Code.SERVER_BUSY)),
        ("MAIL", "530 5.7.0 authenticate first", (Unavailable, Code.LOGIN_REFUSED)),
        ("RCPT", "450 4.7.1 greylisted", (Retry, Code.MAILBOX_BUSY)),
        ("RCPT", "452 4.2.2 mailbox full", (Retry, Code.MAILBOX_BUSY)),
        ("RCPT", "550 5.1.1 no such user", (Rejected, Code.RECIPIENT_REFUSED)),
        ("RCPT", "421 4.4.5 busy", (Unavailable, Code.SERVER_BUSY)),
        ("DATA", "451 4.3.0 later", (Unavailable, Code.SERVER_BUSY)),
        ("DATA", "554 5.5.1 no", (Rejected, Code.REFUSED)),
    ],
)  # fmt: skip
def test_reply_before_the_text_is_certain(command: str, reply: str, expected: tuple[type[Outcome], Code]) -> None:
    """N8. The connection is used further where the server allows it."""
    with MailServer(script=at(command, reply)) as server:
        assert [kind(each) for each in mailed(mail(), mail(), settings=by_smtp(server))] == [expected] * 2
        server.script = lambda *_: None
        assert [kind(each)[0] for each in mailed(mail(), settings=by_smtp(server))] == [Delivered]
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("421 4.3.2 closing", (Unavailable, Code.SERVER_BUSY)), ("450 4.7.1 later", (Retry, Code.MAILBOX_BUSY)),
        ("452 4.3.1 disk full", (Unavailable, Code.SERVER_BUSY)), ("550 5.7.1 spam", (Rejected, Code.REFUSED)),
        ("552 too big", (Rejected, Code.MAIL_TOO_LARGE)), ("354 what", (Held, Code.ANSWER_INVALID)),
    ],
)  # fmt: skip
def test_reply_after_the_final_dot_decides(reply: str, expected: tuple[type[Outcome], Code]) -> None:
    with MailServer(lambda _: reply) as server:
        assert kind(mailed(mail(), settings=by_smtp(server))[0]) == expected
    assert server.received == []


@pytest.mark.parametrize(("command", "reply"), [("RCPT", "550 5.1.1 unknown"), ("MAIL", "452 4.3.1 disk full")])
def test_refused_mail_does_not_end_the_connection(command: str, reply: str) -> None:
    with MailServer(script=at(command, reply)) as server:
        mailed(mail(), mail(), mail(), settings=by_smtp(server))
    assert server.commands.count("CONNECT") == 1
    assert server.commands.count("RSET") == 2, "the server has to forget the mail before"


def test_server_that_does_not_forget_a_refused_mail_gets_a_new_connection() -> None:
    script = {"RCPT": "550 5.1.1 unknown", "RSET": "500 what"}
    with MailServer(script=lambda command, _: script.get(command)) as server:
        outcomes = mailed(mail(), mail(), settings=by_smtp(server))
    assert {kind(each) for each in outcomes} == {(Rejected, Code.RECIPIENT_REFUSED)}
    assert server.connections == 2


def test_server_that_knows_no_ehlo_gets_helo() -> None:
    with MailServer(script=at("EHLO", "502 what")) as server:
        assert [type(each) for each in mailed(mail(), settings=by_smtp(server))] == [Delivered]


def test_mail_that_is_larger_than_the_server_takes_is_not_sent() -> None:
    with MailServer(size_limit=20_000) as server:
        outcomes = mailed(mail(text=LARGE * 1000), mail(), settings=by_smtp(server))
    assert [kind(each) for each in outcomes] == [(Rejected, Code.MAIL_TOO_LARGE), (Delivered, Code.OTHER)]
    assert server.commands.count("MAIL") == 1


# Lost lines.


@pytest.mark.parametrize("command", ["CONNECT", "EHLO", "MAIL", "RCPT", "DATA"])
def test_line_that_is_lost_before_the_text_has_sent_nothing(command: str) -> None:
    with MailServer(script=dies_at(command)) as server:
        [outcome] = mailed(mail(), settings=by_smtp(server))
    assert isinstance(outcome, Unavailable)
    assert not outcome.in_doubt
    assert server.received == []


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        *product(("MAIL", "RCPT", "DATA"), (None, "451 4.3.0 later", "452 4.3.1 disk full", "421 4.4.2 timeout")),
        ("MAIL", "354 what"), ("DATA", "250 what"),
    ],
)  # fmt: skip
def test_mail_that_alone_makes_the_server_fail_uses_up_attempts(command: str, reply: str | None) -> None:
    """N8: once others got through between two of its failures, this one must end."""
    poisoned = False

    def script(given: str, argument: str) -> str | None:
        nonlocal poisoned
        poisoned = "poison" in argument if given == "RCPT" else poisoned
        large = len(argument.partition("SIZE=")[2]) > 4
        if given == command and (large if command == "MAIL" else poisoned):
            if reply is None:
                raise RuntimeError
            return reply
        return None

    poison = mail("poison@example.com", text=LARGE * 150)
    with MailServer(script=script, size_limit=1 << 20) as server:
        outcomes = mailed(poison, poison, mail(), poison, mail("ben@example.com"), settings=by_smtp(server))
    assert [type(each) for each in outcomes] == [Unavailable, Unavailable, Delivered, Retry, Delivered]


@pytest.mark.parametrize(("setting", "expected"), [("hold", Held), ("resend", Unknown)])
def test_line_that_is_lost_inside_the_text_leaves_doubt(setting: str, expected: type[Outcome]) -> None:
    with MailServer() as server, FaultProxy(server.address) as proxy:
        proxy.faults = Faults(cut_after_bytes=50_000, cut_direction="to_server")
        [outcome] = mailed(mail(text=LARGE * 2000), settings=by_smtp(proxy.port, in_doubt=setting))
    assert kind(outcome) == (expected, Code.CONNECTION_LOST)
    assert server.received == []


@pytest.mark.parametrize(("setting", "expected"), [("hold", Held), ("resend", Unknown)])
def test_line_that_is_lost_after_the_final_dot_leaves_doubt(setting: str, expected: type[Outcome]) -> None:
    """The mail has arrived, and only the server knows."""
    with MailServer(lambda _: ACCEPTED_UNHEARD) as server:
        [outcome] = mailed(mail(), settings=by_smtp(server, in_doubt=setting))
    assert kind(outcome) == (expected, Code.CONNECTION_LOST)
    assert len(server.received) == 1


def test_mail_in_doubt_is_held_or_sent_again_with_the_same_id() -> None:
    """N3."""
    with MailServer() as server:
        mailed(mail(), in_doubt(mail()), settings=by_smtp(server))
        assert len(server.received) == 1
        mailed(in_doubt(mail()), settings=by_smtp(server, in_doubt="resend"))
    first, again = (each.content for each in server.received)
    assert first["Message-ID"] == again["Message-ID"]
    assert [part.as_bytes() for part in first.walk()][1:] == [part.as_bytes() for part in again.walk()][1:]


# Slow servers.


@pytest.mark.parametrize("command", ["CONNECT", "MAIL", "RCPT", "DATA"])
def test_server_that_is_slow_before_the_text_has_sent_nothing(command: str) -> None:
    over = threading.Event()
    with MailServer(script=lambda given, _: str(over.wait(30)) if given == command else None) as server:
        [outcome] = mailed(mail(), settings=by_smtp(server, timeout_seconds=0.5))
        over.set()
    assert kind(outcome) == (Unavailable, Code.TIMED_OUT)


def test_server_that_is_slow_after_the_final_dot_leaves_doubt() -> None:
    over = threading.Event()

    def answer(_: ReceivedMail) -> str:
        over.wait(30)
        return ACCEPTED

    with MailServer(answer) as server:
        [outcome] = mailed(mail(), settings=by_smtp(server, timeout_seconds=0.5))
        over.set()
    assert kind(outcome) == (Held, Code.TIMED_OUT)


def test_slow_mail_delays_no_other() -> None:
    """N10."""
    over = threading.Event()

    def answer(found: ReceivedMail) -> str:
        if found.recipients == ("slow@example.com",):
            over.wait(30)
        return ACCEPTED

    with MailServer(answer) as server:
        settings = by_smtp(server, timeout_seconds=6)
        outcomes = mailed(
            mail("slow@example.com"),
            *[mail(f"user{n}@example.com") for n in range(30)],
            settings=settings,
            at_once=True,
        )
        over.set()
    assert [type(each) for each in outcomes] == [Held] + [Delivered] * 30


def test_deadline_of_the_process_cancels_a_send_and_closes_its_connection() -> None:
    """N16."""
    over = threading.Event()

    def answer(_: ReceivedMail) -> str:
        over.wait(30)
        return ACCEPTED

    with MailServer(answer) as server:
        channel = email_channel(by_smtp(server, timeout_seconds=60), Http(), 4)
        with Sending(channel, slots=4, deadline_seconds=0.5) as sending:
            sending.begin([Item(1, mail())])
            [finished] = sending.ended(10)
            assert kind(finished.outcome) == (Unknown, Code.DEADLINE_PASSED)
        over.set()


# Connections.


def test_connections_are_kept_and_bounded() -> None:
    """N12."""
    with MailServer() as server:
        many = [mail(f"user{n}@example.com") for n in range(60)]
        outcomes = mailed(*many, settings=by_smtp(server, connections=3, timeout_seconds=60), at_once=True)
    assert [type(each) for each in outcomes] == [Delivered] * 60
    assert server.connections == 3
    assert server.commands.count("QUIT") == 3


def provider_of(channel: Any) -> SmtpProvider:
    provider = channel._provider
    assert isinstance(provider, SmtpProvider)
    return provider


def closing_meanwhile(close: Callable[[MailServer, Any], object], **settings: Any) -> tuple[list[Outcome], MailServer]:
    """Send a mail, let its connection come to an end, and send another one."""

    async def send(server: MailServer) -> list[Outcome]:
        channel = email_channel(by_smtp(server, **settings), Http(), 4)
        await channel.open()
        first = await channel.send(mail())
        close(server, channel)
        second = await channel.send(mail("ben@example.com"))
        await channel.close()
        return [first, second]

    with MailServer() as server:
        return asyncio.run(send(server)), server


def test_kept_connection_that_the_server_closed_costs_nothing() -> None:
    """The server may close it when the next mail is on its way already."""

    def close(server: MailServer, _: Any) -> None:
        """Let the second MAIL of a connection find it closed."""
        server.script = lambda command, _: dies(server) if command == "MAIL" and server.connections == 1 else None

    def dies(_: MailServer) -> None:
        raise RuntimeError

    outcomes, server = closing_meanwhile(close)
    assert [type(each) for each in outcomes] == [Delivered, Delivered]
    assert server.connections == 2
    assert len(server.received) == 2


def test_server_that_takes_so_many_mails_in_a_connection_costs_nothing() -> None:
    def close(server: MailServer, _: Any) -> None:
        server.script = lambda command, _: (
            "421 4.7.0 too many mails" if command == "MAIL" and server.connections == 1 else None
        )

    outcomes, server = closing_meanwhile(close)
    assert [type(each) for each in outcomes] == [Delivered, Delivered]
    assert server.connections == 2


def test_new_connection_has_no_second_try() -> None:
    with MailServer(script=dies_at("MAIL")) as server:
        mailed(mail(), settings=by_smtp(server))
    assert server.connections == 1


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """N12."""
    monkeypatch.setattr("ferryman.channels.email.smtp._KEPT_SECONDS", 0.2)

    async def send(server: MailServer) -> None:
        channel = email_channel(by_smtp(server), Http(), 4)
        await channel.open()
        await asyncio.gather(*[channel.send(mail(f"user{n}@example.com")) for n in range(4)])
        assert len(provider_of(channel)._idle) == 4
        until = time.monotonic() + 10
        while provider_of(channel)._idle:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        await channel.close()

    with MailServer() as server:
        asyncio.run(send(server))
        until = time.monotonic() + 10
        while server.commands.count("QUIT") < 4:
            assert time.monotonic() < until
            time.sleep(0.01)


# Encryption and login.


def test_mails_go_through_starttls_and_tls_from_the_first_byte(tmp_path: Path) -> None:
    context, ca_file = tls_server(tmp_path, "127.0.0.1")
    with MailServer(tls=context) as offers, MailServer(tls=context, implicit=True) as encrypts:
        assert isinstance(mailed(mail(), settings=by_smtp(offers, tls="starttls", ca_file=ca_file))[0], Delivered)
        assert isinstance(mailed(mail(), settings=by_smtp(encrypts, tls="tls", ca_file=ca_file))[0], Delivered)
    assert offers.commands[:4] == ["CONNECT", "EHLO", "STARTTLS", "EHLO"]
    assert len(encrypts.received) == 1


@pytest.mark.parametrize("stripped", ["no extension", "454 4.7.0 TLS not available", "502 what"])
def test_nothing_is_sent_in_the_clear_if_starttls_is_stripped(stripped: str, tmp_path: Path) -> None:
    """N14."""
    context, ca_file = tls_server(tmp_path, "127.0.0.1")
    script = (lambda *_: None) if stripped == "no extension" else at("STARTTLS", stripped)
    tls = None if stripped == "no extension" else context
    with MailServer(script=script, tls=tls, login=("shop", "geheim-4711")) as server:
        settings = by_smtp(server, tls="starttls", ca_file=ca_file, user="shop", password="geheim-4711")
        [outcome] = mailed(mail(), settings=settings)
    assert kind(outcome) == (Unavailable, Code.TLS_FAILED)
    assert set(server.commands) <= {"CONNECT", "EHLO", "STARTTLS", "QUIT"}
    assert server.received == []


@pytest.mark.parametrize(("tls", "implicit"), [("starttls", False), ("tls", True)])
@pytest.mark.parametrize(("host", "trusted"), [("127.0.0.2", True), ("127.0.0.1", False)])
def test_certificate_of_somebody_else_is_refused(
    tls: str, implicit: bool, host: str, trusted: bool, tmp_path: Path
) -> None:
    context, ca_file = tls_server(tmp_path, host)
    with MailServer(tls=context, implicit=implicit) as server:
        [outcome] = mailed(mail(), settings=by_smtp(server, tls=tls, ca_file=ca_file if trusted else None))
    assert kind(outcome) == (Unavailable, Code.TLS_FAILED)
    assert set(server.commands) <= {"CONNECT", "EHLO", "STARTTLS"}


def test_server_that_speaks_no_tls_is_refused() -> None:
    with MailServer() as server:
        [outcome] = mailed(mail(), settings=by_smtp(server, tls="tls"))
    assert kind(outcome) == (Unavailable, Code.TLS_FAILED)
    assert server.received == []


def test_file_of_certificates_that_cannot_be_read_names_its_setting(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    for file in ("no.pem", "missing.pem"):
        with pytest.raises(Misconfigured) as refused:
            mailed(mail(), settings=by_smtp(1, tls="tls", ca_file=tmp_path / file))
        assert refused.value.setting == "email.smtp.ca_file"


def test_login_is_made_once_for_a_connection() -> None:
    with MailServer(login=("shop", "geheim-4711")) as server:
        settings = by_smtp(server, user="shop", password="geheim-4711")
        assert [type(each) for each in mailed(mail(), mail(), settings=settings)] == [Delivered] * 2
    assert server.commands.count("AUTH") == 1


def test_refused_login_waits_names_its_settings_and_leaves_the_server_alone() -> None:
    """N8 and N14."""
    with MailServer(login=("shop", "other")) as server:
        settings = by_smtp(server, user="shop", password="geheim-4711", connections=1)
        outcomes = mailed(mail(), mail(), mail(), settings=settings)
    assert {kind(each) for each in outcomes} == {(Unavailable, Code.LOGIN_REFUSED)}
    assert "email.smtp.user and email.smtp.password" in getattr(outcomes[0], "error", "")
    assert "535 5.7.8" in getattr(storable(outcomes[0]), "error", ""), "it was masked: it came behind `password:`"
    assert "geheim" not in as_json(outcomes[0])
    assert server.connections == 1
    assert "MAIL" not in server.commands


@pytest.mark.parametrize(
    ("reply", "code"), [("454 4.7.0 try later", Code.SERVER_BUSY), ("535 5.7.8 no", Code.LOGIN_REFUSED)]
)
def test_login_that_the_server_cannot_check_now_is_an_outage(reply: str, code: Code) -> None:
    with MailServer(script=at("AUTH", reply), login=("shop", "x")) as server:
        [outcome] = mailed(mail(), settings=by_smtp(server, user="shop", password="x"))
    assert kind(outcome) == (Unavailable, code)


def test_server_without_a_login_is_told_from_one_that_refuses_it() -> None:
    with MailServer() as server:
        [outcome] = mailed(mail(), settings=by_smtp(server, user="shop", password="x"))
    assert kind(outcome) == (Unavailable, Code.LOGIN_REFUSED)
    assert server.received == []


# Hosts and hostile servers.


def test_host_without_a_name_or_a_server_is_an_outage() -> None:
    settings = by_smtp(1)
    unknown = settings.model_copy(update={"smtp": settings.smtp.model_copy(update={"host": "no.such.host.invalid"})})
    assert kind(mailed(mail(), settings=settings)[0]) == (Unavailable, Code.CONNECTION_FAILED)
    assert kind(mailed(mail(), settings=unknown)[0]) == (Unavailable, Code.NAME_NOT_RESOLVED)


def test_next_address_of_the_host_is_tried() -> None:
    async def connect(port: int) -> str:
        connector = SmtpConnector(by_smtp(port).smtp, addresses("127.0.0.2", "127.0.0.1"))
        connector.open()
        connection = await connector.connect()
        await connection.quit()
        return str(connection.client.is_connected)

    with MailServer() as server:
        assert asyncio.run(connect(server.port)) == "False"
    assert server.commands == ["CONNECT", "EHLO", "QUIT"]


def test_name_server_that_hangs_delays_no_end() -> None:
    """N16: a process waits for the threads of asyncio's own lookups before it ends."""
    over = threading.Event()

    def hangs(*_: object, **__: object) -> list[Any]:
        over.wait(30)
        return []

    async def connect() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await SmtpConnector(by_smtp(1).smtp, hangs).connect()

    began = time.monotonic()
    asyncio.run(connect())
    assert in_time(time.monotonic() - began, 5)
    over.set()


@pytest.mark.parametrize(
    "words", [b"HTTP/1.1 200 OK\r\n\r\n", b"\x00\xff" * 10 + b"\r\n", b"250-x" * 20_000, b"220-a\r\n" * 9000]
)
def test_server_that_does_not_speak_smtp_is_an_outage_and_takes_no_memory(words: bytes) -> None:
    """N12."""

    for greeting in (b"", b"220 hello\r\n"):

        def serve(peer: Peer, greeting: bytes = greeting) -> None:
            peer.say(greeting)
            if greeting:
                peer.connection.recv(100)
            peer.say(words)
            peer.connection.recv(100)

        with RawServer(serve) as server:
            [outcome] = mailed(mail(), settings=by_smtp(server.port, timeout_seconds=5))
        assert isinstance(outcome, Unavailable)


def test_server_that_answers_twice_delivers_nothing() -> None:
    """The second reply to a command is not taken for the reply to the text."""

    def serve(peer: Peer) -> None:
        lines = peer.connection.makefile("rb")
        peer.say(b"220 hello\r\n")
        while lines.readline():
            peer.say(b"250 ok\r\n250 ok again\r\n")

    with RawServer(serve) as server:
        [outcome] = mailed(mail(), settings=by_smtp(server.port))
    assert kind(outcome) == (Unavailable, Code.ANSWER_INVALID)


def test_outcomes_and_logs_show_no_secret_whatever_the_server_says(caplog: pytest.LogCaptureFixture) -> None:
    """N14."""
    said = " ".join(each for each in SECRETS if each != KEY)
    with structlog.testing.capture_logs() as logs, caplog.at_level(logging.DEBUG, "aiosmtplib"):
        for command in ("CONNECT", "EHLO", "AUTH", "MAIL", "RCPT", "DATA"):
            for code in ("421", "450", "550"):
                script = at(command, f"{code} {said} password=geheim-4711")
                with MailServer(script=script, login=("shop", "geheim-4711")) as server:
                    settings = by_smtp(server, user="shop", password="geheim-4711")
                    shown = "".join(map(as_json, mailed(mail(), settings=settings)))
                # Before it has the mail, a server cannot repeat it. Its text cannot be told from other words.
                told = SECRETS if command in ("MAIL", "RCPT", "DATA") else (SECRETS[0], *SECRETS[3:])
                assert [each for each in told if each in shown and each != "Dear Ann"] == [], (command, code)
    assert [each for each in SECRETS if each in str(logs)] == []


def test_no_connection_stays_open_after_the_end(tmp_path: Path) -> None:
    """N12."""
    context, ca_file = tls_server(tmp_path, "127.0.0.1")
    with MailServer(tls=context) as server:
        mailed(*[mail(f"user{n}@example.com") for n in range(10)], at_once=True,
               settings=by_smtp(server, tls="starttls", ca_file=ca_file))  # fmt: skip
        until = time.monotonic() + 10
        while server.commands.count("QUIT") < server.connections:
            assert time.monotonic() < until
            time.sleep(0.01)
