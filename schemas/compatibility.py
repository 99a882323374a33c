"""The compatibility of two schemas: Avro's rules of resolution, and stricter ones of our own (decision 0012).

Avro lets a reader without a symbol fall back to the enum's default, and a reader without a field, or with another name
for it, ignore it: both change what released bytes mean. Here a released symbol and a released field stay. Text and
bytes, which Avro reads as one another, are different, and so are logical types, which Avro does not compare.
"""

from collections.abc import Iterator

from ferryman.schemas import avro

# A value of the first type can be read as one of the others.
_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
}

_ALIKE = {"string": "bytes", "bytes": "string"}
_INNER = {"array": "items", "map": "values"}


def both_ways(new: avro.Schema, old: avro.Schema) -> list[str]:
    """Return why `new` and `old` may not be used side by side: each must read the other, and nothing may be dropped."""
    found = [
        *(f"it cannot read what is released: {each}" for each in unreadable(writer=old, reader=new)),
        *(f"released readers cannot read it: {each}" for each in unreadable(writer=new, reader=old)),
        *_dropped(new, old),
    ]
    return list(dict.fromkeys(found))


def unreadable(*, writer: avro.Schema, reader: avro.Schema) -> list[str]:
    """Return what the reader cannot read of the writer's data."""
    return list(_Resolution(avro.names(writer), avro.names(reader)).problems(writer, reader, ""))


class _Resolution:
    """A comparison of a writer's schema with a reader's; a pair of records that is in progress is not entered again."""

    def __init__(self, writers: dict[str, avro.Schema], readers: dict[str, avro.Schema]) -> None:
        self._writers = writers
        self._readers = readers
        self._seen: set[tuple[str, str]] = set()

    def problems(self, writer: avro.Node, reader: avro.Node, path: str) -> Iterator[str]:
        wrote, reads = avro.resolved(writer, self._writers), avro.resolved(reader, self._readers)
        if isinstance(wrote, list):
            for branch in wrote:
                yield from self.problems(branch, reads, path)
        elif isinstance(reads, list):
            yield from self._branches(wrote, reads, path)
        else:
            yield from self._definitions(wrote, reads, path)

    def _branches(self, writer: avro.Schema, reader: list[avro.Node], path: str) -> Iterator[str]:
        """Require a branch that fits, and no earlier one that Avro, which takes text for bytes, would choose."""
        kind = writer["type"]
        fits = next((n for n, branch in enumerate(reader) if not list(self._apart(writer, branch, path))), None)
        if fits is None:
            yield f"{_at(path)} may be {kind}, which the reader does not expect"
            return
        other = _ALIKE.get(kind)
        if other and other in [avro.kind(avro.resolved(branch, self._readers)) for branch in reader[:fits]]:
            yield f"{_at(path)} may be {kind}, which the reader takes for {other}: it lists {other} first"

    def _apart(self, writer: avro.Node, reader: avro.Node, path: str) -> Iterator[str]:
        """Compare one branch of a union; the records entered in it do not count for the other branches."""
        seen, self._seen = self._seen, set(self._seen)
        yield from self.problems(writer, reader, path)
        self._seen = seen

    def _definitions(self, wrote: avro.Schema, reads: avro.Schema, path: str) -> Iterator[str]:
        kind = wrote["type"]
        if kind != reads["type"]:
            if reads["type"] not in _PROMOTIONS.get(kind, ()):
                yield f"{_at(path)} was {kind} and is {reads['type']}"
        elif wrote.get("logicalType") != reads.get("logicalType"):
            yield f"{_at(path)} was {wrote.get('logicalType', kind)} and is {reads.get('logicalType', kind)}"
        elif kind == "record":
            yield from self._records(wrote, reads, path)
        elif kind in _INNER:
            yield from self.problems(wrote[_INNER[kind]], reads[_INNER[kind]], f"{path}[]")
        else:
            yield from _details(wrote, reads, path)

    def _records(self, writer: avro.Schema, reader: avro.Schema, path: str) -> Iterator[str]:
        if (writer["name"], reader["name"]) in self._seen:
            return
        self._seen.add((writer["name"], reader["name"]))
        yield from _details(writer, reader, path)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            below = avro.below(path, field["name"])
            match = [written[name] for name in (field["name"], *field.get("aliases", ())) if name in written]
            if match:
                yield from self.problems(match[0]["type"], field["type"], below)
            elif "default" not in field:
                yield f"field {below} is not written, and has no default"


def _details(writer: avro.Schema, reader: avro.Schema, path: str) -> Iterator[str]:
    """Compare the names, sizes and symbols of two definitions of the same kind."""
    if "name" in writer and writer["name"] not in (reader["name"], *reader.get("aliases", ())):
        yield f"{_at(path)} was {writer['name']} and is {reader['name']}"
    for name in ("size", "precision", "scale"):
        if writer.get(name) != reader.get(name):
            yield f"{_at(path)} had {name} {writer.get(name)} and has {reader.get(name)}"
    missing = [symbol for symbol in writer.get("symbols", ()) if symbol not in reader["symbols"]]
    if missing and "default" not in reader:
        yield f"{_at(path)} may be {', '.join(missing)}, which the reader does not know"


def _dropped(new: avro.Schema, old: avro.Schema) -> Iterator[str]:
    """Yield the released fields and symbols that are gone or renamed."""
    now = dict(avro.walk(new))
    for path, was in avro.walk(old):
        here = now.get(path)
        if here is None:
            continue  # the field above it is gone or has another type, which is reported
        fields = {field["name"] for field in here.get("fields", ())}
        for field in was.get("fields", ()):
            if field["name"] not in fields:
                gone = f"field {avro.below(path, field['name'])}"
                yield f"{gone} was released and is gone: deprecate it in its doc instead"
        for symbol in was.get("symbols", ()):
            if symbol not in here.get("symbols", ()):
                yield f"symbol {symbol} of {_at(path)} was released and is gone: its meaning would be lost"


def _at(path: str) -> str:
    return f"field {path}" if path else "the record"
