"""Every route of every system keeps to its description, whatever a client sends: requests are made up from OpenAPI."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import jsonschema
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as st

from ferryman.runtime.settings_http import Http
from support.asking import Answer, Client, running, settings, until
from support.paying import Desk
from support.webhooking import publish, subscribe

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
WORDS = st.sampled_from(["order.paid", "https://a.example/", "ann@example.com"]) | st.text(
    st.characters(exclude_categories=()), max_size=20
)
PLAIN: Mapping[Any, st.SearchStrategy[Any]] = {
    "integer": st.sampled_from([1, 2, 3, 0, -1, 2**31, 2**63 - 1, 2**63]) | st.integers(),
    "number": st.sampled_from([1, 0.5, 0]) | st.floats(), "boolean": st.booleans(), "null": st.none(),
}  # fmt: skip
FORMATS = {"uuid": st.uuids().map(str), "date-time": st.datetimes().map(lambda at: f"{at.isoformat()}Z")}


class Operation(NamedTuple):
    """A method of a path, as the description has it."""

    method: str
    path: str
    said: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"{self.method.upper()} {self.path}"


@pytest.fixture
def client(desk: Desk, ferryman_database_url: str) -> Iterator[Client]:
    """Return a client of an API that asks for no token, with a few rows to find."""
    subscribe(desk.db, "https://a.example", "order.paid")
    publish(desk.db)
    desk.db.execute(
        "INSERT INTO webhooks.webhook_delivery_sagas (event_id, subscription_id, next_attempt_at) VALUES (1, 1, now())"
    )
    found = settings(ferryman_database_url, api={"tokens": {}, "open": True}, http=Http())
    with running(found) as made:
        until(lambda: made.life.why_not_ready is None)
        yield made.client


def test_every_answer_is_one_that_the_description_has(client: Client) -> None:
    described = client.get("/openapi.json", by=None).json
    operations = [
        Operation(method, path, said) for path, each in described["paths"].items() for method, said in each.items()
    ]
    statuses = set[int]()

    @trying(max_examples=20 * len(operations), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def keeps_to_it(data: st.DataObject) -> None:
        wanted = data.draw(st.sampled_from(operations))
        answer = asked(client, wanted, described, data)
        statuses.add(answer.status)
        check(answer, wanted, described)

    keeps_to_it()
    assert statuses >= {200, 201, 404, 422}, "some requests are understood"


def asked(client: Client, wanted: Operation, described: Mapping[str, Any], data: st.DataObject) -> Answer:
    """Send a request whose parts are as described, but for one in a few."""
    path, query = wanted.path, {}
    for each in wanted.said.get("parameters", ()):
        value = data.draw(
            like(each["schema"], described) | WORDS if each["in"] == "query" else like(each["schema"], described)
        )
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", quote(str(value), safe=""))
        elif value is not None and data.draw(st.booleans()):
            query[each["name"]] = str(value)
    body = None
    if "requestBody" in wanted.said:
        schema = wanted.said["requestBody"]["content"]["application/json"]["schema"]
        body = data.draw(like(schema, described) if data.draw(st.integers(0, 9)) else ANYTHING)
    sent = None if body is None else json.dumps(body).encode()
    address = f"{path}?{urlencode(query, errors='replace')}" if query else path
    return client.ask(wanted.method.upper(), address, sent, by=None)


def check(answer: Answer, wanted: Operation, described: Mapping[str, Any]) -> None:
    responses = wanted.said["responses"]
    assert answer.status != 500, answer.body
    assert str(answer.status) in responses, (wanted, answer)
    [(kind, content)] = responses[str(answer.status)]["content"].items()
    assert answer.headers["Content-Type"].partition(";")[0] == kind, (wanted, answer)
    jsonschema.Draft202012Validator({**content["schema"], "components": described["components"]}).validate(answer.json)


def like(schema: Mapping[str, Any], described: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy of values that a schema mostly takes: numbers and texts may be beyond its bounds."""
    if "$ref" in schema:
        return like(described["components"]["schemas"][schema["$ref"].rpartition("/")[2]], described)
    if "anyOf" in schema:
        return st.one_of([like(each, described) for each in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    return _typed(schema, described)


def _typed(schema: Mapping[str, Any], described: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    match schema.get("type"):
        case "object":
            return _object(schema, described)
        case "array":
            return st.lists(like(schema["items"], described), min_size=schema.get("minItems", 0), max_size=3)
        case "string":
            return FORMATS.get(
                schema.get("format", ""), st.from_regex(schema["pattern"]) if "pattern" in schema else WORDS
            )
        case plain:
            return PLAIN.get(plain, ANYTHING)


def _object(schema: Mapping[str, Any], described: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    fields = {name: like(each, described) for name, each in schema.get("properties", {}).items()}
    needed = schema.get("required", ())
    return st.fixed_dictionaries(
        {name: each for name, each in fields.items() if name in needed},
        optional={name: each for name, each in fields.items() if name not in needed},
    )
