"""Mails by Resend's API: the server's own record says that each key was sent once, whatever happened on the way."""

import json
import threading
from collections.abc import Callable

import pytest
import structlog

from ferryman.channels.model import Mail
from ferryman.channels.outcome import Code, Delivered, Held, Outcome, Rejected, Retry, Unavailable, Unknown
from ferryman.testing.proxy import FaultProxy, Faults
from ferryman.testing.receiver import Answer, ReceivedRequest, Receiver
from ferryman.testing.resend import KEY, ResendServer, refusal
from support.mailing import SECRETS, as_json, by_resend, email, in_doubt, mail, mailed


def kind(outcome: Outcome) -> tuple[type[Outcome], Code]:
    return type(outcome), getattr(outcome, "code", Code.OTHER)


def dies(_: ReceivedRequest) -> Answer:
    raise RuntimeError


def first(do: Callable[[ReceivedRequest], Answer]) -> Callable[[ReceivedRequest], Answer | None]:
    """Return a script that does this to the first request only."""
    begun = threading.Event()

    def script(request: ReceivedRequest) -> Answer | None:
        if begun.is_set():
            return None
        begun.set()
        return do(request)

    return script


def test_request_has_the_key_of_the_mail_and_the_same_bytes_each_time() -> None:
    """N3."""
    given = mail("ann@münchen.example", "Grüße", html="<b>7 €</b>")
    with ResendServer() as server:
        outcomes = mailed(given, in_doubt(given), settings=by_resend(server))
    [sent] = server.sent
    assert outcomes == [Delivered(sent.id)] * 2
    one, again = server.requests
    assert one.body == again.body
    assert one.headers["idempotency-key"] == again.headers["idempotency-key"] == given.key
    assert one.headers["authorization"] == f"Bearer {KEY}"
    assert json.loads(one.body) == {
        "from": "Shop <shop@example.com>", "to": ["ann@xn--mnchen-3ya.example"], "subject": "Grüße", "text": given.text,
        "html": "<b>7 €</b>",
    }  # fmt: skip


@pytest.mark.parametrize("fault", [dies, lambda _: refusal(500, "application_error"), lambda _: Answer(502)])
def test_mail_that_was_accepted_without_an_answer_is_sent_once(fault: Callable[[ReceivedRequest], Answer]) -> None:
    """N3 and N8: inside the window, asking again under the same key is the look-up."""
    with ResendServer(after=first(fault)) as server:
        lost, again = mailed(mail(), in_doubt(mail()), settings=by_resend(server))
    assert isinstance(lost, Unavailable)
    assert lost.in_doubt
    assert again == Delivered(server.sent[0].id)
    assert len(server.sent) == 1


def test_answer_that_comes_too_late_leaves_doubt_and_the_second_try_finds_the_first() -> None:
    over = threading.Event()

    def late_answer(_: ReceivedRequest) -> Answer:
        over.wait(30)
        return Answer(500)

    with ResendServer(after=first(late_answer)) as server:
        settings = by_resend(server, timeout_seconds=0.5)
        [late] = mailed(mail(), settings=settings)
        [meanwhile] = mailed(in_doubt(mail()), settings=settings)
        over.set()
        outcome: Outcome = meanwhile
        for _ in range(1000):  # until the first request has ended
            if isinstance(outcome, Delivered):
                break
            [outcome] = mailed(in_doubt(mail()), settings=settings)
    assert kind(late) == (Unavailable, Code.TIMED_OUT)
    assert kind(meanwhile) == (Retry, Code.ANSWER_RETRY), "the first one is still in progress"
    assert outcome == Delivered(server.sent[0].id)
    assert len(server.sent) == 1


def test_mail_that_alone_makes_the_provider_fail_uses_up_attempts() -> None:
    """N8."""

    def before(request: ReceivedRequest) -> Answer | None:
        return refusal(500, "application_error") if b"poison" in request.body else None

    with ResendServer(before=before) as server:
        poison = mail("poison@example.com")
        outcomes = mailed(poison, poison, mail(), poison, mail("b@example.com"), settings=by_resend(server))
    assert [type(each) for each in outcomes] == [Unavailable, Unavailable, Delivered, Unknown, Delivered]


def test_rate_limit_is_no_failure_of_a_mail() -> None:
    """N8: nobody looked at it, however many others got through."""

    def before(request: ReceivedRequest) -> Answer | None:
        return refusal(429, "rate_limit_exceeded") if b"unlucky" in request.body else None

    with ResendServer(before=before) as server:
        unlucky = mail("unlucky@example.com")
        outcomes = mailed(unlucky, mail(), unlucky, mail("b@example.com"), unlucky, settings=by_resend(server))
    assert [type(each) for each in outcomes] == [Unavailable, Delivered] * 2 + [Unavailable]


def test_outage_uses_up_nothing() -> None:
    """N8."""
    with ResendServer(before=lambda _: refusal(500, "application_error")) as server:
        outcomes = mailed(mail(), mail("b@example.com"), settings=by_resend(server))
    assert {kind(each) for each in outcomes} == {(Unavailable, Code.SERVER_FAILED)}


def test_key_that_the_provider_has_forgotten_is_held_before_it_is_used() -> None:
    """N3: the margin of an hour is ours."""
    day = 86_400.0
    with ResendServer() as server:
        inside, outside = mailed(
            in_doubt(mail(), day - 3601), in_doubt(mail("b@c.d"), day - 3600), settings=by_resend(server)
        )
        assert isinstance(inside, Delivered)
        assert kind(outside) == (Held, Code.NOT_LOOKED_UP)
        [sent] = mailed(in_doubt(mail("b@c.d"), day), settings=by_resend(server, in_doubt="resend"))
        assert isinstance(sent, Delivered)


def test_mail_whose_id_is_known_is_looked_up_also_outside_the_window() -> None:
    with ResendServer() as server:
        [sent] = mailed(mail(), settings=by_resend(server))
        assert isinstance(sent, Delivered)
        old, unknown = (in_doubt(mail(), 1e6, reference) for reference in (sent.reference, "49a3999c"))
        assert mailed(old, settings=by_resend(server)) == [sent]
        assert kind(mailed(unknown, settings=by_resend(server))[0]) == (Held, Code.NOT_LOOKED_UP)
    assert [each.method for each in server.requests] == ["POST", "GET", "GET"]


@pytest.mark.parametrize("reference", ["../keys", "a?b", "x" * 101, ""])
def test_reference_that_is_no_id_makes_no_request(reference: str) -> None:
    with ResendServer() as server:
        assert isinstance(mailed(in_doubt(mail(), 1e6, reference), settings=by_resend(server))[0], Held)
    assert server.requests == []


@pytest.mark.parametrize("fault", [dies, lambda _: Answer(503), lambda _: refusal(429, "rate_limit_exceeded")])
def test_look_up_that_fails_is_tried_later(fault: Callable[[ReceivedRequest], Answer]) -> None:
    """N8: an outage holds no mail."""
    with ResendServer(before=fault) as server:
        [outcome] = mailed(in_doubt(mail(), 1e6, "49a3999c"), settings=by_resend(server))
    assert isinstance(outcome, Unavailable)
    assert not outcome.in_doubt, "a question sends nothing"


def test_key_that_may_only_send_leaves_the_look_up_to_the_window() -> None:
    def before(request: ReceivedRequest) -> Answer | None:
        return refusal(401, "restricted_api_key") if request.method == "GET" else None

    with ResendServer(before=before) as server:
        inside, outside = mailed(
            in_doubt(mail(), 60, "49a3999c"), in_doubt(mail(), 1e6, "49a3999c"), settings=by_resend(server)
        )
    assert isinstance(inside, Delivered)
    assert isinstance(outside, Held)


def test_same_key_with_another_content_is_held() -> None:
    with ResendServer() as server:
        first_one, other = mail(), Mail("ann@example.com", "corrected", "Dear Ann", key=mail().key)
        sent, held = mailed(first_one, other, settings=by_resend(server))
    assert isinstance(sent, Delivered)
    assert kind(held) == (Held, Code.KEY_TAKEN)
    assert len(server.sent) == 1


def test_refused_api_key_names_its_setting_and_waits() -> None:
    """N8 and N14."""
    with ResendServer(key="re_other") as server:
        [outcome] = mailed(mail(), settings=by_resend(server, key="re_geheim"))
    assert kind(outcome) == (Unavailable, Code.LOGIN_REFUSED)
    assert "email.resend.key" in getattr(outcome, "error", "")
    assert "geheim" not in as_json(outcome)


def test_rate_limit_says_how_long_to_wait() -> None:
    with ResendServer(before=lambda _: refusal(429, "rate_limit_exceeded", retry_after=7)) as server:
        [outcome] = mailed(mail(), settings=by_resend(server))
    assert kind(outcome) == (Unavailable, Code.RATE_LIMITED)
    assert getattr(outcome, "after_seconds", None) == 7
    assert server.sent == []


@pytest.mark.parametrize(("status", "expected"), [(422, Rejected), (400, Rejected), (302, Unavailable)])
def test_answer_decides(status: int, expected: type[Outcome]) -> None:
    with Receiver(lambda _: Answer(status, headers={"Location": "/other"})) as server:
        [outcome] = mailed(mail(), settings=email("resend", resend={"url": server.url, "key": KEY}))
    assert isinstance(outcome, expected)
    assert len(server.requests) == 1, "no redirect is followed"


def test_request_that_is_cut_off_leaves_doubt_and_one_that_never_began_leaves_none() -> None:
    with ResendServer() as server, FaultProxy(server.url.removeprefix("http://")) as proxy:
        settings = email("resend", resend={"url": f"http://{proxy.address}", "key": KEY})
        proxy.faults = Faults(cut_after_bytes=10_000, cut_direction="to_server")
        [cut] = mailed(mail(text="x" * 50_000), settings=settings)
        proxy.down()
        [away] = mailed(mail(), settings=settings)
    assert isinstance(cut, Unavailable)
    assert cut.in_doubt
    assert kind(away) == (Unavailable, Code.CONNECTION_FAILED)
    assert not getattr(away, "in_doubt", True)


def test_endless_answer_takes_no_memory() -> None:
    """N12."""
    with Receiver(lambda _: Answer(200, b'{"id": "' + b"x" * (8 << 20))) as server:
        [outcome] = mailed(mail(), settings=email("resend", resend={"url": server.url, "key": KEY}))
    assert outcome == Delivered()


def test_outcomes_and_logs_show_no_secret_whatever_the_server_says() -> None:
    """N14."""
    said = " ".join([*SECRETS[:2], KEY]) + " Authorization: Bearer geheim"
    with structlog.testing.capture_logs() as logs:
        for status in (302, 400, 401, 403, 409, 429, 500):
            with ResendServer(before=lambda _, status=status: refusal(status, "some_error", said)) as server:  # type: ignore[misc]
                shown = "".join(map(as_json, mailed(mail(), settings=by_resend(server))))
            assert [each for each in (*SECRETS, "Bearer geheim") if each in shown] == [], status
    assert [each for each in SECRETS if each in str(logs)] == []
