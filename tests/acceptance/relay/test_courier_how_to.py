"""The samples of docs/couriers.md do what the page says, as they are written there."""

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from psycopg import conninfo, sql
from standardwebhooks.webhooks import Webhook

from ferryman.channels.outcome import Code
from ferryman.runtime.postgres import Connection
from ferryman.testing.receiver import Receiver
from support.compose import ROOT
from support.launch import Launcher
from support.operating import Operator

PAGE = (ROOT / "docs" / "couriers.md").read_text()
SECRET = "whsec_bm90IGEgc2VjcmV0"


def block(language: str, holding: str) -> str:
    """Return the first block of the page that holds this text."""
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return next(str(each) for each in found if holding in each)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def login(ferryman_db: Connection, receiver: Receiver) -> Iterator[str]:
    """Create the tables and the login of the page, which knows this receiver as an endpoint."""
    name = f"hooks_login_{uuid4().hex[:8]}"
    ferryman_db.execute(block("sql", "CREATE TABLE shop.hooks"))
    for holding in ("CREATE ROLE hooks_login", "CREATE TABLE shop.endpoints"):
        script = block("sql", holding).replace("http://127.0.0.1:8000/", receiver.url)
        ferryman_db.execute(script.replace("hooks_login", name))
    yield name
    ferryman_db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def statuses(db: Connection) -> dict[str, tuple[str, str | None]]:
    return {url: (status, error) for url, status, error in
            db.execute("SELECT destination, status, error FROM shop.hooks").fetchall()}  # fmt: skip


def test_courier_of_the_page_signs_refuses_holds_and_reports_under_its_login(
    ferryman: Launcher, ferryman_db: Connection, ferryman_database_url: str, receiver: Receiver, login: str
) -> None:
    (ferryman.folder / "ferryman.toml").write_text(block("toml", "[outbox.hooks]"))
    (ferryman.folder / "shop_hooks.py").write_text(block("python", "@hooks.prepare"))
    parts = conninfo.conninfo_to_dict(ferryman_database_url)
    url = f"postgresql://{login}:choose%20one@{parts['host']}:{parts['port']}/{parts['dbname']}"
    operator = Operator(ferryman, FERRYMAN_DATABASE_URL=url)
    insert = "INSERT INTO shop.hooks (destination, payload) VALUES (%s, '{}')"
    unknown = "http://127.0.0.1:9/"
    for destination in (receiver.url, unknown):
        ferryman_db.execute(insert, (destination,))
    assert operator.run("drain shop_hooks:hooks --json").json["published"] == 1
    assert statuses(ferryman_db) == {receiver.url: ("SENT", None), unknown: ("DEAD", "UNKNOWN_ENDPOINT")}
    [request] = receiver.requests
    Webhook(SECRET).verify(request.body, dict(request.headers))
    assert ferryman_db.execute("SELECT type FROM ferryman.outbox").fetchall() == [("hook.ended",)] * 2

    ferryman_db.execute("UPDATE shop.endpoints SET paused = true")
    ferryman_db.execute(insert, (receiver.url,))
    drained = operator.run("drain shop_hooks:hooks --json")
    assert (drained.json["published"], drained.json["waiting"]) == (0, 1)
    assert "held by the courier" in drained.stderr


def test_page_has_every_code() -> None:
    assert set(re.findall(r"^\| `([A-Z_]+)` \| .+ \|$", PAGE, re.MULTILINE)) == set(Code)
