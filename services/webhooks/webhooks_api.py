"""The routes of webhooks: record events, keep subscriptions, and look at deliveries."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response

from ferryman.routes import Door, Number, page, wrong
from ferryman.services.webhooks import dead_letters_api, deliveries, subscriptions
from ferryman.services.webhooks.dead_letters import jobs_of
from ferryman.services.webhooks.events import InvalidEvent, KeyReused, PayloadTooLarge, record_event
from ferryman.services.webhooks.subscriptions import InvalidSubscription, NotPossible, SubscriptionRules
from ferryman.services.webhooks.webhooks_bodies import (
    DeliveriesPage,
    DeliveriesQuery,
    DeliveryView,
    EventView,
    FullDeliveryView,
    FullSubscriptionView,
    JobView,
    NewEvent,
    NewSubscription,
    NewSubscriptionView,
    RotatedView,
    Rotation,
    SecretView,
    SentTest,
    SubscriptionChange,
    SubscriptionsPage,
    SubscriptionsQuery,
    SubscriptionView,
    found_or_404,
)
from ferryman.services.webhooks.webhooks_settings import MAX_PAYLOAD_BYTES, WebhooksSettings

RECORD = "events:write"
WRITE, READ = "subscriptions:write", "subscriptions:read"
LOOK = "deliveries:read"


def router(door: Door, settings: Any) -> APIRouter:
    """Return the routes, each with its scope."""
    made = APIRouter(tags=["webhooks"])
    given: WebhooksSettings = settings.section(WebhooksSettings)
    _events(made, door, given, min(MAX_PAYLOAD_BYTES, settings.http.max_body_bytes))
    _subscriptions(made, door, SubscriptionRules(given, settings.http.allow))
    _deliveries(made, door)
    dead_letters_api.add(made, door)
    return made


def _events(made: APIRouter, door: Door, given: WebhooksSettings, max_bytes: int) -> None:
    @made.post(
        "/events", status_code=201, dependencies=[door.require(RECORD)], summary="Record an event",
        responses={
            200: {"model": EventView, "description": "It was recorded before, with the same key and body."},
            **door.responses(409, 415),
        },
    )  # fmt: skip
    def record(wanted: NewEvent, response: Response) -> EventView:
        with _refusing():
            if given.unknown([wanted.type]):
                raise wrong(422, "the type is not known", {"type": f"the types are: {', '.join(given.event_types)}"})
            with door.transaction() as db:
                recorded = record_event(db, wanted.event, max_bytes)
        response.status_code = 201 if recorded.new else 200
        return EventView(id=recorded.id, type=wanted.type, created_at=recorded.created_at)


def _subscriptions(made: APIRouter, door: Door, rules: SubscriptionRules) -> None:
    @made.post(
        "/subscriptions", status_code=201, dependencies=[door.require(WRITE)], summary="Subscribe an endpoint",
        responses={
            200: {"model": NewSubscriptionView, "description": "It was created before, with the same key and body."},
            201: {"description": "It is created.", "headers": {"Location": {"schema": {"type": "string"}}}},
            **door.responses(409, 415),
        },
    )  # fmt: skip
    def subscribe(wanted: NewSubscription, response: Response) -> NewSubscriptionView:
        with _refusing(), door.transaction() as db:
            row, secret = subscriptions.create(db, wanted.wanted, rules, wanted.idempotency_key)
        response.status_code = 201 if secret else 200
        if secret:
            response.headers["Location"] = f"/subscriptions/{row.id}"
        return NewSubscriptionView(**row._asdict(), secret=secret)

    @made.get(
        "/subscriptions", dependencies=[door.require(READ)], summary="List subscriptions, the newest first",
        responses=door.responses(400),
    )  # fmt: skip
    def look_through(wanted: Annotated[SubscriptionsQuery, Query()]) -> SubscriptionsPage:
        filters = wanted.filters
        with door.transaction() as db:
            found = subscriptions.listed(db, wanted.limit + 1, **filters)
        rows, following = page(found, wanted.limit, lambda last: last.id)
        return SubscriptionsPage(subscriptions=[SubscriptionView.model_validate(row) for row in rows], next=following)

    @made.get(
        "/subscriptions/{subscription_id}", dependencies=[door.require(READ)], summary="Look at a subscription",
        responses=door.responses(404),
    )  # fmt: skip
    def look(subscription_id: Number) -> FullSubscriptionView:
        with door.transaction() as db:
            row = found_or_404(subscriptions.find(db, subscription_id), "subscription", subscription_id)
            return FullSubscriptionView(**row._asdict(), secrets=_secrets(db, row.id))

    @made.patch(
        "/subscriptions/{subscription_id}", dependencies=[door.require(WRITE)],
        summary="Change, pause, resume, disable or enable a subscription", responses=door.responses(404, 415),
    )  # fmt: skip
    def change(subscription_id: Number, wanted: SubscriptionChange) -> SubscriptionView:
        with _refusing(), door.transaction() as db:
            row = subscriptions.change(db, subscription_id, wanted.changed, rules)
            return SubscriptionView.model_validate(found_or_404(row, "subscription", subscription_id))

    @made.post(
        "/subscriptions/{subscription_id}/secrets", status_code=201, dependencies=[door.require(WRITE)],
        summary="Replace the secret", responses=door.responses(404, 409, 415),
    )  # fmt: skip
    def rotate(subscription_id: Number, wanted: Rotation) -> RotatedView:
        with _refusing(), door.transaction() as db:
            secret = subscriptions.rotate_secret(db, subscription_id, wanted.overlap_seconds)
            made = found_or_404(secret, "subscription", subscription_id)
            return RotatedView(secret=made, secrets=_secrets(db, subscription_id))

    @made.post(
        "/subscriptions/{subscription_id}/tests", status_code=202, dependencies=[door.require(WRITE)],
        summary="Send a test event to this endpoint alone", responses=door.responses(404, 409, 415),
    )  # fmt: skip
    def test(subscription_id: Number) -> SentTest:
        with _refusing(), door.transaction() as db:
            event = subscriptions.send_test(db, subscription_id)
        return SentTest(event_id=found_or_404(event, "subscription", subscription_id))


def _deliveries(made: APIRouter, door: Door) -> None:
    @made.get(
        "/deliveries", dependencies=[door.require(LOOK)], summary="List deliveries, the newest first",
        responses=door.responses(400),
    )  # fmt: skip
    def look_through(wanted: Annotated[DeliveriesQuery, Query()]) -> DeliveriesPage:
        filters = wanted.filters
        with door.transaction() as db:
            found = deliveries.listed(db, wanted.limit + 1, **filters)
        rows, following = page(found, wanted.limit, lambda last: last.id)
        return DeliveriesPage(deliveries=[DeliveryView.model_validate(row) for row in rows], next=following)

    @made.get(
        "/deliveries/{delivery_id}", dependencies=[door.require(LOOK)], summary="Look at a delivery and its attempts",
        responses=door.responses(404),
    )  # fmt: skip
    def look(delivery_id: Number) -> FullDeliveryView:
        with door.transaction() as db:
            row = found_or_404(deliveries.find(db, delivery_id), "delivery", delivery_id)
            jobs = [JobView.model_validate(each) for each in jobs_of(db, delivery_id)]
        return FullDeliveryView(**row._asdict(), jobs=jobs)


@contextmanager
def _refusing() -> Iterator[None]:
    """Answer what is refused as a problem that names the field, or the state that does not allow it."""
    try:
        yield
    except InvalidSubscription as error:
        raise wrong(422, "the subscription is refused", {error.field: error.problem}) from error
    except PayloadTooLarge as error:
        raise HTTPException(413, error.message) from error
    except InvalidEvent as error:
        raise HTTPException(422, error.message) from error
    except (KeyReused, NotPossible) as error:
        raise HTTPException(409, error.message) from error


def _secrets(db: subscriptions.Connection, subscription: int) -> list[SecretView]:
    return [SecretView.model_validate(each) for each in subscriptions.secret_times(db, subscription)]
