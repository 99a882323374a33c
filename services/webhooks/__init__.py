"""Webhooks: each event is delivered to every subscription that wants it, or ends as a dead letter."""

from ferryman import System

SYSTEM = System(
    name="webhooks",
    owner="webhooks",
    settings={"webhooks": "ferryman.services.webhooks.webhooks_settings:WebhooksSettings"},
    runs={
        "webhooks": (
            "ferryman.services.webhooks.orchestrator:webhooks",
            "routes events to subscriptions, and decides on retries and dead letters of their deliveries",
        ),
        "webhook-worker": (
            "ferryman.services.webhooks.worker:worker",
            "posts events to the endpoints of subscriptions, and reports each attempt",
        ),
        "webhook-endpoints": (
            "ferryman.services.webhooks.endpoints:endpoints",
            "disables endpoints that are gone, or that fail for too long",
        ),
        "webhook-events": (
            "ferryman.services.webhooks.events:webhook_events",
            "records messages of webhooks.event_topics as events",
        ),
    },
    routes="ferryman.services.webhooks.webhooks_api:router",
    machines=("ferryman.services.webhooks.orchestrator:MACHINE",),
    outboxes="ferryman.services.webhooks.webhooks_settings:outboxes",
    catalogue=True,
    tracer="ferryman.services.webhooks.delivery_story:TRACER",
)
