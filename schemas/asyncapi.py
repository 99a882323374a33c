"""The catalogue as an AsyncAPI 3.0.0 document, for the tools of other teams."""

import json
from typing import Any, TypeAlias

from ferryman.schemas import avro, headers
from ferryman.schemas.catalogue import AVRO, JSON, Catalogue, CatalogueTopic, Type

Part: TypeAlias = dict[str, Any]

_BINDING = "0.5.0"
_AVRO_SCHEMA = "application/vnd.apache.avro;version=1.9.0"
_AS_JSON = (
    "The value is JSON in UTF-8, without a schema's id; the Avro schema defines its fields. Times, dates, uuids and "
    "decimals are text, bytes are base64, and the value of a union is not wrapped."
)
_AS_AVRO = "The value is a zero byte, the schema's id in four bytes, and the record in Avro's binary form."
_ID_IN_PAYLOAD = {
    "schemaIdLocation": "payload",
    "schemaIdPayloadEncoding": "confluent",
    "schemaLookupStrategy": "RecordNameStrategy",
}
_HEADERS = {
    "type": "object",
    "required": [each.name for each in headers.HEADERS if each.when == "always"],
    "properties": {each.name: {"type": "string", "description": each.text, **each.form} for each in headers.HEADERS},
}


def document(catalogue: Catalogue) -> Part:
    """Return the document; the same catalogue has the same document."""
    # Changes never break readers, so the major version stays; the minor version counts the versions of all types.
    version = f"1.{sum(each.version for each in catalogue.types.values())}.0"
    return {
        "asyncapi": "3.0.0",
        "info": {"title": catalogue.title, "version": version, "description": catalogue.text},
        "defaultContentType": AVRO,
        "channels": {name: _channel(catalogue, topic) for name, topic in catalogue.topics.items()},
        "operations": {
            f"send.{name}": _operation(catalogue, topic)
            for name, topic in catalogue.topics.items()
            if catalogue.of_topic(name)
        },
        "components": {
            "messages": {name: _message(catalogue, kind) for name, kind in catalogue.types.items()},
            "schemas": {"headers": _HEADERS},
        },
    }


def _channel(catalogue: Catalogue, topic: CatalogueTopic) -> Part:
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
        **_ours(topic, "owner", "order", "duplicates", "replay", "deprecated"),
    }


def _operation(catalogue: Catalogue, topic: CatalogueTopic) -> Part:
    return {
        "action": "send",
        "title": f"{topic.owner} sends to {topic.name}",
        "channel": {"$ref": f"#/channels/{topic.name}"},
        "messages": [
            {"$ref": f"#/channels/{topic.name}/messages/{each.name}"} for each in catalogue.of_topic(topic.name)
        ],
        **_ours(topic, "owner"),
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
        "payload": {"schemaFormat": _AVRO_SCHEMA, "schema": _for_asyncapi(json.loads(kind.text))},
        "examples": [{"name": f"sample-{n}", "payload": each} for n, each in enumerate(kind.json_samples, 1)],
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": catalogue.topics[kind.topic].key},
                **(_ID_IN_PAYLOAD if kind.content_type == AVRO else {}),
                "bindingVersion": _BINDING,
            }
        },
        **_ours(kind, "kind", "version", "pii"),
        **({"deprecated": True} if kind.deprecated else {}),
        **_ours(kind, "deprecated"),
    }


def _ours(of: CatalogueTopic | Type, *names: str) -> Part:
    """Return what the catalogue says and AsyncAPI has no name for."""
    return {f"x-ferryman-{name}": said for name in names if (said := getattr(of, name))}


def _for_asyncapi(node: avro.Node) -> avro.Node:
    """Return the schema in AsyncAPI's form: names have a separate namespace, and no type is wrapped in a type."""
    if isinstance(node, list):
        return [_for_asyncapi(each) for each in node]
    if isinstance(node, str):
        return node
    if isinstance(node["type"], dict | list):
        return _for_asyncapi(node["type"])
    made = dict(node)
    for inner in {"items", "values"} & node.keys():
        made[inner] = _for_asyncapi(node[inner])
    if "." in made.get("name", ""):
        made["namespace"], _, made["name"] = made["name"].rpartition(".")
    if "fields" in made:
        made["fields"] = [{**field, "type": _for_asyncapi(field["type"])} for field in made["fields"]]
    return made
