"""Errors in one form, RFC 9457, with the fields that are wrong."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ferryman.routes import MEDIA_TYPE
from ferryman.runtime.errors import Transient, Unreachable

log = structlog.get_logger(__name__)

AGAIN = {"Retry-After": "2"}

FIELD = {
    "type": "object",
    "required": ["field", "problem"],
    "properties": {"field": {"type": "string"}, "problem": {"type": "string"}},
}
SCHEMA = {
    "title": "Problem",
    "description": "RFC 9457.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "Always about:blank: the status tells the kind."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong with this request, in words."},
        "errors": {"type": "array", "items": FIELD, "description": "The fields that are wrong, if any."},
    },
}


def problem(
    status: int, detail: str, errors: Sequence[Mapping[str, str]] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer for an error."""
    said: dict[str, Any] = {
        "type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail,
    }  # fmt: skip
    if errors:
        said["errors"] = [dict(each) for each in errors]
    return JSONResponse(said, status, headers, media_type=MEDIA_TYPE)


def handle(app: FastAPI) -> None:
    """Answer the errors of the framework and of routes in our form. The gate answers all others."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Transient, _transient)


def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    errors = [
        {"field": _field(each["loc"]), "problem": str(each["msg"]).removeprefix("Value error, ")} for each in found
    ]
    return problem(422, "fields are wrong: " + ", ".join(dict.fromkeys(each["field"] for each in errors)), errors)


def _field(place: Sequence[Any]) -> str:
    """Return the name of a field without the part of the request that it is in."""
    return ".".join(map(str, place[1:] or place))


def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return refusal(error)


def refusal(error: HTTPException) -> JSONResponse:
    """Return the answer for an HTTPException whose detail is text, or a mapping of `detail` and `errors`."""
    given: Any = error.detail
    said: Mapping[str, Any] = given if isinstance(given, Mapping) else {"detail": str(given)}
    return problem(error.status_code, said["detail"], said.get("errors", ()), error.headers)


def _transient(_request: Request, error: Exception) -> JSONResponse:
    log.warning("not answered", error=str(error)[:500])
    why = "the database does not answer" if isinstance(error, Unreachable) else "the database is too busy"
    return problem(503, f"{why}: try again, with the same id if the request has one", headers=AGAIN)
