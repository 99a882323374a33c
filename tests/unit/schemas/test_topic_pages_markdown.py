"""Markdown shows the words of other people as they were written."""

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ferryman.schemas.topic_pages import code, table, text
from support.hostile import WORDS

RENDERER = MarkdownIt().enable(["table", "strikethrough"])
MEANINGFUL = st.text(st.sampled_from("ab1 |`*_[]()<>\\&;#~!-+=.$"), max_size=20)
SPOKEN = st.one_of(MEANINGFUL, st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20))


def shown(html: str) -> str:
    """Return what a person sees: no elements, entities decoded."""
    return unescape(re.sub(r"</?(p|code|td|tr|table|tbody|thead|th)>", "", html)).strip()


@given(SPOKEN)
def test_a_paragraph_shows_what_was_written(words: str) -> None:
    assert shown(RENDERER.render(text(words))) == " ".join(words.split())


@given(SPOKEN.filter(str.strip))
def test_a_heading_shows_what_was_written(words: str) -> None:
    html = RENDERER.render(f"# {text(words)}")
    assert shown(re.sub("</?h1>", "", html)) == " ".join(words.split())


@given(SPOKEN)
def test_a_cell_shows_what_was_written_and_is_one(words: str) -> None:
    html = RENDERER.render(table(("a", "b"), [("x", text(words))]))
    assert html.count("<td>") == 2
    assert shown(html.rpartition("<td>")[2]) == " ".join(words.split())


@given(SPOKEN.map(lambda words: f"x{' '.join(words.split())}y"))
def test_a_code_span_in_a_cell_shows_what_was_written(words: str) -> None:
    html = RENDERER.render(table(("a",), [(code(words),)]))
    assert shown(html.rpartition("<td>")[2]) == words


@pytest.mark.parametrize(
    "words", ["1. first", "12) second", "- item", "+ item", "# head", "> quote", "===", "---", "```"]
)
def test_text_that_looks_like_a_block_does_not_begin_one(words: str) -> None:
    assert RENDERER.render(text(words)).startswith("<p>")


def test_markup_in_the_text_creates_no_elements() -> None:
    assert re.findall(r"<(\w+)", RENDERER.render(text(WORDS))) == ["p"]


def test_words_without_markup_are_left_as_they_are() -> None:
    assert text("The payment's id (request_id), 5 > 4.") == "The payment's id (request_id), 5 \\> 4."
