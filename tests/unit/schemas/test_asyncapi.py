"""The AsyncAPI document is valid by the official schema of AsyncAPI 3.0.0, and agrees with the catalogue.

support/asyncapi-3.0.0.json is that schema as it was published; the .txt file beside it names its source.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from ferryman.relay.kafka import record_headers
from ferryman.relay.model import Entry
from ferryman.schemas import OURS, asyncapi, avro, headers
from ferryman.schemas.catalogue import load
from support import hostile

OFFICIAL = Path(__file__).parents[3] / "tests" / "support" / "asyncapi-3.0.0.json"
VALIDATOR = Draft7Validator(json.loads(OFFICIAL.read_text()))
DOCUMENT = asyncapi.document(load(OURS))


@pytest.fixture
def foreign(tmp_path: Path) -> dict[str, Any]:
    return asyncapi.document(hostile.made(tmp_path / "catalogue"))


def problems(document: Any) -> list[str]:
    return [f"{list(error.path)}: {error.message}" for error in VALIDATOR.iter_errors(document)]


def resolve(document: Any, reference: str) -> Any:
    for step in reference.removeprefix("#/").split("/"):
        document = document[step]
    return document


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        return [part["$ref"]] if "$ref" in part else [each for value in part.values() for each in references(value)]
    return [each for value in part for each in references(value)] if isinstance(part, list) else []


def test_our_document_is_valid_asyncapi() -> None:
    assert problems(DOCUMENT) == []


def test_the_document_of_a_catalogue_with_every_kind_of_type_is_valid_asyncapi(foreign: dict[str, Any]) -> None:
    assert problems(foreign) == []


def no_title(document: Any) -> None:
    del document["info"]["title"]


def no_partitions(document: Any) -> None:
    document["channels"]["orders"]["bindings"]["kafka"]["partitions"] = 0


def no_action(document: Any) -> None:
    document["operations"]["send.orders"]["action"] = "shout"


def no_avro(document: Any) -> None:
    document["components"]["messages"]["order.placed"]["payload"]["schema"]["fields"][0]["name"] = "two words"


def no_extension(document: Any) -> None:
    document["components"]["messages"]["order.placed"]["owner"] = "shop"


@pytest.mark.parametrize("broken", [no_title, no_partitions, no_action, no_avro, no_extension])
def test_the_validation_finds_errors(broken: Callable[[Any], None], foreign: dict[str, Any]) -> None:
    document = copy.deepcopy(foreign)
    broken(document)
    assert problems(document) != []


@pytest.mark.parametrize("name", ["ours", "foreign"])
def test_every_reference_can_be_resolved(name: str, foreign: dict[str, Any]) -> None:
    document = DOCUMENT if name == "ours" else foreign
    found = references(document)
    assert found
    for each in found:
        assert resolve(document, each)


def test_the_same_catalogue_has_the_same_document(tmp_path: Path, foreign: dict[str, Any]) -> None:
    again = asyncapi.document(hostile.made(tmp_path / "elsewhere"))
    assert json.dumps(again) == json.dumps(foreign)


def test_a_channel_has_the_settings_of_its_topic(foreign: dict[str, Any]) -> None:
    channel = foreign["channels"]["orders"]
    assert channel["address"] == "orders"
    assert channel["bindings"]["kafka"] == {
        "topic": "orders",
        "partitions": 6,
        "topicConfiguration": {"retention.ms": 5_400_000, "max.message.bytes": 1_048_588},
        "bindingVersion": "0.5.0",
    }
    assert channel["x-ferryman-order"] == "none"


def test_the_owner_sends_and_a_topic_without_types_has_no_operation(foreign: dict[str, Any]) -> None:
    (operation,) = foreign["operations"].values()
    assert (operation["action"], operation["x-ferryman-owner"]) == ("send", hostile.WORDS)
    assert foreign["channels"]["old_orders"]["x-ferryman-deprecated"].startswith("See orders.")


def test_a_message_has_its_schema_its_samples_and_its_class(foreign: dict[str, Any]) -> None:
    message = foreign["components"]["messages"]["order.placed"]
    assert message["payload"]["schemaFormat"] == "application/vnd.apache.avro;version=1.9.0"
    assert avro.parse(json.dumps(message["payload"]["schema"])) == avro.parse(json.dumps(hostile.ORDER))
    assert message["examples"][0]["payload"]["placed"] == "2026-01-31T12:00:00.000000Z"
    assert (message["x-ferryman-kind"], message["x-ferryman-version"], message["x-ferryman-pii"]) == (
        "event",
        1,
        "personal",
    )


def test_only_values_in_avro_have_a_schema_id(foreign: dict[str, Any]) -> None:
    messages = foreign["components"]["messages"]
    binding = messages["order.placed"]["bindings"]["kafka"]
    assert binding["schemaIdLocation"] == "payload"
    assert binding["schemaIdPayloadEncoding"] == "confluent"
    assert binding["schemaLookupStrategy"] == "RecordNameStrategy"
    assert "schemaIdLocation" not in messages["order.cancelled"]["bindings"]["kafka"]
    assert messages["order.cancelled"]["contentType"] == "application/json"
    assert "JSON" in messages["order.cancelled"]["description"]
    assert messages["order.cancelled"]["deprecated"] is True


@pytest.mark.parametrize("own", [None, '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'])
def test_published_records_have_the_documented_headers(own: str | None) -> None:
    entry = Entry(7, "9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10", "payments.events", "k", "payment.failed", b"", own,
                  "application/avro", 1_769_860_800_000_001, 3)  # fmt: skip
    found = dict(record_headers(entry, "/payments"))
    schema = {**DOCUMENT["components"]["messages"]["payment.failed"]["headers"], "components": DOCUMENT["components"]}
    assert list(Draft7Validator(schema).iter_errors(found)) == []
    assert set(found) <= set(DOCUMENT["components"]["schemas"]["headers"]["properties"])
    assert list(Draft7Validator(schema).iter_errors({**found, "ce_type": "payment.succeeded"})) != []
    assert list(Draft7Validator(schema).iter_errors({name: found[name] for name in found if name != "ce_id"})) != []


def test_the_headers_name_of_a_replay_is_the_relays() -> None:
    assert headers.REPLAY in DOCUMENT["components"]["schemas"]["headers"]["properties"]
