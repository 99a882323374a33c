"""A page for each topic: all that a reader of another team needs, true, and whatever the catalogue's words are."""

import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from ferryman.schemas import OURS, avro, docs, natural, pages, releases, words
from ferryman.schemas.catalogue import Catalogue, load
from ferryman.schemas.codec import Codec
from ferryman.schemas.registry.catalogued import CatalogueRegistry
from ferryman.schemas.registry.numbers import stable
from support import hostile
from support.catalogues import field, record

OUR_CATALOGUE = load(OURS)


@pytest.fixture
def shop(tmp_path: Path) -> Catalogue:
    return hostile.made(tmp_path / "shop")


def html(markdown: str) -> str:
    return str(MarkdownIt().enable("table").render(markdown))


def fields(shop: Catalogue) -> dict[str, words.Row]:
    return {row.path: row for row in words.rows(shop.types["order.placed"].schema)}


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    return [inside for of, inside in found if of == language]


def test_every_field_has_a_row_those_inside_records_too(shop: Catalogue) -> None:
    assert list(fields(shop)) == [
        "order", "note", "kind", "lines", "lines[].sku", "lines[].price", "first", "labels", "paid",
        "paid(Card).number", "paid(Cash).notes", "digest", "placed", "due", "waited", "weight",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("order", "uuid"),
        ("kind", "one of `UNKNOWN` (the default), `TRADE`"),
        ("lines", "list of `Line`, its fields below"),
        ("lines[].price", "decimal number, 9 digits, 2 of them behind the point (`decimal`)"),
        ("first", "`Line`, as above, or null"),
        ("labels", "map from text to (whole number, 64 bits, or null)"),
        ("paid", "`Card`, its fields below or `Cash`, its fields below"),
        ("paid(Cash).notes", "list of whole number, 32 bits"),
        ("digest", "4 bytes"),
        ("placed", "time, to the millisecond (`timestamp-millis`)"),
        ("due", "date"),
        ("waited", "whole number, 32 bits (`time-millis`)"),
        ("weight", "number, 64 bits, or null"),
    ],
)
def test_a_type_is_said_in_words(path: str, said: str, shop: Catalogue) -> None:
    assert fields(shop)[path].words == said


def test_a_default_is_said_as_json_and_none_is_not_null(shop: Catalogue) -> None:
    assert fields(shop)["first"].default == "null"
    assert fields(shop)["note"].default == '"`x` | `y`"'
    assert fields(shop)["order"].default is None


def test_the_words_of_a_type_that_a_field_defines_come_behind_its_own(shop: Catalogue) -> None:
    assert fields(shop)["kind"].doc == "The kind. Which."


def test_a_record_that_holds_itself_has_an_end() -> None:
    kids = field("kids", {"type": "array", "items": "shop.Tree"})
    rows = words.rows(avro.parse(json.dumps(record(kids, name="shop.Tree"))))
    assert [(row.path, row.words) for row in rows] == [("kids", "list of `Tree`, as above")]


def test_the_words_of_the_catalogue_show_as_they_are_and_make_no_elements(shop: Catalogue) -> None:
    page = html(pages.page(shop, "orders"))
    assert "&lt;script&gt;" in page
    assert not re.search(r'<(script|em>|s>|a href="h)', page)
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    assert {row.count("<td>") for row in rows} <= {0, 2, 3, 4}
    assert f"<td>{'a|b `c`'}" in page


def test_a_page_says_what_is_promised(shop: Catalogue) -> None:
    page = pages.page(shop, "orders")
    assert "None is promised, not even for one key." in page
    assert "| kept for | 1.5 hours |" in page
    assert "interval '9 days'" in page
    assert "FULL_TRANSITIVE" in page
    assert "**personal data**" in page
    assert "**secrets**" in page


def test_a_page_names_every_header(shop: Catalogue) -> None:
    page = pages.page(shop, "orders")
    for name in (
        "ce_specversion",
        "ce_id",
        "ce_source",
        "ce_type",
        "ce_time",
        "content-type",
        "traceparent",
        "x-replay",
    ):
        assert f"| `{name}` |" in page


def test_a_topic_that_is_deprecated_says_so_and_needs_no_types(shop: Catalogue) -> None:
    assert "> **Deprecated.** See orders." in pages.page(shop, "old_orders")
    assert "None is written here any more." in pages.page(shop, "old_orders")
    assert "| kept for | 3 days |" in pages.page(shop, "old_orders")
    assert "**Deprecated.** What the shop said." in pages.index(shop)
    assert "> **Deprecated.** Nobody cancels." in pages.page(shop, "orders")


@pytest.mark.parametrize("name", OUR_CATALOGUE.types)
def test_the_bytes_on_a_page_are_read_as_the_example_beside_them(name: str) -> None:
    kind = OUR_CATALOGUE.types[name]
    section = pages.page(OUR_CATALOGUE, kind.topic).partition(f"### `{name}`\n")[2]
    written = bytes.fromhex(blocks(section, "")[0])
    codec = Codec(kind, CatalogueRegistry(OUR_CATALOGUE))
    assert codec.encode(codec.decode(written)) == written
    assert natural.write(kind.schema, codec.decode(written)) == json.loads(blocks(section, "json")[0])
    assert int.from_bytes(written[1:5]) == stable(kind.text)
    assert f"is {stable(kind.text)}." in section
    assert f"a value of {len(written)} bytes" in section


def test_a_type_in_json_has_no_head_and_no_hex(shop: Catalogue) -> None:
    section = pages.page(shop, "orders").partition("### `order.cancelled`")[2]
    assert blocks(section, "") == []
    assert "| 1 | not yet: it may change |  | `avro/order.cancelled.avsc` |" in section
    value = json.dumps(shop.types["order.cancelled"].samples[0], ensure_ascii=False, separators=(",", ":"))
    assert f"That, without spaces, is the value: {len(value.encode())} bytes." in section


def test_a_page_lists_the_versions_that_were_released(shop: Catalogue) -> None:
    assert "| 1 | not yet: it may change |" in pages.page(shop, "orders")
    releases.release(shop, shop.types["order.placed"])
    page = pages.page(shop, "orders")
    number = stable(shop.types["order.placed"].text)
    assert f"| 1 | yes | {number} | `released/order.placed/1.avsc` |" in page
    assert page.count("not yet") == 1


def test_what_was_written_is_not_stale(shop: Catalogue, tmp_path: Path) -> None:
    out = tmp_path / "docs" / "topics"
    assert docs.stale(shop, out) == docs.write(shop, out)
    assert docs.stale(shop, out) == []
    assert {file.name for file in out.iterdir()} == {"README.md", "orders.md", "old_orders.md", "asyncapi.json"}


def test_what_was_changed_is_missing_or_is_left_over_is_stale(shop: Catalogue, tmp_path: Path) -> None:
    out = tmp_path / "docs"
    docs.write(shop, out)
    (out / "orders.md").write_text("by hand")
    (out / "asyncapi.json").unlink()
    (out / "gone.md").write_text(f"{pages.GENERATED}\n\n# gone\n")
    (out / "ours.md").write_text("# Written by people\n")
    assert {file.name for file in docs.stale(shop, out)} == {"orders.md", "asyncapi.json", "gone.md"}
    docs.write(shop, out)
    assert docs.stale(shop, out) == []
    assert (out / "ours.md").exists()
    assert not (out / "gone.md").exists()


def test_pages_link_to_the_schemas_where_both_move_together(shop: Catalogue, tmp_path: Path) -> None:
    out = tmp_path / "docs" / "topics"
    docs.write(shop, out)
    links = re.findall(r"\]\(([^)]+\.avsc)\)", (out / "orders.md").read_text())
    assert len(links) == 2
    for link in links:
        assert (out / link).exists()


def test_pages_that_stand_elsewhere_name_no_place_of_one_machine(tmp_path: Path) -> None:
    inner = hostile.made(tmp_path / "deep" / "shop")
    docs.write(inner, tmp_path / "docs")
    page = (tmp_path / "docs" / "orders.md").read_text()
    assert "| `avro/order.placed.avsc` |" in page
    assert "../" not in page
