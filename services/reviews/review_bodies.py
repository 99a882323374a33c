"""The bodies of the routes of reviews: requests and answers. Fields that are not named here are refused."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from ferryman.routes import STORABLE, Body, Instant, Limit
from ferryman.services.reviews.acts import Correction
from ferryman.services.reviews.jobs import LONGEST_BODY, LONGEST_NAME, MOST_RECIPIENTS, RecordedJob, ReviewRequest

Name = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_NAME), STORABLE]
Address = Annotated[StrictStr, Field(min_length=1, max_length=254), STORABLE]
Subject = Annotated[StrictStr, Field(min_length=1, max_length=998), STORABLE]
Text = Annotated[StrictStr, Field(max_length=LONGEST_BODY), STORABLE]


class NewReviewJob(Body):
    """A job as its caller asks for it."""

    idempotency_key: Name = Field(description="The caller's own. The same key with the same body is the same job.")
    changelist_id: Name
    review_version: StrictInt = Field(ge=1, lt=2**31)
    recipients: list[Address] = Field(min_length=1, max_length=MOST_RECIPIENTS)
    subject: Subject
    body: Text = Field(description="The text of the mails.")
    rerun: StrictBool = Field(
        False, description="Whether a change that was told before is told again, of this version."
    )

    @property
    def request(self) -> ReviewRequest:
        return ReviewRequest(**self.model_dump())


class RecipientCounts(BaseModel):
    """The number of recipients that stand so."""

    model_config = ConfigDict(from_attributes=True)

    waiting: int
    notified: int
    failed: int
    withdrawn: int


class ReviewJobView(BaseModel):
    """A job, and how its recipients stand."""

    model_config = ConfigDict(from_attributes=True)

    id: UUID
    idempotency_key: str
    changelist_id: str
    review_version: int
    rerun_of: UUID | None
    status: Literal["in_progress", "succeeded", "retryable_failed", "failed"]
    reason: str | None = Field(description="Why it was given up.")
    created_at: Instant
    changed_at: Instant
    recipients: RecipientCounts


class ReviewJobs(BaseModel):
    """The newest hundred jobs of a change, the newest version first."""

    jobs: list[ReviewJobView]


class RecipientView(BaseModel):
    """A recipient of a job."""

    model_config = ConfigDict(from_attributes=True)

    recipient: str
    status: Literal["waiting", "notified", "failed", "withdrawn"]
    notification_id: str | None = Field(description="What the provider calls the mail.")
    notified_at: Instant | None
    error_code: str | None
    permanent: bool | None = Field(description="Whether trying again cannot help; null unless it failed.")
    replaced_by: str | None
    changed_at: Instant


class RecipientsPage(BaseModel):
    """A page of recipients, in the order of their addresses."""

    recipients: list[RecipientView]
    next: str | None = Field(description="Send it as `after` for the next page; null on the last page.")


class RecipientsQuery(Body):
    """The filters of a list of recipients."""

    status: Literal["waiting", "notified", "failed", "withdrawn"] | None = None
    limit: Limit = 100
    after: Annotated[str, Field(max_length=254), STORABLE] = Field("", description="The `next` of the previous page.")


class Patch(Body):
    """An act about a recipient that was not told."""

    act: Literal["again", "replace", "drop"]
    by: Address | None = Field(None, description="With `replace`: the other address.")
    subject: Subject | None = Field(None, description="With `again`: another subject. By default as before.")
    body: Text | None = None

    @property
    def correction(self) -> Correction:
        return Correction(**self.model_dump())


class Reason(Body):
    """Why a job is given up."""

    reason: Annotated[StrictStr, Field(min_length=1, max_length=500), STORABLE]


def shown(found: RecordedJob) -> ReviewJobView:
    """Return a job as its clients see it."""
    counts = RecipientCounts.model_validate(found)
    return ReviewJobView.model_validate({**found._asdict(), "recipients": counts})
