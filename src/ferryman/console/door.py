"""What a service's routes are given: transactions, scopes, and how refusals are documented."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import psycopg
from fastapi import Depends, HTTPException, Request, Security
from fastapi.security import HTTPBearer

from ferryman.console import problems
from ferryman.console.gate import CALLER
from ferryman.console.tokens import Caller

# Version 00 of W3C Trace Context, and later ones that look like it; ids of zeros are invalid there.
_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_BEARER = HTTPBearer(auto_error=False, description="A token whose SHA-256 stands in the settings, under [api.tokens].")


@dataclass(frozen=True, slots=True)
class Door:
    """Made once for the process; routes keep it."""

    transaction: Callable[[], AbstractContextManager[psycopg.Connection[Any]]]
    """Commits at its end; a database that is away is an answer 503, with nothing for the route to do."""

    def require(self, scope: str) -> Any:
        """For a route's `dependencies`: whoever lacks the scope is refused."""

        def check(request: Request) -> None:
            caller: Caller = request.scope[CALLER]
            if not caller.may(scope):
                raise HTTPException(403, f"this token lacks the scope {scope}")

        # The bearer is there for OpenAPI alone: who it is was decided at the gate.
        def documented(request: Request, _: Any = Security(_BEARER)) -> None:  # noqa: B008
            check(request)

        return Depends(documented)

    def responses(self, *more: int) -> dict[int | str, dict[str, Any]]:
        """What a route may answer beside what it is for."""
        return problems.responses(*more)

    def headers(self, request: Request) -> dict[str, str]:
        """The client's trace, for the messages that follow; one that is malformed is none."""
        given = request.headers.getlist("traceparent")
        return {"traceparent": given[0]} if len(given) == 1 and _TRACE.fullmatch(given[0]) else {}
