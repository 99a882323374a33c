"""The bodies of the webhooks' API: requests and answers. Fields that are not named here are refused."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from fastapi import HTTPException
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from ferryman.routes import STORABLE, After, Body, Instant, Limit, Number, read_number
from ferryman.services.webhooks.events import CONTENT_TYPE, JSON, EventInput
from ferryman.services.webhooks.subscriptions import (
    MOST_ENDPOINT_CHARACTERS,
    OVERLAP_SECONDS,
    SubscriptionInput,
)

T = TypeVar("T")
Status = Literal["Pending", "InProgress", "PendingRetry", "Completed", "DeadLettered"]
EventTypeName = Annotated[StrictStr, Field(min_length=1, max_length=255), STORABLE]
Key = Annotated[
    StrictStr,
    Field(min_length=1, max_length=255, description="Chosen by the client, so that the request can be repeated."),
    STORABLE,
]
Endpoint = Annotated[
    StrictStr, Field(max_length=MOST_ENDPOINT_CHARACTERS, description="https://..., at no private address."), STORABLE
]
EventTypes = Annotated[list[EventTypeName], Field(min_length=1, max_length=100)]
RetryLimit = Annotated[StrictInt, Field(ge=1, le=100, description="null: `webhooks.max_retry_limit`.")]
Base = Annotated[StrictFloat, Field(gt=0, le=86_400, description="null: `webhooks.base_seconds`.")]
Cap = Annotated[StrictFloat, Field(gt=0, le=604_800, description="null: `webhooks.cap_seconds`.")]


def _compact(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair cannot be sent") from error
    except ValueError as error:
        raise ValueError("NaN and infinite numbers are not JSON") from error


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("it is not valid base64") from error


class NewEvent(Body):
    """An event as its writer records it, with exactly one of `payload` and `payload_base64`."""

    type: EventTypeName
    payload: Annotated[Any, AfterValidator(_compact)] = Field(
        default_factory=bytes, description="Any JSON value; it is sent as compact JSON."
    )
    payload_base64: Annotated[StrictStr, AfterValidator(_decoded)] = Field(
        default_factory=str, description="Bytes, which are sent as they are."
    )
    content_type: Annotated[StrictStr, Field(max_length=255, pattern=f"^{CONTENT_TYPE}$")] = JSON
    idempotency_key: Key | None = None

    @model_validator(mode="after")
    def _one_payload(self) -> Self:
        if len(self.model_fields_set & {"payload", "payload_base64"}) != 1:
            raise ValueError("give either payload or payload_base64")
        return self

    @property
    def event(self) -> EventInput:
        payload: Any = self.payload if "payload" in self.model_fields_set else self.payload_base64
        return EventInput(self.type, payload, self.content_type, self.idempotency_key)


class EventView(BaseModel):
    """An event that is recorded."""

    id: int
    type: str
    created_at: Instant


class NewSubscription(Body):
    """A subscription as its owner wants it."""

    endpoint: Endpoint
    event_types: EventTypes
    paused: StrictBool = Field(False, description="Whether its deliveries wait.")
    max_retry_limit: RetryLimit | None = None
    base_seconds: Base | None = None
    cap_seconds: Cap | None = None
    idempotency_key: Key | None = None

    @property
    def wanted(self) -> SubscriptionInput:
        return SubscriptionInput(**self.model_dump(exclude={"idempotency_key"}))


class SubscriptionChange(Body):
    """The fields of a subscription to change; those that are left out stay as they are."""

    # A factory, because it is not told: a field has no default here.
    endpoint: Endpoint = Field(default_factory=str)
    event_types: EventTypes = Field(default_factory=list)
    active: StrictBool = Field(
        default_factory=bool, description="false: no more events, and no more attempts of those under way."
    )
    paused: StrictBool = Field(default_factory=bool, description="true: its deliveries wait.")
    max_retry_limit: RetryLimit | None = None
    base_seconds: Base | None = None
    cap_seconds: Cap | None = None

    @property
    def changed(self) -> Mapping[str, Any]:
        return self.model_dump(exclude_unset=True)


class SubscriptionView(BaseModel):
    """A subscription in its present state."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    endpoint: str
    event_types: list[str]
    active: bool
    paused: bool
    max_retry_limit: int | None
    base_seconds: float | None
    cap_seconds: float | None
    created_at: Instant
    updated_at: Instant
    failing_since: Instant | None = Field(description="The first failure since the last success.")
    disabled_at: Instant | None
    disabled_reason: str | None = Field(description="GONE or FAILING; null if a person disabled it.")


class NewSubscriptionView(SubscriptionView):
    """A subscription that was created, with its secret."""

    secret: str | None = Field(description="Shown once; null if this request is repeated.")


class SecretView(BaseModel):
    """The times of a secret that signs; the secret itself is not shown again."""

    model_config = ConfigDict(from_attributes=True)

    created_at: Instant
    expires_at: Instant | None = Field(description="null until another one replaces it.")


class FullSubscriptionView(SubscriptionView):
    """A subscription with the times of its secrets."""

    secrets: list[SecretView]


class SubscriptionsPage(BaseModel):
    """A page of subscriptions, the newest first."""

    subscriptions: list[SubscriptionView]
    next: str | None = Field(description="Send it as `after` for the next page; null on the last page.")


class SubscriptionsQuery(Body):
    """The filters and the cursor of a list of subscriptions."""

    active: bool | None = None
    paused: bool | None = None
    event_type: EventTypeName | None = None
    limit: Limit = 100
    after: After = None

    @property
    def filters(self) -> dict[str, Any]:
        return {**self.model_dump(exclude={"limit", "after"}), "behind": read_number(self.after)}


class Rotation(Body):
    """The wish for a new secret."""

    overlap_seconds: Annotated[StrictFloat, Field(ge=0, le=604_800)] = Field(
        OVERLAP_SECONDS, description="How long the former secrets sign beside it."
    )


class RotatedView(BaseModel):
    """A new secret. It is shown once."""

    secret: str
    secrets: list[SecretView]


class SentTest(BaseModel):
    """A test that was asked for: `GET /deliveries?event_id=...` shows what became of it."""

    event_id: int


class DeliveryView(BaseModel):
    """A delivery in its present state."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    event_id: int
    event_type: str
    subscription_id: int
    status: Status
    attempt_count: int
    next_attempt_at: Instant | None
    final_error_code: str | None
    generation: int = Field(description="How often it was requeued from the dead letters.")
    requeued_from: int | None
    created_at: Instant
    updated_at: Instant


class AttemptView(BaseModel):
    """One send of a job."""

    model_config = ConfigDict(from_attributes=True)

    began_at: Instant
    ended_at: Instant | None
    outcome: str
    code: str | None = Field(description="Why it failed; null if it did not.")
    error: str | None
    excerpt: str | None = Field(description="The beginning of the answer.")


class JobView(BaseModel):
    """A job: one attempt of a delivery. It is sent more than once only if a worker was lost."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    attempt: int
    status: Literal["Pending", "Leased", "Completed", "Failed"]
    error: str | None
    created_at: Instant
    completed_at: Instant | None
    attempts: list[AttemptView] = Field(description="Its sends; the log of attempts forgets old ones.")


class FullDeliveryView(DeliveryView):
    """A delivery with every attempt."""

    jobs: list[JobView]


class DeliveriesPage(BaseModel):
    """A page of deliveries, the newest first."""

    deliveries: list[DeliveryView]
    next: str | None = Field(description="Send it as `after` for the next page; null on the last page.")


class DeliveriesQuery(Body):
    """The filters and the cursor of a list of deliveries."""

    subscription_id: Number | None = None
    event_id: Number | None = None
    status: Status | None = None
    limit: Limit = 100
    after: After = None

    @property
    def filters(self) -> dict[str, Any]:
        return {**self.model_dump(exclude={"limit", "after"}), "behind": read_number(self.after)}


def found_or_404(row: T | None, what: str, number: int) -> T:
    """Return what was found; if that is None, raise the answer that there is no such row."""
    if row is None:
        raise HTTPException(404, f"there is no {what} {number}")
    return row
