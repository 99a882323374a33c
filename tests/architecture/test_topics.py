"""The pages about our topics match the catalogue."""

from pathlib import Path

from ferryman.schemas import OURS, topic_pages
from ferryman.schemas.catalogue import load

ROOT = Path(__file__).parents[2]


def test_pages_of_our_topics_are_up_to_date() -> None:
    """Run `make docs` to write them again."""
    assert topic_pages.stale(load(OURS), ROOT / "docs" / "topics") == []
