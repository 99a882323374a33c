"""The routes of memos: record one with its mail, and look at one."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, HTTPException, Response
from pydantic import BaseModel, Field, StrictStr

from ferryman.routes import STORABLE, Body, Door, Instant, wrong
from ferryman.services.memos.memos import (
    InvalidMemo,
    MemoInput,
    MemoRow,
    create_memo,
    find_memo,
    serializably,
)

WRITE, READ = "memos:write", "memos:read"
Line = Annotated[StrictStr, Field(min_length=1, max_length=500), STORABLE]
Text = Annotated[StrictStr, STORABLE]


class NewMemo(Body):
    """A memo as its client writes it, and the mail about it."""

    id: UUID | None = Field(None, description="Chosen by the client, so that the request can be repeated.")
    number_prefix: Line = Field(max_length=50)
    department_code: Line = Field(max_length=50)
    title: Line
    purpose: Text | None = None
    recipient: Line = Field(max_length=254, description="The address of the mail: exactly one.")
    email_body: Text = Field(description="The text of the mail.")
    email_html: Text | None = Field(None, description="The same as HTML.")

    @property
    def memo(self) -> MemoInput:
        return MemoInput(**self.model_dump(exclude={"id"}))


class MailView(BaseModel):
    """The mail about a memo."""

    id: UUID
    status: str = Field(description="PENDING, SENDING, SENT or FAILED.")
    retry_count: int
    sent_at: Instant | None
    error: str | None


class MemoView(BaseModel):
    """A memo and its mail; there is none once the mail is archived."""

    id: UUID
    number: str
    department_code: str
    title: str
    purpose: str | None
    created_at: Instant
    mail: MailView | None


def router(door: Door, settings: Any) -> APIRouter:
    """Return the routes, each with its scope."""
    made = APIRouter(tags=["memos"])

    @made.post(
        "/memos", status_code=201, dependencies=[door.require(WRITE)], summary="Record a memo and the mail about it",
        responses={
            200: {"model": MemoView, "description": "It was recorded before, with the same body."},
            **door.responses(409, 415),
        },
    )  # fmt: skip
    def record(wanted: NewMemo, response: Response) -> MemoView:
        def work(db: Any) -> tuple[MemoRow, bool]:
            known = find_memo(db, wanted.id) if wanted.id else None
            if known:
                return known, False
            made = create_memo(db, wanted.memo, wanted.id, max_bytes=settings.email.max_bytes)
            return _found(find_memo(db, made.id), made.id), True

        with _refusing():
            memo, new = serializably(partial(door.transaction, serializable=True), work)
        if not new and memo.hash != wanted.memo.hash:
            raise HTTPException(409, f"the memo {memo.id} is recorded with another body")
        response.status_code = 201 if new else 200
        if new:
            response.headers["Location"] = f"/memos/{memo.id}"
        return _shown(memo)

    @made.get(
        "/memos/{memo_id}", dependencies=[door.require(READ)], summary="Look at a memo", responses=door.responses(404)
    )
    def look(memo_id: UUID) -> MemoView:
        with door.transaction() as db:
            return _shown(_found(find_memo(db, memo_id), memo_id))

    return made


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except InvalidMemo as error:
        raise wrong(422, "the memo cannot be recorded", {error.field: error.problem}) from error


def _found(memo: MemoRow | None, memo_id: UUID) -> MemoRow:
    if memo is None:
        raise HTTPException(404, f"there is no memo {memo_id}")
    return memo


def _shown(memo: MemoRow) -> MemoView:
    mail = memo.mail and MailView(
        id=memo.mail, status=memo.status, retry_count=memo.retry_count, sent_at=memo.sent_at, error=memo.error
    )
    return MemoView(
        id=memo.id,
        number=memo.number,
        department_code=memo.department_code,
        title=memo.title,
        purpose=memo.purpose,
        created_at=memo.created_at,
        mail=mail or None,
    )
