"""The catalogue as an AsyncAPI 3.0.0 document, for the tools of other teams."""

import json
from typing import Any, TypeAlias

from ferryman.schemas import avro, headers
from ferryman.schemas.catalogue import AVRO, JSON, Catalogue, Topic, Type

Part: TypeAlias = dict[str, Any]

_BINDING = "0.5.0"
_AVRO_SCHEMA = "application/vnd.apache.avro;version=1.9.0"
_AS_JSON = (
    "Its value is JSON in UTF-8, without a schema's id; the Avro schema says its fields. Times, dates, uuids and "
    "decimals are text, bytes are base64, a union's value stands bare."
)
_AS_AVRO = "Its value is a zero byte, the schema's id in four bytes, and the record in Avro's binary form."


def document(catalogue: Catalogue) -> Part:
    """The same catalogue has the same document."""
    return {
        "asyncapi": "3.0.0",
        "info": {"title": catalogue.title, "version": _version(catalogue), "description": catalogue.text},
        "defaultContentType": AVRO,
        "channels": {name: _channel(catalogue, topic) for name, topic in catalogue.topics.items()},
        "operations": {
            f"send.{name}": _operation(catalogue, topic)
            for name, topic in catalogue.topics.items()
            if catalogue.of_topic(name)
        },
        "components": {
            "messages": {name: _message(catalogue, kind) for name, kind in catalogue.types.items()},
            "schemas": {"headers": _headers()},
        },
    }


def _version(catalogue: Catalogue) -> str:
    """Changes never break readers, so the first number stays; the second counts the versions of all types."""
    return f"1.{sum(each.version for each in catalogue.types.values())}.0"


def _channel(catalogue: Catalogue, topic: Topic) -> Part:
    return {
        "address": topic.name,
        "description": topic.text,
        "messages": {
            each.name: {"$ref": f"#/components/messages/{each.name}"} for each in catalogue.of_topic(topic.name)
        },
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "retention.ms": topic.retention_ms,
                    "max.message.bytes": topic.max_message_bytes,
                },
                "bindingVersion": _BINDING,
            }
        },
        "x-ferryman-owner": topic.owner,
        "x-ferryman-order": topic.order,
        "x-ferryman-duplicates": topic.duplicates,
        "x-ferryman-replay": topic.replay,
        **_deprecation(topic),
    }


def _operation(catalogue: Catalogue, topic: Topic) -> Part:
    return {
        "action": "send",
        "title": f"{topic.owner} sends to {topic.name}",
        "channel": {"$ref": f"#/channels/{topic.name}"},
        "messages": [
            {"$ref": f"#/channels/{topic.name}/messages/{each.name}"} for each in catalogue.of_topic(topic.name)
        ],
        "x-ferryman-owner": topic.owner,
    }


def _message(catalogue: Catalogue, kind: Type) -> Part:
    form = _AS_JSON if kind.content_type == JSON else _AS_AVRO
    return {
        "name": kind.name,
        "title": kind.subject,
        "summary": kind.schema.get("doc", ""),
        "description": form,
        "contentType": kind.content_type,
        "headers": {
            "type": "object",
            "allOf": [{"$ref": "#/components/schemas/headers"}],
            "properties": {headers.TYPE: {"const": kind.name}, headers.CONTENT_TYPE: {"const": kind.content_type}},
        },
        "payload": {"schemaFormat": _AVRO_SCHEMA, "schema": _spelled(json.loads(kind.text))},
        "examples": [{"name": f"sample-{n}", "payload": each} for n, each in enumerate(kind.json_samples, 1)],
        "bindings": {"kafka": _binding(catalogue.topics[kind.topic], kind)},
        "x-ferryman-kind": kind.kind,
        "x-ferryman-version": kind.version,
        "x-ferryman-pii": kind.pii,
        **({"deprecated": True} if kind.deprecated else {}),
        **_deprecation(kind),
    }


def _binding(topic: Topic, kind: Type) -> Part:
    of_registry = {
        "schemaIdLocation": "payload",
        "schemaIdPayloadEncoding": "confluent",
        "schemaLookupStrategy": "RecordNameStrategy",
    }
    return {
        "key": {"type": "string", "description": topic.key},
        **(of_registry if kind.content_type == AVRO else {}),
        "bindingVersion": _BINDING,
    }


def _headers() -> Part:
    return {
        "type": "object",
        "required": [each.name for each in headers.HEADERS if each.when == "always"],
        "properties": {
            each.name: {"type": "string", "description": each.text, **each.form} for each in headers.HEADERS
        },
    }


def _deprecation(of: Topic | Type) -> Part:
    return {"x-ferryman-deprecated": of.deprecated} if of.deprecated else {}


def _spelled(node: avro.Node) -> avro.Node:
    """The schema as AsyncAPI knows Avro: a name's space stands beside it, a type is not wrapped in a type."""
    if isinstance(node, list):
        return [_spelled(each) for each in node]
    if isinstance(node, str):
        return node
    if isinstance(node["type"], dict | list):
        return _spelled(node["type"])
    made = dict(node)
    if "." in made.get("name", ""):
        made["namespace"], _, made["name"] = made["name"].rpartition(".")
    if "fields" in made:
        made["fields"] = [{**field, "type": _spelled(field["type"])} for field in made["fields"]]
    for inner in ("items", "values"):
        if inner in made:
            made[inner] = _spelled(made[inner])
    return made
