"""The routes of payments: request one, look at one or many, and report a result."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn
from uuid import UUID

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi import Request as Asked

from ferryman.services.payments import requests, service, store
from ferryman.services.payments.bodies import (
    BadCursor,
    NewPayment,
    PaymentsPage,
    PaymentsQuery,
    PaymentView,
    Result,
    page,
    shown,
)

WRITE, READ, RESULTS = "payments:write", "payments:read", "internal:results"


def router(door: Any, settings: Any) -> APIRouter:
    """Return the routes, each with its scope. They are plain functions: the framework runs them in threads.

    `door` is the API's: it opens transactions, requires scopes and documents errors.
    """
    rules = service.rules_of(settings)
    engine = service.sagas(rules)
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
        with _refusing():
            filters = wanted.filters
        with door.transaction() as db:
            found = store.listed(db, wanted.limit + 1, **filters)
        return page(found, wanted.limit)

    @made.put(
        "/internal/requests/{uuid}", dependencies=[door.require(RESULTS)], tags=["internal"],
        summary="Report the result of a payment", responses=door.responses(400, 404, 409, 410, 415),
    )  # fmt: skip
    def tell(uuid: UUID, result: Result, asked: Asked) -> PaymentView:
        with _refusing(), door.transaction() as db:
            found = service.tell(db, uuid, result, engine=engine, rules=rules, headers=door.headers(asked))
            return shown(found or _missing(db, uuid))

    return made


@contextmanager
def _refusing() -> Iterator[None]:
    """Answer conflicts with the recorded payment, archived payments and wrong cursors as problems."""
    try:
        yield
    except (requests.AnotherRequest, service.NotBelieved) as error:
        raise HTTPException(409, str(error)) from error
    except store.Archived as error:
        raise HTTPException(410, error.message) from error
    except requests.NotFulfilled as error:
        errors = [{"field": "fulfil", "problem": error.message}]
        raise HTTPException(422, {"detail": "the literal mode has no fulfilment", "errors": errors}) from error
    except BadCursor as error:
        errors = [{"field": "after", "problem": str(error)}]
        raise HTTPException(400, {"detail": "the cursor cannot be read", "errors": errors}) from error


def _missing(db: store.Connection, uuid: UUID) -> NoReturn:
    store.refuse_archived(db, uuid)
    raise HTTPException(404, f"there is no payment {uuid}")
