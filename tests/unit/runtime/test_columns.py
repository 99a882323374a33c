"""Columns are encoded like psycopg's lists, with NULLs among them."""

from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer

from ferryman.runtime.columns import Payloads, Texts, Uuids

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
