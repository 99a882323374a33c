"""A post with a value of another type is refused where the user makes it."""

from typing import Any

import pytest

from ferryman import Post


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": None}, "url of a Post must be text, not None"),
        ({"body": "{}"}, "body of a Post must be bytes: encode it"),
        ({"id": 7}, "id of a Post must be text"),
        ({"content_type": None}, "content_type of a Post must be text"),
        ({"headers": [("a", "b")]}, "headers of a Post must be a mapping"),
        ({"headers": {"a": 1}}, "headers of a Post must be a mapping of texts to texts"),
        ({"secrets": "whsec_eA=="}, "secrets of a Post must be a tuple"),
        ({"secrets": (b"x",)}, "secrets of a Post must be texts"),
        ({"bearer": b"x"}, "bearer of a Post must be text or None"),
    ],
)
def test_post_refuses_a_value_of_another_type(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Post(**{"url": "http://one/", "body": b"{}", **wrong})


def test_post_takes_what_its_fields_say() -> None:
    given = Post("http://one/", b"{}", "7", "text/plain", {"a": "b"}, ("s",), "t")
    assert (given.headers, given.secrets, given.bearer) == ({"a": "b"}, ("s",), "t")
