"""The bodies of the API: requests and answers. Fields that are not named here are refused."""

import base64
import binascii
import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
)

from ferryman.services.payments.store import LONGEST_REFERENCE, MOST_AMOUNT, RecordedPayment, Request

Status = Literal["PENDING", "SUCCEEDED", "FAILED"]
# The wallet's own reasons. Cancellations and timeouts are left to results: no money is given back for these reasons.
Reason = Literal["INSUFFICIENT_FUNDS", "NO_WALLET", "WRONG_CURRENCY", "INVALID_AMOUNT", "UNKNOWN"]


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a null character cannot be stored")
    return text


def _written(pattern: str, words: str) -> BeforeValidator:
    """Refuse what pydantic would understand beyond one way to write a value: `since=0`, `limit=1_0`."""

    def check(given: str) -> str:
        if not re.match(pattern, given, re.ASCII):
            raise ValueError(words)
        return given

    return BeforeValidator(check)


Amount = Annotated[
    StrictInt, Field(ge=1, le=MOST_AMOUNT, description="In the currency's smallest unit, a whole number.")
]
Currency = Annotated[StrictStr, Field(pattern="^[A-Z]{3}$", description="ISO 4217, three capital letters.")]
Reference = Annotated[
    StrictStr, Field(max_length=LONGEST_REFERENCE, description="The client's own words."), AfterValidator(_without_nul)
]
Moment = Annotated[AwareDatetime, _written(r"\d{4}-\d\d-\d\dT\d\d:", "write a time as 2026-05-04T10:00:00Z")]
Limit = Annotated[int, Field(ge=1, le=500), _written(r"\d{1,3}$", "write a whole number from 1 to 500")]
Instant = Annotated[datetime, AfterValidator(lambda when: when.astimezone(UTC))]


class BadCursor(ValueError):
    """A cursor that is not the `next` of a page."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NewPayment(_Body):
    """A payment as its client requests it."""

    uuid: UUID = Field(description="Chosen by the client. The same uuid with the same body is the same payment.")
    wallet_id: UUID = Field(description="The wallet that pays.")
    amount: Amount
    currency: Currency
    reference: Reference | None = None
    fulfil: StrictBool = Field(False, description="Whether the payment must be accepted downstream once it is taken.")

    @property
    def request(self) -> Request:
        return Request(self.uuid, self.wallet_id, self.amount, self.currency, self.fulfil, self.reference)


class PaymentView(BaseModel):
    """A payment in its present state."""

    model_config = ConfigDict(from_attributes=True)

    uuid: UUID
    wallet_id: UUID
    amount: int
    currency: str
    fulfil: bool
    status: Status = Field(description="PENDING until it is over.")
    reason: str | None = Field(description="Why it fails; it may be set before the payment is over.")
    reference: str | None
    created_at: Instant
    changed_at: Instant


class PaymentsPage(BaseModel):
    """A page of payments, the newest first."""

    payments: list[PaymentView]
    next: str | None = Field(description="Send it as `after` for the next page; null on the last page.")


class Result(_Body):
    """The result of a payment, as the wallet reports it."""

    status: Literal["SUCCEEDED", "FAILED"]
    reason: Reason | None = Field(None, description="Why the payment failed; UNKNOWN if it is left out.")
    wallet_id: UUID | None = Field(None, description="If given, it must be the payment's, like the next two.")
    amount: Amount | None = None
    currency: Currency | None = None


class PaymentsQuery(_Body):
    """The filters and the cursor of a list of payments."""

    status: Status | None = None
    wallet_id: UUID | None = None
    since: Moment | None = Field(None, description="Recorded at that time or later; RFC 3339, with an offset.")
    until: Moment | None = Field(None, description="Recorded before that time.")
    limit: Limit = 100
    after: str | None = Field(None, max_length=200, description="The `next` of the previous page.")

    @property
    def filters(self) -> dict[str, Any]:
        """The filters, as the store takes them. Raises BadCursor if `after` is not a cursor of ours."""
        behind = _read(self.after) if self.after is not None else None
        return {**self.model_dump(exclude={"limit", "after"}), "behind": behind}


def shown(found: RecordedPayment) -> PaymentView:
    """Return a payment as clients see it: with its status, not with its inner state."""
    return PaymentView.model_validate(found)


def page(found: list[RecordedPayment], limit: int) -> PaymentsPage:
    """Return a page of `limit` payments; one more in `found` means that another page follows."""
    last = found[limit - 1] if len(found) > limit else None
    return PaymentsPage(payments=[shown(each) for each in found[:limit]], next=_write(last) if last else None)


def _write(last: RecordedPayment) -> str:
    place = [last.created_at.astimezone(UTC).isoformat(), str(last.uuid)]
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")


def _read(cursor: str) -> tuple[datetime, UUID]:
    try:
        at, uuid = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        when = datetime.fromisoformat(at)
        if when.utcoffset() is None:
            raise ValueError("a time without an offset")
        return when, UUID(uuid)
    except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadCursor("it is not the `next` of a page") from error
