"""Columns are encoded like psycopg's lists, with NULLs among them."""

from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer

from ferryman.runtime.columns import Bigints, Payloads, Texts, Uuids

WORDS = st.one_of(st.text(), st.sampled_from(["", "payments.commands", "wallet.results", "größer"]))


def sent(column: Any) -> tuple[int, bytes]:
    dumper = Transformer().get_dumper(column, PyFormat.BINARY)
    return dumper.oid, bytes(dumper.dump(column) or b"")


@given(st.lists(WORDS, min_size=1, max_size=30))
def test_texts_are_sent_as_lists_are(texts: list[str]) -> None:
    assert sent(Texts([*texts, None])) == sent([*texts, None])


@given(st.lists(st.binary(), min_size=1, max_size=30))
def test_payloads_are_sent_as_lists_are(payloads: list[bytes]) -> None:
    assert sent(Payloads([*payloads, None])) == sent([*payloads, None])


@given(st.lists(st.uuids(), min_size=1, max_size=30))
def test_uuids_are_sent_as_lists_are(uuids: list[UUID]) -> None:
    assert sent(Uuids([*uuids, None])) == sent([*uuids, None])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_bigints_are_sent_as_lists_are(numbers: list[int]) -> None:
    large = [*numbers, 2**40]  # psycopg sends smaller ones as integer[]
    assert sent(Bigints(large))[0] == sent(large)[0]
    assert sent(Bigints(large))[1][20:] == sent(large)[1][20:]  # behind the head, which says that NULLs may follow


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_number_that_is_not_a_bigint_is_an_error_of_its_data(number: int) -> None:
    with pytest.raises(psycopg.DataError, match="not every one of these numbers is a bigint"):
        sent(Bigints([1, number]))
