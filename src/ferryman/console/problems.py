"""Everything that is refused, in one form: RFC 9457, with the fields that are wrong."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ferryman.runtime.errors import Transient

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
AGAIN_SECONDS = 2

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
        "type": {"type": "string", "description": "Always about:blank: the status says what kind it is."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong with this request, in words."},
        "errors": {"type": "array", "items": FIELD, "description": "The fields that are wrong, where it is they."},
    },
}
MEANINGS = {
    400: "It cannot be read.",
    401: "No token, or none that is known.",
    403: "The token lacks the scope.",
    404: "There is no such thing.",
    408: "The body did not come in time.",
    409: "It contradicts what stands.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "Fields are wrong: `errors` names them.",
    500: "A fault of the server; what was asked for may be asked for again.",
    503: "The database is away, or there is too much to do: ask again after `Retry-After`.",
}
ANYWHERE = (401, 403, 408, 413, 422, 500, 503)


def problem(
    status: int, detail: str, errors: Sequence[Mapping[str, str]] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The answer to what is refused."""
    said: dict[str, Any] = {
        "type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail,
    }  # fmt: skip
    if errors:
        said["errors"] = [dict(each) for each in errors]
    return JSONResponse(said, status, headers, media_type=MEDIA_TYPE)


def away(detail: str = "the database does not answer: ask again, it changes nothing twice") -> JSONResponse:
    """Nothing is wrong with the request."""
    return problem(503, detail, headers={"Retry-After": str(AGAIN_SECONDS)})


def responses(*more: int) -> dict[int | str, dict[str, Any]]:
    """What a route may answer beside what it is for, as OpenAPI has it."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": MEANINGS[status], "content": content} for status in sorted({*ANYWHERE, *more})
    }  # fmt: skip


def handle(app: FastAPI) -> None:
    """Every error that the framework or a route raises becomes a problem; what is left is the gate's."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Transient, _transient)


def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        return problem(400, "the body is not JSON", [{"field": "body", "problem": "it cannot be parsed"}])
    errors = [{"field": _field(each["loc"]), "problem": str(each["msg"])} for each in found]
    return problem(422, "fields are wrong: " + ", ".join(dict.fromkeys(each["field"] for each in errors)), errors)


def _field(place: Sequence[Any]) -> str:
    """Without the part of the request that it stands in, which everyone knows."""
    return ".".join(str(part) for part in (place[1:] if len(place) > 1 else place))


def _refused(_request: Request, error: Exception) -> JSONResponse:
    """Its detail is words, or a mapping of `detail` and `errors`."""
    assert isinstance(error, HTTPException)
    given: Any = error.detail
    said: Mapping[str, Any] = given if isinstance(given, Mapping) else {"detail": str(given)}
    return problem(error.status_code, said["detail"], said.get("errors", ()), error.headers)


def _transient(_request: Request, error: Exception) -> JSONResponse:
    log.warning("not answered", error=str(error)[:500])
    return away()
