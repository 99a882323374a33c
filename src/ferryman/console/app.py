"""The application: the gate, the problems, the routes, and the description of it all."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi

from ferryman.console import problems
from ferryman.console.gate import Gate
from ferryman.console.tokens import Keyring
from ferryman.runtime.version import __version__

OPENAPI, DOCS = "/openapi.json", "/docs"
ABOUT = (
    "Money is whole numbers of the currency's smallest unit. Whatever is asked for may be asked for again: it happens "
    "once. What is refused is answered with `application/problem+json`."
)


def build(keyring: Keyring, max_body_bytes: int, routers: Sequence[APIRouter]) -> FastAPI:
    """Ready to be served; the routers know their database."""
    app = FastAPI(
        title="Ferryman", version=__version__, description=ABOUT, openapi_url=OPENAPI, docs_url=DOCS, redoc_url=None,
        swagger_ui_oauth2_redirect_url=None, redirect_slashes=False,
    )  # fmt: skip
    for router in routers:
        app.include_router(router)
    problems.handle(app)
    app.add_middleware(Gate, keyring=keyring, max_body_bytes=max_body_bytes, public=(OPENAPI, DOCS))
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Names the form of a problem once, in place of the framework's own."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )  # fmt: skip
            made.setdefault("components", {}).setdefault("schemas", {})["Problem"] = problems.SCHEMA
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
