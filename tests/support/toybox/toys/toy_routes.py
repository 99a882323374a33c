"""The routes of toys: make one, and list them."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, StrictStr

from ferryman.routes import STORABLE, After, Body, Door, Instant, Limit, page, read_cursor


class NewToy(Body):
    """A toy as a child wants it."""

    uuid: UUID
    name: Annotated[StrictStr, Field(max_length=20), STORABLE]


class Toy(BaseModel):
    """A toy that was made."""

    uuid: UUID
    name: str
    made_at: Instant


class Listed(Body):
    """The cursor of a list of toys."""

    limit: Limit = 100
    after: After = None


class ToysPage(BaseModel):
    """A page of toys, the newest first."""

    toys: list[Toy]
    next: str | None


def router(door: Door, _settings: Any) -> APIRouter:
    made = APIRouter(tags=["toys"])

    @made.post("/toys", status_code=201, dependencies=[door.require("toys:write")], responses=door.responses())
    def make(wanted: NewToy) -> None:
        with door.transaction() as db:
            db.execute("INSERT INTO toys.toys (uuid, name) VALUES (%s, %s)", (wanted.uuid, wanted.name))

    @made.get("/toys", dependencies=[door.require("toys:read")], responses=door.responses(400))
    def look(wanted: Annotated[Listed, Query()]) -> ToysPage:
        at, uuid = read_cursor(wanted.after) or (None, None)
        with door.transaction() as db:
            rows = db.execute(
                "SELECT uuid, name, made_at FROM toys.toys "
                "WHERE %(at)s::timestamptz IS NULL OR (made_at, uuid) < (%(at)s, %(uuid)s::uuid) "
                "ORDER BY made_at DESC, uuid DESC LIMIT %(most)s",
                {"at": at, "uuid": uuid, "most": wanted.limit + 1},
            ).fetchall()
        found = [Toy(uuid=uuid, name=name, made_at=at) for uuid, name, at in rows]
        toys, following = page(found, wanted.limit, lambda last: (last.made_at, last.uuid))
        return ToysPage(toys=list(toys), next=following)

    return made
