"""The documentation that is made of a catalogue: a page for each topic, a list of them, and the AsyncAPI document."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from ferryman.schemas import pages
from ferryman.schemas.asyncapi import document
from ferryman.schemas.catalogue import Catalogue

INDEX = "README.md"


def write(catalogue: Catalogue, out: Path) -> list[Path]:
    """Makes the folder what it should be, and says which files those are. Pages of topics that are gone go too."""
    made = _made(catalogue, out)
    out.mkdir(parents=True, exist_ok=True)
    for file, text in made.items():
        file.write_text(text, encoding="utf-8")
    for file in _left_over(out, made):
        file.unlink()
    return list(made)


def stale(catalogue: Catalogue, out: Path) -> list[Path]:
    """What differs from what `write` would make: changed, missing, or left over of a topic that is gone."""
    made = _made(catalogue, out)
    return [*(file for file, text in made.items() if _read(file) != text), *_left_over(out, made)]


def _made(catalogue: Catalogue, out: Path) -> dict[Path, str]:
    folder = _way(catalogue, out)
    made = {out / f"{name}.md": pages.page(catalogue, name, folder) for name in catalogue.topics}
    made[out / INDEX] = pages.index(catalogue)
    made[out / pages.DOCUMENT] = json.dumps(document(catalogue), indent=2, ensure_ascii=False) + "\n"
    return made


def _way(catalogue: Catalogue, out: Path) -> str | None:
    """From the pages to the catalogue, where both move together; elsewhere a link would name a place of one machine."""
    folder, here = catalogue.folder.resolve(), out.resolve()
    if not here.is_relative_to(folder.parent):
        return None
    return Path(os.path.relpath(folder, here)).as_posix()


def _left_over(out: Path, made: dict[Path, str]) -> Iterator[Path]:
    """Only pages that say that they were generated."""
    for file in sorted(out.glob("*.md")):
        if file not in made and (_read(file) or "").startswith(pages.GENERATED):
            yield file


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
