"""The codec beside fastavro alone, which checks less: both write and read the samples of our own catalogue."""

import time
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

from fastavro import schemaless_reader, schemaless_writer

from ferryman.bench import goals
from ferryman.bench.figures import Figure
from ferryman.bench.parts import Bench
from ferryman.schemas import OURS, natural
from ferryman.schemas.catalogue import Type, load
from ferryman.schemas.codec import Codec
from ferryman.schemas.registry.catalogued import CatalogueRegistry

_ROUNDS = 41
_AT_ONCE = 200


def speed(bench: Bench) -> Iterator[Figure]:
    """To bytes and back, by turns in short slices, so that both meet the same machine."""
    catalogue = load(OURS)
    registry = CatalogueRegistry(catalogue)
    rounds = 3 if bench.scale.quick else _ROUNDS
    taken = {kind.name: _of_type(Codec(kind, registry), kind, rounds) for kind in catalogue.types.values()}
    ratios = {name: bare / ours for name, (bare, ours) in taken.items()}
    ratio = sum(bare for bare, _ in taken.values()) / sum(ours for _, ours in taken.values())
    least = min(ratios, key=lambda name: ratios[name])
    bench.say(f"of fastavro's rate: {ratio:.3f}; the least, {least}, {ratios[least]:.3f}")
    yield goals.CODEC.figure(
        ratio, by_type=ratios, bare_us={name: 1e6 * bare for name, (bare, _) in taken.items()},
        codec_us={name: 1e6 * ours for name, (_, ours) in taken.items()},
    )  # fmt: skip


def _of_type(codec: Codec, kind: Type, rounds: int) -> tuple[float, float]:
    """Seconds of one round trip: fastavro's, ours; of the least disturbed slice of each."""
    schema, data = kind.schema, natural.read(kind.schema, kind.samples[0])

    def bare() -> Any:
        stream = BytesIO()
        schemaless_writer(stream, schema, data)
        return schemaless_reader(BytesIO(stream.getvalue()), schema)

    def ours() -> Any:
        return codec.decode(codec.encode(data))

    assert bare() == ours() == data
    pairs = [(_seconds(bare), _seconds(ours)) for _ in range(rounds)]
    return min(first for first, _ in pairs), min(second for _, second in pairs)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    for _ in range(_AT_ONCE):
        call()
    return (time.perf_counter() - began) / _AT_ONCE
