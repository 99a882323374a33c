"""What we tell other teams about our topics is what the catalogue says."""

from pathlib import Path

from ferryman.schemas import OURS, docs
from ferryman.schemas.catalogue import load

ROOT = Path(__file__).parents[2]


def test_the_pages_of_our_topics_are_fresh() -> None:
    """`ferryman schemas docs` mends them."""
    assert docs.stale(load(OURS), ROOT / "docs" / "topics") == []
