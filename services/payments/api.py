"""The routes of payments: request one, look at one or many, and report a result."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn
from uuid import UUID

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi import Request as Asked

from ferryman.routes import Door, wrong
from ferryman.services.payments import requests, service, store
from ferryman.services.payments.bodies import (
    NewPayment,
    PaymentsPage,
    PaymentsQuery,
    PaymentView,
    Result,
    paged,
    shown,
)

WRITE, READ, RESULTS = "payments:write", "payments:read", "internal:results"


def router(door: Door, settings: Any) -> APIRouter:
    """Return the routes, each with its scope. They are plain functions: the framework runs them in threads."""
    rules = service.rules_of(settings)
    made = APIRouter(tags=["payments"])

    @made.post(
        "/payments", status_code=201, dependencies=[door.require(WRITE)], summary="Request a payment",
        responses={
            200: {"model": PaymentView, "description": "It was recorded before, with the same body."},
            201: {"description": "It is recorded.", "headers": {"Location": {"schema": {"type": "string"}}}},
            **door.responses(400, 409, 410, 415),
        },
    )  # fmt: skip
    def ask(wanted: NewPayment, asked: Asked, response: Response) -> PaymentView:
        with _refusing(), door.transaction() as db:
            [found], new = requests.record(db, [wanted.request], rules, door.headers(asked))
        response.status_code = 201 if new else 200
        if new:
            response.headers["Location"] = f"/payments/{found.uuid}"
        return shown(found)

    @made.get(
        "/payments/{uuid}", dependencies=[door.require(READ)], summary="Look at a payment",
        responses=door.responses(404, 410),
    )  # fmt: skip
    def look(uuid: UUID) -> PaymentView:
        with _refusing(), door.transaction() as db:
            return shown(store.find(db, [uuid]).get(uuid) or _missing(db, uuid))

    @made.get(
        "/payments", dependencies=[door.require(READ)], summary="List payments, the newest first",
        responses=door.responses(400),
    )  # fmt: skip
    def look_through(wanted: Annotated[PaymentsQuery, Query()]) -> PaymentsPage:
        filters = wanted.filters
        with door.transaction() as db:
            found = store.listed(db, wanted.limit + 1, **filters)
        return paged(found, wanted.limit)

    @made.put(
        "/internal/requests/{uuid}", dependencies=[door.require(RESULTS)], tags=["internal"],
        summary="Report the result of a payment", responses=door.responses(400, 404, 409, 410, 415),
    )  # fmt: skip
    def tell(uuid: UUID, result: Result, asked: Asked) -> PaymentView:
        with _refusing(), door.transaction() as db:
            found = service.tell(db, uuid, result, rules=rules, headers=door.headers(asked))
            return shown(found or _missing(db, uuid))

    return made


@contextmanager
def _refusing() -> Iterator[None]:
    """Answer conflicts with the recorded payment and archived payments as problems."""
    try:
        yield
    except (requests.AnotherRequest, service.NotBelieved) as error:
        raise HTTPException(409, str(error)) from error
    except store.Archived as error:
        raise HTTPException(410, error.message) from error
    except requests.NotFulfilled as error:
        raise wrong(422, "the literal mode has no fulfilment", {"fulfil": error.message}) from error


def _missing(db: store.Connection, uuid: UUID) -> NoReturn:
    store.refuse_archived(db, uuid)
    raise HTTPException(404, f"there is no payment {uuid}")
