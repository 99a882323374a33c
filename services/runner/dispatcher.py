"""The dispatcher: posts each event to the runner, which recognizes a duplicate by its `event_id`."""

import json
from collections.abc import Sequence
from typing import Any

from ferryman import Claimed, Courier, Misconfigured, Post
from ferryman.services.runner.runner_settings import RunnerSettings, described


def dispatcher(settings: Any) -> Courier:
    """Return the courier of the events."""
    runner: RunnerSettings = settings.section(RunnerSettings)
    if not runner.url:
        raise Misconfigured("there is no runner to send events to", setting="runner.url", remedy="set its URL")
    if runner.secret is None:
        raise Misconfigured(
            "the runner could not tell who sends it events", setting="runner.secret",
            remedy="set the secret that it knows, and runner.auth to how it is used",
        )  # fmt: skip
    url, secret = runner.url, runner.secret.get_secret_value()
    signs = runner.auth == "signature"
    courier = Courier("runner", outbox=described(runner, settings.http.timeout_seconds))

    @courier.prepare
    def posts(_: Any, events: Sequence[Claimed]) -> list[Post]:
        return [
            Post(url, body_of(event), event.id, secrets=(secret,) if signs else (), bearer=None if signs else secret)
            for event in events
        ]

    return courier


def body_of(event: Claimed) -> bytes:
    """Return the body: the same bytes at each attempt."""
    head = json.dumps({"event_id": event.id, "event_type": event.type})
    return b'%b, "payload": %b}' % (head[:-1].encode(), event.content)
