"""The application: access control, errors, routes and their OpenAPI description."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from ferryman.console import problems
from ferryman.console.gate import Gate, Keyring, Place
from ferryman.runtime.version import __version__

OPENAPI, DOCS = "/openapi.json", "/docs"
ABOUT = (
    "Amounts are whole numbers of the currency's smallest unit. Every request may be repeated: it takes effect once. "
    "Errors are answered with `application/problem+json`."
)


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
    places = [*public, *places_of(routers)]
    app.add_middleware(Gate, keyring=keyring, max_body_bytes=max_body_bytes, places=places)
    # Errors have one schema, in place of the framework's own.
    app.openapi().setdefault("components", {}).setdefault("schemas", {})["Problem"] = problems.SCHEMA
    return app


def places_of(routers: Iterable[APIRouter]) -> Iterator[Place]:
    """Yield each path with its methods and the scope of each. A route without one scope of its own is a bug."""
    found: dict[tuple[str, re.Pattern[str]], dict[str, str]] = defaultdict(dict)
    for route in (route for router in routers for route in router.routes):
        assert isinstance(route, APIRoute)
        scopes = [str(scope) for each in route.dependencies for scope in getattr(each, "scopes", None) or ()]
        methods, known = route.methods or set(), found[route.path, route.path_regex]
        if len(scopes) != 1 or known.keys() & methods:
            raise TypeError(f"{', '.join(methods)} {route.path} must be one route, and require one scope of the door")
        known.update(dict.fromkeys(methods, scopes[0]))
    for (template, path), known in found.items():
        yield Place(template, path, known)
