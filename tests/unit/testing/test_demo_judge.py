"""The judge of the webhooks demo: what it counts, and what it calls wrong."""

import json
from dataclasses import replace

from ferryman.demo.posting import ENDPOINTS, EVENTS, PostingOutcome, ReceiverJudge
from ferryman.testing.receiver import ReceivedRequest


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
