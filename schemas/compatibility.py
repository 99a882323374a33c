"""Whether what one schema wrote, another reads: Avro's rules of resolution, and three of our own that are stricter.

Avro lets a reader without a symbol fall back to the enum's default, and one without a field, or with another name for
it, forget it: both change what released bytes mean. Here a symbol and a field that were released stay. Text and bytes,
which Avro reads as one another, are two things.
"""

from collections.abc import Iterator

from ferryman.schemas import avro

# A value of the first may be read as one of the others.
_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
}

_ALIKE = {"string": "bytes", "bytes": "string"}
_INNER = {"array": "items", "map": "values"}


def both_ways(new: avro.Schema, old: avro.Schema) -> list[str]:
    """Why `new` may not stand beside `old`: what it could not read of it, what could not be read of itself."""
    found = [
        *(f"it cannot read what is released: {each}" for each in unreadable(writer=old, reader=new)),
        *(f"released readers cannot read it: {each}" for each in unreadable(writer=new, reader=old)),
        *_forgotten(new, old),
    ]
    return list(dict.fromkeys(found))


def unreadable(*, writer: avro.Schema, reader: avro.Schema) -> list[str]:
    """By Avro's rules, what of the writer the reader cannot read."""
    return list(_Resolution(avro.names(writer), avro.names(reader)).problems(writer, reader, ""))


class _Resolution:
    """One schema's nodes against another's; a pair that is being looked at is not looked at again."""

    def __init__(self, writers: dict[str, avro.Schema], readers: dict[str, avro.Schema]) -> None:
        self._writers = writers
        self._readers = readers
        self._seen: set[tuple[str, str]] = set()

    def problems(self, writer: avro.Node, reader: avro.Node, path: str) -> Iterator[str]:
        writer, reader = avro.resolved(writer, self._writers), avro.resolved(reader, self._readers)
        if isinstance(writer, list):
            for branch in writer:
                yield from self.problems(branch, reader, path)
        elif isinstance(reader, list):
            yield from self._branches(writer, reader, path)
        else:
            yield from self._definitions(writer, reader, path)

    def _branches(self, writer: avro.Node, reader: list[avro.Node], path: str) -> Iterator[str]:
        """One must fit; and none may stand before it that Avro, to which text and bytes are one, would take instead."""
        fits = next((n for n, branch in enumerate(reader) if not list(self._apart(writer, branch, path))), None)
        if fits is None:
            yield f"{_at(path)} may be {avro.kind(writer)}, which the reader does not expect"
            return
        other = _ALIKE.get(_definition(writer)["type"])
        if any(_definition(avro.resolved(branch, self._readers))["type"] == other for branch in reader[:fits]):
            yield f"{_at(path)} may be {avro.kind(writer)}, which the reader takes for {other}: that stands before it"

    def _apart(self, writer: avro.Node, reader: avro.Node, path: str) -> Iterator[str]:
        """Of one branch of a union: what is seen in it does not count for the others."""
        seen, self._seen = self._seen, set(self._seen)
        yield from self.problems(writer, reader, path)
        self._seen = seen

    def _definitions(self, writer: avro.Node, reader: avro.Node, path: str) -> Iterator[str]:
        wrote, reads = _definition(writer), _definition(reader)
        kind = wrote["type"]
        if kind != reads["type"]:
            if reads["type"] not in _PROMOTIONS.get(kind, ()):
                yield f"{_at(path)} was {kind} and is {reads['type']}"
        elif wrote.get("logicalType") != reads.get("logicalType"):
            yield f"{_at(path)} was {wrote.get('logicalType', kind)} and is {reads.get('logicalType', kind)}"
        elif kind == "record":
            yield from self._records(wrote, reads, path)
        elif kind == "enum":
            yield from self._enums(wrote, reads, path)
        elif kind in _INNER:
            yield from self.problems(wrote[_INNER[kind]], reads[_INNER[kind]], f"{path}[]")
        else:
            yield from _sizes(wrote, reads, path)

    def _records(self, writer: avro.Schema, reader: avro.Schema, path: str) -> Iterator[str]:
        if (writer["name"], reader["name"]) in self._seen:
            return
        self._seen.add((writer["name"], reader["name"]))
        yield from _names(writer, reader, path)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            below = f"{path}.{field['name']}" if path else field["name"]
            match = next(
                (written[name] for name in (field["name"], *field.get("aliases", ())) if name in written), None
            )
            if match is not None:
                yield from self.problems(match["type"], field["type"], below)
            elif "default" not in field:
                yield f"field {below} is not written, and has no default"

    @staticmethod
    def _enums(writer: avro.Schema, reader: avro.Schema, path: str) -> Iterator[str]:
        yield from _names(writer, reader, path)
        missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
        if missing and "default" not in reader:
            yield f"{_at(path)} may be {', '.join(missing)}, which the reader does not know"


def _forgotten(new: avro.Schema, old: avro.Schema) -> Iterator[str]:
    """Fields and symbols that were released and are not there any more, or are called otherwise."""
    now = dict(avro.walk(new))
    for path, was in avro.walk(old):
        here = now.get(path)
        if here is None:
            continue  # the field above it is gone or is of another type, and is told of
        fields = {field["name"] for field in here.get("fields", ())}
        for field in was.get("fields", ()):
            if field["name"] not in fields:
                yield f"field {_inner(path, field['name'])} was released and is gone: deprecate it in its doc instead"
        for symbol in was.get("symbols", ()):
            if symbol not in here.get("symbols", ()):
                yield f"symbol {symbol} of {_at(_inner(path))} was released and is gone: what it said would be lost"


def _sizes(writer: avro.Schema, reader: avro.Schema, path: str) -> Iterator[str]:
    if writer["type"] == "fixed":
        yield from _names(writer, reader, path)
    for name in ("size", "precision", "scale"):
        if writer.get(name) != reader.get(name):
            yield f"{_at(path)} had {name} {writer.get(name)} and has {reader.get(name)}"


def _names(writer: avro.Schema, reader: avro.Schema, path: str) -> Iterator[str]:
    if writer["name"] not in (reader["name"], *reader.get("aliases", ())):
        yield f"{_at(path)} was {writer['name']} and is {reader['name']}"


def _definition(node: avro.Node) -> avro.Schema:
    assert not isinstance(node, list)
    return node if isinstance(node, dict) else {"type": node}


def _at(path: str) -> str:
    return f"field {path}" if path else "the record"


def _inner(path: str, *below: str) -> str:
    """A path without the record's name, which is the message's."""
    return ".".join([*path.split(".")[1:], *below])
