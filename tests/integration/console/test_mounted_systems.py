"""The API serves the systems whose tables are in its database, each behind scopes of its own."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ferryman import Misconfigured
from ferryman.migrations import chains
from ferryman.runtime import health
from ferryman.runtime.settings import Health, Token
from ferryman.testing import stack
from support.asking import READ, TOKENS, WRITE, Running, forget_systems, payment, running, settings, sha256, until
from support.paying import Desk

pytestmark = pytest.mark.usefixtures("desk", "toys")

Database = psycopg.Connection[tuple[Any, ...]]
SCOPES = {**TOKENS, "child": ("toys:write", "toys:read"), "guest": ("toys:read",), "boss": (WRITE, READ, "toys:write")}
OURS = {"dead-letters", "deliveries", "events", "internal", "memos", "payments", "review-jobs", "subscriptions"}
"""The first parts of our own paths."""


def migrate_toys(url: str) -> None:
    chains.upgrade(lambda: psycopg.connect(url), ["toys"])


@contextmanager
def api(url: str) -> Iterator[Running]:
    tokens = {name: Token(sha256=sha256(name), scopes=[*scopes]) for name, scopes in SCOPES.items()}
    with running(settings(url, api={"tokens": tokens})) as made:
        until(lambda: made.life.why_not_ready is None)
        yield made


def served(made: Running) -> tuple[str, set[str]]:
    """Return what /readyz says, and the first parts of the paths that the API describes."""
    with health.endpoint(Health(port=0), [made.life]) as url, urllib.request.urlopen(f"{url}/readyz") as answer:
        paths = made.client.get("/openapi.json", by=None).json["paths"]
        return answer.read().decode(), {path.split("/")[1] for path in paths}


def toy(name: str = "boat") -> dict[str, str]:
    return {"uuid": str(uuid4()), "name": name}


def test_two_systems_are_served_side_by_side_each_for_its_own_scopes(ferryman_database_url: str) -> None:
    migrate_toys(ferryman_database_url)
    with api(ferryman_database_url) as made:
        routes: list[tuple[str, str, Any, set[str]]] = [
            ("POST", "/toys", toy, {"child", "boss"}),
            ("GET", "/toys", None, {"child", "guest"}),
            ("POST", "/payments", payment, {"shop", "boss"}),
            ("GET", "/payments", None, {"shop", "auditor", "boss"}),
        ]
        for method, path, body, allowed in routes:
            statuses = {by: made.client.ask(method, path, body and body(), by=by).status for by in SCOPES}
            good = 201 if method == "POST" else 200
            assert statuses == {by: good if by in allowed else 403 for by in SCOPES}, (method, path)
        assert served(made) == ("ready\napi: memos, payments, reviews, toys, webhooks\n", OURS | {"toys"})


def test_fields_and_pages_of_a_second_system_are_checked_alike(ferryman_database_url: str) -> None:
    migrate_toys(ferryman_database_url)
    with api(ferryman_database_url) as made:
        for body, field in (({"name": "a\0b"}, "name"), ({"name": 1}, "name"), ({"colour": "red"}, "colour")):
            refused = made.client.ask("POST", "/toys", toy() | body, by="child")
            assert (refused.status, list(refused.wrong)) == (422, [field])
        names = [f"boat {n}" for n in range(5)]
        for name in names:
            assert made.client.ask("POST", "/toys", toy(name), by="child").status == 201
        seen, after, page = [], "", {}
        for _ in range(3):
            page = made.client.get(f"/toys?limit=2{after}", by="child").json
            seen += [each["name"] for each in page["toys"]]
            after = f"&after={page['next']}"
        assert (seen, page["next"]) == (names[::-1], None)
        refused = made.client.get("/toys?after=x", by="child")
        assert (refused.status, list(refused.wrong)) == (400, ["after"])


def test_a_system_without_its_tables_is_404_until_they_are_there(
    ferryman_database_url: str, ferryman_postgres: str
) -> None:
    """Its tokens are valid nevertheless. Its tables are looked for with each new connection (N11)."""
    name = ferryman_database_url.rpartition("/")[2].partition("?")[0]
    with api(ferryman_database_url) as made:
        for by in ("child", "shop"):
            absent = made.client.ask("POST", "/toys", toy(), by=by)
            assert (absent.status, absent.headers["Content-Type"]) == (404, "application/problem+json")
        assert made.client.post(payment(), by="boss").status == 201
        assert served(made) == ("ready\napi: memos, payments, reviews, webhooks\n", OURS)
        migrate_toys(ferryman_database_url)
        with psycopg.connect(ferryman_postgres, autocommit=True) as server:
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        until(lambda: made.client.ask("POST", "/toys", toy(), by="child").status == 201)
        assert made.client.post(payment(), by="boss").status == 201


def test_a_database_without_tables_of_any_system_is_refused(ferryman_db: Database, ferryman_database_url: str) -> None:
    forget_systems(ferryman_db)
    with (
        pytest.raises(Misconfigured, match="migrate --for memos,payments,reviews,toys,webhooks"),
        running(settings(ferryman_database_url)),
    ):
        pass


def test_a_system_that_is_older_than_the_code_is_refused(desk: Desk, ferryman_database_url: str) -> None:
    migrate_toys(ferryman_database_url)
    desk.db.execute("UPDATE ferryman.version_toys SET version_num = 'toys_0000'")
    with pytest.raises(Misconfigured, match="migrate --for toys"), running(settings(ferryman_database_url)):
        pass


def test_a_login_serves_the_systems_whose_role_it_has(ferryman_database_url: str) -> None:
    """Least privilege: the tables of another process in the same database are nothing to this one."""
    migrate_toys(ferryman_database_url)
    with api(stack.login(ferryman_database_url, "payments-api", "ferryman_payments_api")) as made:
        assert served(made) == ("ready\napi: payments\n", {"internal", "payments"})
