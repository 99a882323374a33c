"""A page for each topic: it says what a reader of another team needs, whatever words the catalogue has."""

import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from ferryman.schemas import OURS, avro, json_form, releases, topic_pages
from ferryman.schemas.catalogue import Catalogue, load
from ferryman.schemas.codec import Codec
from ferryman.schemas.registry import content_id
from ferryman.schemas.registry.local import CatalogueRegistry
from support import hostile
from support.catalogues import field, record

OUR_CATALOGUE = load(OURS)


@pytest.fixture
def shop(tmp_path: Path) -> Catalogue:
    return hostile.made(tmp_path / "shop")


def html(markdown: str) -> str:
    return str(MarkdownIt().enable("table").render(markdown))


def fields(shop: Catalogue) -> dict[str, topic_pages.FieldRow]:
    return {row.path: row for row in topic_pages.field_rows(shop.types["order.placed"].schema)}


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    return [inside for of, inside in found if of == language]


def test_every_field_has_a_row_also_inside_records(shop: Catalogue) -> None:
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
def test_a_type_is_described_in_words(path: str, said: str, shop: Catalogue) -> None:
    assert fields(shop)[path].words == said


def test_a_default_is_shown_as_json_and_no_default_is_not_null(shop: Catalogue) -> None:
    assert fields(shop)["first"].default == "null"
    assert fields(shop)["note"].default == '"`x` | `y`"'
    assert fields(shop)["order"].default is None


def test_the_doc_of_a_type_follows_the_doc_of_the_field_that_defines_it(shop: Catalogue) -> None:
    assert fields(shop)["kind"].doc == "The kind. Which."


def test_a_recursive_record_is_described_once() -> None:
    kids = field("kids", {"type": "array", "items": "shop.Tree"})
    rows = topic_pages.field_rows(avro.parse(json.dumps(record(kids, name="shop.Tree"))))
    assert [(row.path, row.words) for row in rows] == [("kids", "list of `Tree`, as above")]


def test_the_words_of_the_catalogue_show_as_they_are_and_create_no_elements(shop: Catalogue) -> None:
    page = html(topic_pages.page(shop, "orders"))
    assert "&lt;script&gt;" in page
    assert not re.search(r'<(script|em>|s>|a href="h)', page)
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    assert {row.count("<td>") for row in rows} <= {0, 2, 3, 4}
    assert f"<td>{'a|b `c`'}" in page


def test_a_page_lists_the_promises(shop: Catalogue) -> None:
    page = topic_pages.page(shop, "orders")
    assert "No order is promised, not even for one key." in page
    assert "| kept for | 1.5 hours |" in page
    assert "interval '9 days'" in page
    assert "FULL_TRANSITIVE" in page
    assert "**personal data**" in page
    assert "**secrets**" in page


def test_a_page_names_every_header(shop: Catalogue) -> None:
    page = topic_pages.page(shop, "orders")
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


def test_a_deprecated_topic_is_marked_and_needs_no_types(shop: Catalogue) -> None:
    assert "> **Deprecated.** See orders." in topic_pages.page(shop, "old_orders")
    assert "Nothing is written to this topic any more." in topic_pages.page(shop, "old_orders")
    assert "| kept for | 3 days |" in topic_pages.page(shop, "old_orders")
    assert "**Deprecated.** What the shop said." in topic_pages.index(shop)
    assert "> **Deprecated.** Nobody cancels." in topic_pages.page(shop, "orders")


@pytest.mark.parametrize("name", OUR_CATALOGUE.types)
def test_the_bytes_on_a_page_decode_to_the_example_beside_them(name: str) -> None:
    kind = OUR_CATALOGUE.types[name]
    section = topic_pages.page(OUR_CATALOGUE, kind.topic).partition(f"### `{name}`\n")[2]
    written = bytes.fromhex(blocks(section, "")[0])
    codec = Codec(kind, CatalogueRegistry(OUR_CATALOGUE))
    assert codec.encode(codec.decode(written)) == written
    assert json_form.to_json(kind.schema, codec.decode(written)) == json.loads(blocks(section, "json")[0])
    assert int.from_bytes(written[1:5]) == content_id(kind.text)
    assert f"is {content_id(kind.text)}." in section
    assert f"a value of {len(written)} bytes" in section


def test_a_type_in_json_has_no_head_and_no_hex(shop: Catalogue) -> None:
    section = topic_pages.page(shop, "orders").partition("### `order.cancelled`")[2]
    assert blocks(section, "") == []
    assert "| 1 | not yet: it may change |  | `avro/order.cancelled.avsc` |" in section
    value = json.dumps(shop.types["order.cancelled"].samples[0], ensure_ascii=False, separators=(",", ":"))
    assert f"That, without spaces, is the value: {len(value.encode())} bytes." in section


def test_a_page_lists_the_released_versions(shop: Catalogue) -> None:
    assert "| 1 | not yet: it may change |" in topic_pages.page(shop, "orders")
    releases.release(shop, shop.types["order.placed"])
    page = topic_pages.page(shop, "orders")
    number = content_id(shop.types["order.placed"].text)
    assert f"| 1 | yes | {number} | `released/order.placed/1.avsc` |" in page
    assert page.count("not yet") == 1


def test_written_files_are_not_stale(shop: Catalogue, tmp_path: Path) -> None:
    out = tmp_path / "docs" / "topics"
    assert topic_pages.stale(shop, out) == topic_pages.write(shop, out)
    assert topic_pages.stale(shop, out) == []
    assert {file.name for file in out.iterdir()} == {"README.md", "orders.md", "old_orders.md", "asyncapi.json"}


def test_changed_missing_and_left_over_files_are_stale(shop: Catalogue, tmp_path: Path) -> None:
    out = tmp_path / "docs"
    topic_pages.write(shop, out)
    (out / "orders.md").write_text("by hand")
    (out / "asyncapi.json").unlink()
    (out / "gone.md").write_text(f"{topic_pages.GENERATED}\n\n# gone\n")
    (out / "ours.md").write_text("# Written by people\n")
    assert {file.name for file in topic_pages.stale(shop, out)} == {"orders.md", "asyncapi.json", "gone.md"}
    topic_pages.write(shop, out)
    assert topic_pages.stale(shop, out) == []
    assert (out / "ours.md").exists()
    assert not (out / "gone.md").exists()


def test_pages_link_to_the_schemas_if_both_folders_move_together(shop: Catalogue, tmp_path: Path) -> None:
    out = tmp_path / "docs" / "topics"
    topic_pages.write(shop, out)
    links = re.findall(r"\]\(([^)]+\.avsc)\)", (out / "orders.md").read_text())
    assert len(links) == 2
    for link in links:
        assert (out / link).exists()


def test_pages_elsewhere_do_not_link_to_a_place_on_one_machine(tmp_path: Path) -> None:
    inner = hostile.made(tmp_path / "deep" / "shop")
    topic_pages.write(inner, tmp_path / "docs")
    page = (tmp_path / "docs" / "orders.md").read_text()
    assert "| `avro/order.placed.avsc` |" in page
    assert "../" not in page
