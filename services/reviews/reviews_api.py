"""The routes of reviews: create a job, look at it and its recipients, correct a recipient, and give a job up."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, HTTPException, Query, Response

from ferryman.routes import STORABLE, Door, wrong
from ferryman.services.reviews.acts import ActRefused, correct, give_up
from ferryman.services.reviews.job_rules import JobRules
from ferryman.services.reviews.jobs import (
    LONGEST_NAME,
    InvalidReview,
    RecordedJob,
    ReviewConflict,
    create_job,
    find_jobs,
    find_recipients,
)
from ferryman.services.reviews.orchestrator import rules_of
from ferryman.services.reviews.review_bodies import (
    NewReviewJob,
    Patch,
    Reason,
    RecipientsPage,
    RecipientsQuery,
    RecipientView,
    ReviewJobs,
    ReviewJobView,
    shown,
)
from ferryman.services.reviews.reviews_settings import ReviewsSettings

WRITE, READ, OPERATE = "reviews:write", "reviews:read", "reviews:operate"


def router(door: Door, settings: Any) -> APIRouter:
    """Return the routes, each with its scope."""
    given: ReviewsSettings = settings.section(ReviewsSettings)
    made = APIRouter(tags=["reviews"])
    _add_views(made, door)
    _add_acts(made, door, rules_of(given))

    @made.post(
        "/review-jobs", status_code=201, dependencies=[door.require(WRITE)], summary="Create a job",
        responses={
            200: {"model": ReviewJobView, "description": "It was created before, or this version was."},
            **door.responses(409, 415),
        },
    )  # fmt: skip
    def create(wanted: NewReviewJob, response: Response) -> ReviewJobView:
        with _refusing(), door.transaction() as db:
            job, is_new = create_job(db, wanted.request, answer_seconds=given.answer_seconds)
            [found] = find_jobs(db, job)
        response.status_code = 201 if is_new else 200
        if is_new:
            response.headers["Location"] = f"/review-jobs/{job}"
        return shown(found)

    return made


def _add_views(made: APIRouter, door: Door) -> None:
    @made.get(
        "/review-jobs", dependencies=[door.require(READ)], summary="List the jobs of a change",
        responses=door.responses(),
    )  # fmt: skip
    def look_through(changelist_id: Annotated[str, Query(max_length=LONGEST_NAME), STORABLE]) -> ReviewJobs:
        with door.transaction() as db:
            return ReviewJobs(jobs=[shown(each) for each in find_jobs(db, changelist=changelist_id)])

    @made.get(
        "/review-jobs/{job}", dependencies=[door.require(READ)], summary="Look at a job", responses=door.responses(404)
    )
    def look(job: UUID) -> ReviewJobView:
        with door.transaction() as db:
            return shown(_only(find_jobs(db, job), f"there is no job {job}"))

    @made.get(
        "/review-jobs/{job}/recipients", dependencies=[door.require(READ)], summary="List the recipients of a job",
        responses=door.responses(404),
    )  # fmt: skip
    def recipients(job: UUID, wanted: Annotated[RecipientsQuery, Query()]) -> RecipientsPage:
        with door.transaction() as db:
            _only(find_jobs(db, job), f"there is no job {job}")
            found = find_recipients(db, job, status=wanted.status, after=wanted.after, most=wanted.limit + 1)
        rows = found[: wanted.limit]
        views = [RecipientView.model_validate(each) for each in rows]
        return RecipientsPage(recipients=views, next=rows[-1].recipient if len(found) > wanted.limit else None)


def _add_acts(made: APIRouter, door: Door, rules: JobRules) -> None:
    @made.patch(
        "/review-jobs/{job}/recipients/{recipient}", dependencies=[door.require(WRITE)],
        summary="Ask for a recipient again, replace it, or drop it", responses=door.responses(404, 409, 415),
    )  # fmt: skip
    def mend(job: UUID, recipient: Annotated[str, STORABLE], wanted: Patch) -> ReviewJobView:
        with _refusing(), door.transaction() as db:
            if not correct(db, rules, job, recipient, wanted.correction):
                raise HTTPException(404, f"the job {job} has no such recipient, or there is no such job")
            return shown(_only(find_jobs(db, job), f"there is no job {job}"))

    @made.post(
        "/review-jobs/{job}/give-up", dependencies=[door.require(OPERATE)], summary="Give a job up",
        responses=door.responses(404, 409, 415),
    )  # fmt: skip
    def end(job: UUID, said: Reason) -> ReviewJobView:
        with _refusing(), door.transaction() as db:
            _only(find_jobs(db, job), f"there is no job {job}")
            give_up(db, rules, job, said.reason)
            return shown(find_jobs(db, job)[0])


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except InvalidReview as error:
        raise wrong(422, "the request is not valid", {error.field: error.problem}) from error
    except (ReviewConflict, ActRefused) as error:
        raise HTTPException(409, error.message) from error


def _only(found: list[RecordedJob], problem: str) -> RecordedJob:
    if not found:
        raise HTTPException(404, problem)
    return found[0]
