"""The routes of dead letters: look at them, requeue them, or put them aside."""

from collections import Counter
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query
from fastapi import Request as Asked
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from ferryman.routes import STORABLE, After, Body, Door, Instant, Limit, Moment, Number, page, read_number
from ferryman.services.webhooks import dead_letters as letters
from ferryman.services.webhooks.dead_letters import DISCARDED, WAITING, Connection, LetterFilter
from ferryman.services.webhooks.webhooks_bodies import EventTypeName, JobView, Status, found_or_404

WRITE, READ = "dead-letters:write", "dead-letters:read"
PORTION = 500
"""The most letters that one request acts on."""
_MOST_NUMBER = 2**63 - 1

Id = Annotated[StrictInt, Field(ge=1, le=_MOST_NUMBER)]
Code = Annotated[StrictStr, Field(min_length=1, max_length=100, description="GONE, TIMED_OUT, ..."), STORABLE]
Since = Annotated[Moment, Field(description="Given up at that time or later; RFC 3339, with an offset.")]
Until = Annotated[Moment, Field(description="Given up before that time.")]


class LettersQuery(Body):
    """The filters and the cursor of a list of dead letters."""

    state: Literal["waiting", "requeued", "discarded", "all"] = Field("waiting", description="waiting: for a person.")
    subscription_id: Number | None = None
    code: Code | None = None
    event_type: EventTypeName | None = None
    since: Since | None = None
    until: Until | None = None
    limit: Limit = 100
    after: After = None

    @property
    def wanted(self) -> LetterFilter:
        state = None if self.state == "all" else self.state
        return LetterFilter(
            subscription=self.subscription_id, code=self.code, event_type=self.event_type, since=self.since,
            until=self.until, state=state,
        )  # fmt: skip


class LettersAct(Body):
    """The letters to act on, by their ids or by conditions on those that wait, and why."""

    ids: Annotated[list[Id], Field(min_length=1, max_length=PORTION)] | None = None
    subscription_id: Id | None = None
    code: Code | None = None
    event_type: EventTypeName | None = None
    since: Since | None = None
    until: Until | None = None
    reason: Annotated[StrictStr, Field(min_length=1, max_length=500), STORABLE] = Field(description="For the audit.")
    dry_run: StrictBool = Field(True, description="true: count the letters, and change nothing.")
    after: After = None

    @model_validator(mode="after")
    def _not_everything(self) -> Self:
        if not self.model_fields_set & {"ids", "subscription_id", "code", "event_type", "since", "until"}:
            raise ValueError("name the letters: ids, subscription_id, code, event_type, since or until")
        return self

    @property
    def wanted(self) -> LetterFilter:
        """The letters; those that are named by their ids may have been discarded."""
        return LetterFilter(
            ids=None if self.ids is None else tuple(self.ids), subscription=self.subscription_id, code=self.code,
            event_type=self.event_type, since=self.since, until=self.until, state=WAITING if self.ids is None else None,
        )  # fmt: skip


class LetterView(BaseModel):
    """A dead letter, named by the id of its delivery."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    event_id: int
    event_type: str
    subscription_id: int
    active: bool = Field(description="false: the subscription is disabled, and nothing to it is requeued.")
    generation: int
    attempts: int
    error_code: str
    created_at: Instant
    state: Literal["waiting", "requeued", "discarded"]
    requeued_as: int | None = Field(description="The delivery of the next generation.")
    discarded_at: Instant | None
    who: str | None = Field(description="Who discarded it.")
    reason: str | None


class GenerationView(BaseModel):
    """A delivery of the same event to the same subscription."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    generation: int
    status: Status
    attempts: int
    error_code: str | None
    created_at: Instant
    updated_at: Instant


class FullLetterView(LetterView):
    """A dead letter with every attempt, and every generation of its delivery."""

    jobs: list[JobView]
    generations: list[GenerationView]


class LettersPage(BaseModel):
    """A page of dead letters, the newest first."""

    letters: list[LetterView]
    next: str | None = Field(description="Send it as `after` for the next page; null on the last page.")


class LettersPlan(BaseModel):
    """A dry run: the letters that the act concerns. Nothing is changed."""

    dry_run: Literal[True] = True
    letters: int
    by_code: dict[str, int]
    disabled: int = Field(description="Those of disabled subscriptions, which are not requeued.")


class LettersDone(BaseModel):
    """An act on up to 500 letters, the oldest first."""

    dry_run: Literal[False] = False
    done: list[int]
    requeued_as: list[int] = Field(description="The new deliveries, in the same order; empty after a discard.")
    next: str | None = Field(description="Send the request again with it as `after`; null if there are no more.")


def add(made: APIRouter, door: Door) -> None:
    """Add the routes, each with its scope."""

    @made.get(
        "/dead-letters", dependencies=[door.require(READ)], summary="List dead letters, the newest first",
        responses=door.responses(400),
    )  # fmt: skip
    def look_through(wanted: Annotated[LettersQuery, Query()]) -> LettersPage:
        before = read_number(wanted.after)
        with door.transaction() as db:
            found, _ = letters.list_letters(db, wanted.wanted, before=before, limit=wanted.limit + 1)
        rows, following = page(found, wanted.limit, lambda last: last.number)
        return LettersPage(letters=[LetterView.model_validate(row) for row in rows], next=following)

    # In front of the path of one letter, which would match them too.
    @made.post(
        "/dead-letters/requeue", dependencies=[door.require(WRITE)], responses=door.responses(400, 415),
        summary="Deliver dead letters again, as new deliveries: a dry run, unless the body says otherwise",
    )  # fmt: skip
    def requeue(wanted: LettersAct, asked: Asked) -> LettersPlan | LettersDone:
        with door.transaction() as db:
            if wanted.dry_run:
                return _plan(db, wanted, WAITING, DISCARDED)
            ids, following = _portion(db, wanted)
            made = letters.requeue(db, ids, who=door.caller(asked), reason=wanted.reason)
        return LettersDone(done=list(made), requeued_as=list(made.values()), next=following)

    @made.post(
        "/dead-letters/discard", dependencies=[door.require(WRITE)], responses=door.responses(400, 415),
        summary="Put dead letters aside: a dry run, unless the body says otherwise",
    )  # fmt: skip
    def discard(wanted: LettersAct, asked: Asked) -> LettersPlan | LettersDone:
        with door.transaction() as db:
            if wanted.dry_run:
                return _plan(db, wanted, WAITING)
            ids, following = _portion(db, wanted)
            made = letters.discard(db, ids, who=door.caller(asked), reason=wanted.reason)
        return LettersDone(done=made, requeued_as=[], next=following)

    @made.get(
        "/dead-letters/{letter_id}", dependencies=[door.require(READ)], summary="Look at a dead letter",
        responses=door.responses(404),
    )  # fmt: skip
    def look(letter_id: Number) -> FullLetterView:
        with door.transaction() as db:
            story = found_or_404(letters.show_letter(db, letter_id), "dead letter", letter_id)
        return FullLetterView(
            **story.letter._asdict(),
            jobs=[JobView.model_validate(each) for each in story.jobs],
            generations=[GenerationView.model_validate(each) for each in story.generations],
        )


def _plan(db: Connection, wanted: LettersAct, *states: str) -> LettersPlan:
    """Count the letters that the act concerns: of those that are named by their ids, the ones in these states."""
    if wanted.ids is None:
        counts = letters.count_letters(db, wanted.wanted)
        by_code, disabled = counts.by_code, counts.disabled
    else:
        named, _ = letters.list_letters(db, wanted.wanted, limit=PORTION)
        found = [each for each in named if each.state in states]
        by_code, disabled = Counter(each.error_code for each in found), sum(not each.active for each in found)
    return LettersPlan(letters=sum(by_code.values()), by_code=by_code, disabled=disabled)


def _portion(db: Connection, wanted: LettersAct) -> tuple[list[int], str | None]:
    """Return the ids of the letters that this request acts on, and where the next one goes on."""
    after: Any = read_number(wanted.after) or 0
    found = letters.next_letters(db, wanted.wanted, after=after, last=_MOST_NUMBER, most=PORTION + 1)
    rows, following = page(found, PORTION, lambda last: last.number)
    return [each.id for each in rows], following
