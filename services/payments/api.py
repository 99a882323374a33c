"""Payments over HTTP: asked for, looked at, and ended by the wallet's word."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, Protocol
from uuid import UUID

import psycopg
from fastapi import APIRouter, HTTPException, Query, Response
from fastapi import Request as Asked

from ferryman.services.payments import requests, store, telling
from ferryman.services.payments.bodies import BadCursor, NewPayment, Page, Payment, Result, Wanted, page, shown
from ferryman.services.payments.literal import NotFulfilled
from ferryman.services.payments.service import rules_of, sagas

WRITE, READ, RESULTS = "payments:write", "payments:read", "internal:results"


class Door(Protocol):
    """What the house gives its routes."""

    @property
    def transaction(self) -> "Transaction": ...

    def require(self, scope: str) -> Any: ...

    def responses(self, *more: int) -> dict[int | str, dict[str, Any]]: ...

    def headers(self, request: Asked) -> dict[str, str]: ...


class Transaction(Protocol):
    """Commits at its end."""

    def __call__(self) -> AbstractContextManager[psycopg.Connection[Any]]: ...


def router(door: Door, settings: Any) -> APIRouter:
    """The routes, each behind its scope. They are plain functions: the framework runs them in threads."""
    rules = rules_of(settings)
    engine = sagas(rules)
    made = APIRouter(tags=["payments"])

    @made.post(
        "/payments", status_code=201, dependencies=[door.require(WRITE)], summary="Ask for a payment",
        responses={
            200: {"model": Payment, "description": "It was recorded before, by the same body; as it stands now."},
            201: {"description": "It is recorded.", "headers": {"Location": {"schema": {"type": "string"}}}},
            **door.responses(400, 409, 415),
        },
    )  # fmt: skip
    def ask(wanted: NewPayment, asked: Asked, response: Response) -> Payment:
        with _refusing(), door.transaction() as db:
            found, new = requests.record_one(db, wanted.request, rules, door.headers(asked))
        response.status_code = 201 if new else 200
        if new:
            response.headers["Location"] = f"/payments/{found.uuid}"
        return shown(found)

    @made.get(
        "/payments/{uuid}", dependencies=[door.require(READ)], summary="Look at a payment",
        responses=door.responses(404),
    )  # fmt: skip
    def look(uuid: UUID) -> Payment:
        with door.transaction() as db:
            found = store.find(db, [uuid]).get(uuid)
        return shown(_there(found, uuid))

    @made.get(
        "/payments", dependencies=[door.require(READ)], summary="List payments, the newest first",
        responses=door.responses(400),
    )  # fmt: skip
    def look_through(wanted: Annotated[Wanted, Query()]) -> Page:
        with _refusing():
            filters = wanted.filters
        with door.transaction() as db:
            found = store.listed(db, filters, wanted.limit + 1)
        return page(found, wanted.limit)

    @made.put(
        "/internal/requests/{uuid}", dependencies=[door.require(RESULTS)], tags=["internal"],
        summary="Tell what became of a payment", responses=door.responses(400, 404, 409, 415),
    )  # fmt: skip
    def tell(uuid: UUID, result: Result, asked: Asked) -> Payment:
        with _refusing(), door.transaction() as db:
            found = telling.tell(db, uuid, result.told, sagas=engine, rules=rules, headers=door.headers(asked))
        return shown(_there(found, uuid))

    return made


@contextmanager
def _refusing() -> Iterator[None]:
    """What contradicts what stands, and a cursor that is none of ours."""
    try:
        yield
    except (requests.AnotherRequest, store.Archived, telling.NotBelieved) as error:
        raise HTTPException(409, str(error)) from error
    except NotFulfilled as error:
        errors = [{"field": "fulfil", "problem": error.message}]
        raise HTTPException(422, {"detail": "the literal mode fulfils nothing", "errors": errors}) from error
    except BadCursor as error:
        errors = [{"field": "after", "problem": str(error)}]
        raise HTTPException(400, {"detail": "the cursor cannot be read", "errors": errors}) from error


def _there(found: store.Recorded | None, uuid: UUID) -> store.Recorded:
    if found is None:
        raise HTTPException(404, f"there is no payment {uuid}")
    return found
