"""UUIDs are the library's own, however they are made."""

import copy
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.runtime.uuids import derived, parsed

_CHARACTERS = st.text("0123456789abcdefABCDEF-_+ x{}٣", max_size=40)


@given(st.uuids())
def test_what_is_written_is_read_back(identity: UUID) -> None:
    """Equal, hashed and copied alike, in small and capital letters."""
    for text in (str(identity), str(identity).upper()):
        made = parsed(text)
        assert (made, hash(made), str(made), made.is_safe) == (
            identity,
            hash(identity),
            str(identity),
            identity.is_safe,
        )
        assert copy.deepcopy(made) == identity


@given(_CHARACTERS | st.from_regex(r"[0-9a-f_+ ]{8}-[0-9a-f٣]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", fullmatch=True))
def test_whatever_the_library_refuses_is_refused(text: str) -> None:
    """And what it takes is taken, in every spelling."""
    try:
        expected = UUID(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"badly formed|invalid literal|UUID"):
            parsed(text)
    else:
        assert parsed(text) == expected


@given(st.uuids(), st.text(st.characters(codec="utf-8")))
def test_derived_ids_are_of_version_five(namespace: UUID, name: str) -> None:
    assert derived(namespace, name) == uuid5(namespace, name)
    assert derived(namespace, name).version == 5
