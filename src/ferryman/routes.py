"""The parts that a service writes its HTTP routes with: the door, errors, fields of bodies, and pages of a list.

A system's descriptor names a function of a `Door` and the settings that returns a router of FastAPI. This module needs
the extra `api`: import it only where the routes are.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias, TypeVar
from uuid import UUID

from fastapi import HTTPException, Request, Security
from fastapi.security import HTTPBearer
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from ferryman.runtime.postgres import Connection

__all__ = [
    "STORABLE",
    "After",
    "Body",
    "Door",
    "Instant",
    "Limit",
    "Moment",
    "Number",
    "page",
    "read_cursor",
    "read_number",
    "wrong",
]

MEDIA_TYPE = "application/problem+json"
MEANINGS = {
    400: "The request cannot be read.",
    401: "No known token.",
    403: "The token lacks the scope.",
    404: "There is no such resource.",
    408: "The body did not arrive in time.",
    409: "The request contradicts the recorded state.",
    410: "It is over and archived: `detail` says how it ended.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "Fields are wrong: `errors` names them.",
    500: "An error of the server; the request may be repeated.",
    503: "The database is away, or the server is overloaded: try again after `Retry-After`.",
}
CALLER = "caller"
"""The name under which a request's state has its client."""
ANYWHERE = (400, 401, 403, 408, 413, 422, 500, 503)
# Version 00 of W3C Trace Context, and later ones that look like it; ids of zeros are invalid there.
_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_BEARER = HTTPBearer(auto_error=False, description="A token whose SHA-256 is in the settings, under [api.tokens].")

Cursor: TypeAlias = tuple[datetime, UUID]
ItemT = TypeVar("ItemT")
T = TypeVar("T")
_MOST_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Door:
    """The object that every router is given, one for the process."""

    transaction: Callable[..., AbstractContextManager[Connection]]
    """A transaction that commits at its end; with `serializable=True` it has that isolation. If the database is away,
    the request is answered 503."""

    def require(self, scope: str) -> Any:
        """Return a dependency by which a route names the scope that it needs. Every route names exactly one."""
        return Security(_BEARER, scopes=[scope])

    def responses(self, *more: int) -> dict[int | str, dict[str, Any]]:
        """Return the errors that a route may answer, as OpenAPI describes them."""
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        return {
            status: {"description": MEANINGS[status], "content": content} for status in sorted({*ANYWHERE, *more})
        }  # fmt: skip

    def headers(self, request: Request) -> dict[str, str]:
        """Return the client's trace context for the messages that follow; a malformed one is left out."""
        given = request.headers.getlist("traceparent")
        return {"traceparent": given[0]} if len(given) == 1 and _TRACE.fullmatch(given[0]) else {}

    def caller(self, request: Request) -> str:
        """Return the name of the client whose token the request has, for audits."""
        return str(request.scope["state"][CALLER])


def wrong(status: int, detail: str, fields: Mapping[str, str]) -> HTTPException:
    """Return the error to raise for a request whose fields are wrong, each with its problem."""
    return HTTPException(status, {"detail": detail, "errors": [{"field": f, "problem": p} for f, p in fields.items()]})


class Body(BaseModel):
    """A body, or the parameters of a query: fields that it does not have are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("a null character cannot be stored")
    if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
        raise ValueError("half of a surrogate pair cannot be stored")
    return text


def _written(pattern: str, words: str) -> BeforeValidator:
    """Refuse what pydantic would understand beyond one way to write a value: `since=0`, `limit=1_0`."""

    def check(given: Any) -> str:
        if not isinstance(given, str) or not re.match(pattern, given, re.ASCII):
            raise ValueError(words)
        return given

    return BeforeValidator(check)


STORABLE = AfterValidator(_storable)
"""For text that goes to PostgreSQL, as in `Annotated[StrictStr, Field(max_length=500), STORABLE]`."""
Moment = Annotated[AwareDatetime, _written(r"\d{4}-\d\d-\d\dT\d\d:", "write a time as 2026-05-04T10:00:00Z")]
Instant = Annotated[datetime, AfterValidator(lambda when: when.astimezone(UTC))]
Limit = Annotated[int, Field(ge=1, le=500), _written(r"\d{1,3}$", "write a whole number from 1 to 500")]
Number = Annotated[int, Field(ge=1, le=_MOST_NUMBER), _written(r"\d{1,19}$", "write a whole number from 1 on")]
"""For the id of a row in a path or a query, where it is a bigint."""
After = Annotated[str | None, Field(max_length=200, description="The `next` of the previous page.")]


def page(found: Sequence[ItemT], limit: int, at: Callable[[ItemT], Cursor | int]) -> tuple[Sequence[ItemT], str | None]:
    """Return a page of `limit` items and its `next`: one more in `found` means that another page follows."""
    if len(found) <= limit:
        return found, None
    last = at(found[limit - 1])
    place = last if isinstance(last, int) else [last[0].astimezone(UTC).isoformat(), str(last[1])]
    said = json.dumps(place, separators=(",", ":"))
    return found[:limit], base64.urlsafe_b64encode(said.encode()).decode().rstrip("=")


def read_cursor(after: str | None) -> Cursor | None:
    """Return the time and the uuid of the last item of the previous page, by its `next`; None for the first page."""
    return _read(after, _time_and_uuid)


def read_number(after: str | None) -> int | None:
    """Return the number of the last item of the previous page, by its `next`; None for the first page."""
    return _read(after, _number)


def _read(after: str | None, understand: Callable[[Any], T]) -> T | None:
    if after is None:
        return None
    try:
        return understand(json.loads(base64.b64decode(after + "=" * (-len(after) % 4), altchars=b"-_", validate=True)))
    except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise wrong(400, "the cursor cannot be read", {"after": "it is not the `next` of a page"}) from error


def _time_and_uuid(place: Any) -> Cursor:
    at, uuid = place
    when = datetime.fromisoformat(at)
    if when.utcoffset() is None:
        raise ValueError("a time without an offset")
    return when, UUID(uuid)


def _number(place: Any) -> int:
    if type(place) is not int or not 0 < place <= _MOST_NUMBER:
        raise ValueError("not the number of a row")
    return place
