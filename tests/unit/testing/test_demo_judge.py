"""The judges of the webhooks and the reviews demo: what they count, and what they call wrong."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ferryman.demo.notifying import RECIPIENTS, NotifyingOutcome, count_mails, subject_of
from ferryman.demo.posting import ENDPOINTS, EVENTS, PostingOutcome, ReceiverJudge
from ferryman.testing.receiver import ReceivedRequest
from ferryman.testing.resend import SentMail


def request(endpoint: str, order: int, identity: str = "") -> ReceivedRequest:
    headers = {"webhook-id": identity or f"{endpoint}/{order}"}
    return ReceivedRequest("POST", f"/{endpoint}", headers, json.dumps({"order": order}).encode())


def judged(*, but: tuple[str, int] | None = None) -> ReceiverJudge:
    """Return a judge that every endpoint's events reached as they should, but one."""
    judge = ReceiverJudge()
    for endpoint in ENDPOINTS:
        for order in range(EVENTS):
            for _ in range(0 if (endpoint, order) == but else 3):
                judge.answer(request(endpoint, order))
    judge.mended = True
    for order in range(EVENTS):
        judge.answer(request("dies", order))
    return judge


def outcome(judge: ReceiverJudge) -> PostingOutcome:
    ended = {"Completed": 3 * EVENTS, "DeadLettered": EVENTS}
    return PostingOutcome(("here",), 1.0, EVENTS, ended, EVENTS, EVENTS, {}, **judge.count())


def test_endpoints_answer_as_the_demo_says() -> None:
    judge = ReceiverJudge()
    statuses = {name: [judge.answer(request(name, 1)).status for _ in range(3)] for name in ENDPOINTS}
    assert statuses == {"well": [204] * 3, "heals": [503, 503, 204], "dies": [503] * 3}
    judge.mended = True
    assert judge.answer(request("dies", 1)).status == 204


def test_an_event_that_comes_again_is_good_and_all_else_is_wrong() -> None:
    good = outcome(judged())
    assert (good.good, good.again) == (True, 2 * EVENTS)
    assert outcome(judged(but=("heals", 3))).missing == 1
    assert not outcome(judged(but=("heals", 3))).good
    for stray in (request("well", 1, "another"), request("well", EVENTS), request("well", 1, "well/2")):
        judge = judged()
        judge.answer(stray)
        assert not outcome(judge).good, stray
    for wrong in ({"deliveries": {"Completed": 4 * EVENTS}}, {"requeued": EVENTS - 1}, {"dead_letters": 0}):
        assert not replace(good, **wrong).good, wrong


REQUIRED = [(f"reader-{number}", version) for version in (3, 4) for number in range(RECIPIENTS)]


def mail(recipient: str, version: int, key: str = "") -> SentMail:
    identity = f"{recipient}/{version}"
    return SentMail(identity, key or identity, {"to": [recipient], "subject": subject_of(version)})


def notified(sent: Sequence[SentMail], *more_marked: str) -> NotifyingOutcome:
    """Return the outcome of these mails, of which the provider was asked for the first one twice."""
    keys, marked = [each.key for each in (sent[0], *sent)], [*(each.id for each in sent), *more_marked]
    deliveries = {"sent": len(REQUIRED), "failed": 1}
    return NotifyingOutcome(
        ("here",), 1.0, {"succeeded": 2}, deliveries, 1, **count_mails(sent, keys, REQUIRED, marked)
    )


def test_reviews_are_good_if_the_provider_sent_one_mail_to_each_recipient_of_a_version() -> None:
    good = notified([mail(*each) for each in REQUIRED])
    assert (good.good, good.sent, good.required, good.repeated) == (True, 80, 80, 1)
    for wrong in ({"jobs": {"succeeded": 1}}, {"deliveries": {"sent": 80}}, {"killed": 0}, {"repeated": 0}):
        assert not replace(good, **wrong).good, wrong


@pytest.mark.parametrize(
    ("name", "stray"),
    [
        ("doubled", mail("reader-1", 3, "another")), ("doubled", mail("reader-1", 3)),
        ("of_others", mail("stranger", 3)), ("of_others", mail("reader-1", 5)),
    ],
)  # fmt: skip
def test_a_mail_too_many_is_counted_and_wrong(name: str, stray: SentMail) -> None:
    outcome = notified([*(mail(*each) for each in REQUIRED), stray])
    assert (getattr(outcome, name), outcome.good) == (1, False)


def test_a_mail_that_is_missing_and_a_mark_without_a_mail_are_counted_and_wrong() -> None:
    assert not (missing := notified([mail(*each) for each in REQUIRED[1:]])).good
    assert not (marked := notified([mail(*each) for each in REQUIRED], "nothing")).good
    assert (missing.missing, marked.without_evidence) == (1, 1)
