"""The bodies of the API: requests and answers. Fields that are not named here are refused."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from ferryman.routes import STORABLE, After, Body, Instant, Limit, Moment, page, read_cursor
from ferryman.services.payments.store import LONGEST_REFERENCE, MOST_AMOUNT, RecordedPayment, Request

Status = Literal["PENDING", "SUCCEEDED", "FAILED"]
# The wallet's own reasons. Cancellations and timeouts are left to results: no money is given back for these reasons.
Reason = Literal["INSUFFICIENT_FUNDS", "NO_WALLET", "WRONG_CURRENCY", "INVALID_AMOUNT", "UNKNOWN"]


Amount = Annotated[
    StrictInt, Field(ge=1, le=MOST_AMOUNT, description="In the currency's smallest unit, a whole number.")
]
Currency = Annotated[StrictStr, Field(pattern="^[A-Z]{3}$", description="ISO 4217, three capital letters.")]
Reference = Annotated[StrictStr, Field(max_length=LONGEST_REFERENCE, description="The client's own words."), STORABLE]


class NewPayment(Body):
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


class Result(Body):
    """The result of a payment, as the wallet reports it."""

    status: Literal["SUCCEEDED", "FAILED"]
    reason: Reason | None = Field(None, description="Why the payment failed; UNKNOWN if it is left out.")
    wallet_id: UUID | None = Field(None, description="If given, it must be the payment's, like the next two.")
    amount: Amount | None = None
    currency: Currency | None = None


class PaymentsQuery(Body):
    """The filters and the cursor of a list of payments."""

    status: Status | None = None
    wallet_id: UUID | None = None
    since: Moment | None = Field(None, description="Recorded at that time or later; RFC 3339, with an offset.")
    until: Moment | None = Field(None, description="Recorded before that time.")
    limit: Limit = 100
    after: After = None

    @property
    def filters(self) -> dict[str, Any]:
        """The filters, as the store takes them; a wrong cursor is answered 400."""
        return {**self.model_dump(exclude={"limit", "after"}), "behind": read_cursor(self.after)}


def shown(found: RecordedPayment) -> PaymentView:
    """Return a payment as clients see it: with its status, not with its inner state."""
    return PaymentView.model_validate(found)


def paged(found: Sequence[RecordedPayment], limit: int) -> PaymentsPage:
    """Return a page of `limit` payments; one more in `found` means that another page follows."""
    rows, following = page(found, limit, lambda last: (last.created_at, last.uuid))
    return PaymentsPage(payments=[shown(each) for each in rows], next=following)
