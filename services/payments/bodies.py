"""What clients of the API send, and what they are shown. What is not named here is refused."""

import base64
import binascii
import json
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from ferryman.services.payments.store import LONGEST_REFERENCE, MOST_AMOUNT, Filters, Recorded, Request
from ferryman.services.payments.telling import Told

Status = Literal["PENDING", "SUCCEEDED", "FAILED"]
# The wallet's own. What was cancelled or came too late is for the results to say: nothing is undone for such reasons.
Reason = Literal["INSUFFICIENT_FUNDS", "NO_WALLET", "WRONG_CURRENCY", "INVALID_AMOUNT", "UNKNOWN"]


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a null character cannot be kept")
    return text


Amount = Annotated[
    StrictInt, Field(ge=1, le=MOST_AMOUNT, description="In the currency's smallest unit, a whole number.")
]
Currency = Annotated[StrictStr, Field(pattern="^[A-Z]{3}$", description="ISO 4217, three capital letters.")]
Reference = Annotated[
    StrictStr, Field(max_length=LONGEST_REFERENCE, description="The client's own words."), AfterValidator(_without_nul)
]


class BadCursor(ValueError):
    """It is no `next` of a page."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NewPayment(_Body):
    """A payment as its client asks for it."""

    uuid: UUID = Field(description="The client's own. Sent again with the same body, it is the same payment.")
    wallet_id: UUID = Field(description="The wallet that pays.")
    amount: Amount
    currency: Currency
    reference: Reference | None = None
    fulfil: StrictBool = Field(False, description="Whether somebody downstream must accept it once it is taken.")

    @property
    def request(self) -> Request:
        return Request(self.uuid, self.wallet_id, self.amount, self.currency, self.fulfil, self.reference)


class Payment(BaseModel):
    """A payment as it stands."""

    uuid: UUID
    wallet_id: UUID
    amount: int
    currency: str
    fulfil: bool
    status: Status = Field(description="PENDING until it is over.")
    reason: str | None = Field(description="Why it fails; it may be there before it is over.")
    reference: str | None
    created_at: datetime
    changed_at: datetime


class Page(BaseModel):
    """Some payments, the newest first."""

    payments: list[Payment]
    next: str | None = Field(description="Give it as `after` for those that follow; null where none do.")


class Result(_Body):
    """What the wallet says became of a payment."""

    status: Literal["SUCCEEDED", "FAILED"]
    reason: Reason | None = Field(None, description="Of what failed; it is kept as UNKNOWN where none is given.")
    wallet_id: UUID | None = Field(None, description="Where given, it must be that of the payment; so the others.")
    amount: Amount | None = None
    currency: Currency | None = None

    @property
    def told(self) -> Told:
        reason = (self.reason or "UNKNOWN") if self.status == "FAILED" else None
        return Told(self.status, reason, self.wallet_id, self.amount, self.currency)


class Wanted(_Body):
    """Which payments are listed."""

    status: Status | None = None
    wallet_id: UUID | None = None
    since: AwareDatetime | None = Field(None, description="Recorded then or later; RFC 3339, with its offset.")
    until: AwareDatetime | None = Field(None, description="Recorded before that.")
    limit: int = Field(100, ge=1, le=500)
    after: str | None = Field(None, max_length=200, description="`next` of the page before.")

    @property
    def filters(self) -> Filters:
        """BadCursor where `after` is none that we gave."""
        behind = _read(self.after) if self.after is not None else None
        return Filters(self.status, self.wallet_id, self.since, self.until, behind)


def shown(found: Recorded) -> Payment:
    """Its inner state stays ours: clients are told the status."""
    return Payment(
        uuid=found.uuid, wallet_id=found.wallet_id, amount=found.amount, currency=found.currency, fulfil=found.fulfil,
        status=found.status, reason=found.reason, reference=found.reference,
        created_at=found.created_at.astimezone(UTC), changed_at=found.changed_at.astimezone(UTC),
    )  # fmt: skip


def page(found: list[Recorded], limit: int) -> Page:
    """Of one more than are shown: that one says that there are more."""
    last = found[limit - 1] if len(found) > limit else None
    return Page(payments=[shown(each) for each in found[:limit]], next=_write(last) if last else None)


def _write(last: Recorded) -> str:
    place = [last.created_at.astimezone(UTC).isoformat(), str(last.uuid)]
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")


def _read(cursor: str) -> tuple[datetime, UUID]:
    try:
        at, uuid = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        when = datetime.fromisoformat(at)
        if when.utcoffset() is None:
            raise ValueError("a time without its offset")
        return when, UUID(uuid)
    except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadCursor("it is no `next` of a page") from error
