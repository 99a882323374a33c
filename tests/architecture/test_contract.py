"""Our own catalogue is compatible with its released versions and uses the same types for the same things."""

from collections.abc import Iterator
from typing import Any

import pytest

from ferryman.schemas import OURS, avro, releases
from ferryman.schemas.catalogue import Type, load

CATALOGUE = load(OURS)
UUIDS = ("request_id", "wallet_id", "entry_id")
MONEY = ("amount", "balance", "change")


def fields(kind: Type) -> Iterator[dict[str, Any]]:
    for _, definition in avro.walk(kind.schema):
        yield from definition.get("fields", ())


def test_no_type_breaks_a_released_version() -> None:
    """FULL_TRANSITIVE holds against every released version, by the rules and by decoding its samples."""
    assert [str(each) for each in releases.gate(CATALOGUE)] == []


@pytest.mark.parametrize("name", CATALOGUE.types)
def test_every_type_is_released(name: str) -> None:
    assert releases.of(CATALOGUE, name)[-1].version == CATALOGUE.types[name].version


@pytest.mark.parametrize("name", CATALOGUE.types)
def test_money_ids_and_times_have_the_same_types_everywhere(name: str) -> None:
    kind = CATALOGUE.types[name]
    kinds = {field["name"]: field["type"] for field in fields(kind)}
    assert not {"float", "double"} & set(map(str, kinds.values()))
    for each, said in kinds.items():
        if each in MONEY:
            assert said == "long"
            assert kinds["currency"] == "string"
        if each in UUIDS:
            assert said["logicalType"] == "uuid"
        if each.endswith("_at"):
            assert said["logicalType"] == "timestamp-micros"


@pytest.mark.parametrize("name", CATALOGUE.types)
def test_every_symbol_has_a_sample_or_is_reserved(name: str) -> None:
    kind = CATALOGUE.types[name]
    for field in fields(kind):
        symbols = field["type"].get("symbols", ()) if isinstance(field["type"], dict) else ()
        shown = {sample.get(field["name"]) for sample in kind.samples}
        assert set(symbols) - shown <= {"UNKNOWN", "REFUND", "CANCEL"}
