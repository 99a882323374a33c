"""The application: access control, errors, routes and their OpenAPI description, and the routes' access to it all."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from ferryman.console import problems
from ferryman.console.gate import Gate, Keyring, Place
from ferryman.runtime.postgres import Connection
from ferryman.runtime.version import __version__

OPENAPI, DOCS = "/openapi.json", "/docs"
ABOUT = (
    "Amounts are whole numbers of the currency's smallest unit. Every request may be repeated: it takes effect once. "
    "Errors are answered with `application/problem+json`."
)
# Version 00 of W3C Trace Context, and later ones that look like it; ids of zeros are invalid there.
_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_BEARER = HTTPBearer(auto_error=False, description="A token whose SHA-256 is in the settings, under [api.tokens].")


@dataclass(frozen=True, slots=True)
class Door:
    """The object that every router is given, one for the process."""

    transaction: Callable[[], AbstractContextManager[Connection]]
    """A transaction that commits at its end. If the database is away, the request is answered 503."""

    def require(self, scope: str) -> Any:
        """Return a dependency by which a route names the scope that the gate requires for it."""
        return Security(_BEARER, scopes=[scope])

    responses = staticmethod(problems.responses)

    def headers(self, request: Request) -> dict[str, str]:
        """Return the client's trace context for the messages that follow; a malformed one is left out."""
        given = request.headers.getlist("traceparent")
        return {"traceparent": given[0]} if len(given) == 1 and _TRACE.fullmatch(given[0]) else {}


def build(keyring: Keyring, max_body_bytes: int, routers: Sequence[APIRouter]) -> FastAPI:
    """Return the application with these routes."""
    app = FastAPI(
        title="Ferryman", version=__version__, description=ABOUT, openapi_url=OPENAPI, docs_url=DOCS, redoc_url=None,
        swagger_ui_oauth2_redirect_url=None, redirect_slashes=False,
    )  # fmt: skip
    for router in routers:
        app.include_router(router)
    problems.handle(app)
    public = [Place(path, re.compile(f"{re.escape(path)}$"), {}, public=True) for path in (OPENAPI, DOCS)]
    places = [*public, *_places(routers)]
    app.add_middleware(Gate, keyring=keyring, max_body_bytes=max_body_bytes, places=places)
    # Errors have one schema, in place of the framework's own.
    app.openapi().setdefault("components", {}).setdefault("schemas", {})["Problem"] = problems.SCHEMA
    return app


def _places(routers: Sequence[APIRouter]) -> Iterator[Place]:
    """Yield each path with its methods and the scope of each: every route names one."""
    found: dict[tuple[str, re.Pattern[str]], dict[str, str]] = defaultdict(dict)
    for route in (route for router in routers for route in router.routes):
        assert isinstance(route, APIRoute)
        assert route.methods
        [scope] = [str(scope) for each in route.dependencies for scope in getattr(each, "scopes", None) or ()]
        found[route.path, route.path_regex].update(dict.fromkeys(route.methods, scope))
    for (template, path), scopes in found.items():
        yield Place(template, path, scopes)
