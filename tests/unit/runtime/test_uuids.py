"""Derived UUIDs are those of the standard library."""

import copy
from uuid import UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st

from ferryman.runtime.uuids import derived


@given(st.uuids(), st.text(st.characters(codec="utf-8")))
def test_derived_ids_are_of_version_five(namespace: UUID, name: str) -> None:
    """They are equal, hashed and copied like the library's."""
    made, expected = derived(namespace, name), uuid5(namespace, name)
    assert (made, hash(made), str(made), made.is_safe) == (expected, hash(expected), str(expected), expected.is_safe)
    assert copy.deepcopy(made) == made
    assert made.version == 5
