"""What a value has to be to fit a schema, exactly; and how it is said in JSON.

fastavro alone would take 1.5 for a long and write 1, take any text for a uuid, and a time without a zone. Money is
lost so. Here nothing is bent: a value fits or a `Misfit` names the field, and what it is instead. The value itself is
never in an error's words but where it is asked for.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ferryman.schemas import avro
from ferryman.schemas.leaves import FROM_JSON, OF_A_SCHEMA, TO_JSON, Leaf, Misfit, is_uuid

__all__ = ["Misfit", "is_uuid", "read", "write"]


def write(schema: avro.Schema, value: Any) -> Any:
    """What a Python value is in JSON; raises `Misfit`. A field that was left out has its default."""
    return _Walk(avro.names(schema), TO_JSON).go(schema, value, "")


def read(schema: avro.Schema, value: Any, *, of_another_version: bool = False) -> Any:
    """The Python value that JSON says; raises `Misfit`. A field that was left out has its default.

    What another version wrote is read as Avro would resolve it: a field that ours has not is forgotten, and a symbol
    that ours has not is its enum's default.
    """
    return _Walk(avro.names(schema), FROM_JSON, lenient=of_another_version).go(schema, value, "")


class _Walk:
    """Through a value and its schema together, with a leaf's form given by a table."""

    def __init__(self, known: dict[str, avro.Schema], leaves: Mapping[str, Leaf], *, lenient: bool = False) -> None:
        self._known = known
        self._leaves = leaves
        self._lenient = lenient

    def go(self, node: avro.Node, value: Any, path: str) -> Any:
        node = avro.resolved(node, self._known)
        if isinstance(node, list):
            return self._union(node, value, path)
        definition = node if isinstance(node, dict) else {"type": node}
        kind = definition["type"]
        if kind == "record":
            return self._record(definition, value, path)
        if kind == "array":
            return self._array(definition, value, path)
        if kind == "map":
            return self._map(definition, value, path)
        if kind == "enum" and self._lenient and value not in definition["symbols"]:
            value = definition.get("default", value)
        leaf = self._leaves.get(definition.get("logicalType", ""), self._leaves[kind])
        return leaf(value, path, definition)

    def _record(self, definition: avro.Schema, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(path, f"a mapping ({definition['name']})", value)
        made = {}
        for field in definition["fields"]:
            name, below = field["name"], f"{path}.{field['name']}" if path else field["name"]
            if name in value:
                made[name] = self.go(field["type"], value[name], below)
            elif "default" in field:
                made[name] = self._default(field, below)
            else:
                raise Misfit(below, "is missing")
        for name in () if self._lenient else value:
            if name not in made:
                raise Misfit(f"{path}.{name}" if path else str(name), "is not in the schema")
        return made

    def _default(self, field: Mapping[str, Any], path: str) -> Any:
        """In a schema a default has a form of its own: bytes are text, times are numbers."""
        value = _Walk(self._known, OF_A_SCHEMA).go(field["type"], field["default"], path)
        return value if self._leaves is FROM_JSON else self.go(field["type"], value, path)

    def _union(self, branches: Sequence[avro.Node], value: Any, path: str) -> Any:
        others = [branch for branch in branches if avro.kind(branch) != "null"]
        if value is None and len(others) < len(branches):
            return None
        if len(others) == 1:  # what is wrong in it says more than that the union does not fit
            return self.go(others[0], value, path)
        for branch in others:
            try:
                return self.go(branch, value, path)
            except Misfit:
                continue
        raise Misfit(path, " or ".join(avro.kind(branch) for branch in branches), value)

    def _array(self, definition: avro.Schema, value: Any, path: str) -> list[Any]:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise Misfit(path, "a list", value)
        return [self.go(definition["items"], each, f"{path}[{n}]") for n, each in enumerate(value)]

    def _map(self, definition: avro.Schema, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(path, "a mapping", value)
        for name in value:
            if not isinstance(name, str):
                raise Misfit(path, "a mapping with text for its keys", name)
        return {name: self.go(definition["values"], each, f"{path}[{name!r}]") for name, each in value.items()}
