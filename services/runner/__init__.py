"""Runner: events for one HTTP endpoint, recorded in the writer's transaction and delivered however long it takes."""

from ferryman import System

SYSTEM = System(
    name="runner",
    owner="runner",
    settings={"runner": "ferryman.services.runner.runner_settings:RunnerSettings"},
    runs={
        "runner": (
            "ferryman.services.runner.dispatcher:dispatcher",
            "delivers the events of runner.event_outbox to runner.url, and tries each until it arrives",
        )
    },
    outboxes="ferryman.services.runner.runner_settings:outboxes",
    outboxes_need="runner.url",
)
