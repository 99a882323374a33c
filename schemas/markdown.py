"""Text of others in Markdown: it shows as it was written, whatever is in it."""

import re
from collections.abc import Iterable, Sequence

# An underscore inside a word is one already.
_MEANS_SOMETHING = re.compile(r"[\\`*\[\]<>|~$]|&(?=[#\w])|(?<!\w)#|_(?![^\W_])|(?<![^\W_])_")
_BEGINS_A_BLOCK = re.compile(r"^(\d*)([-+=]|[.)](?=\s|$))")


def text(words: str) -> str:
    """One line, as it is."""
    escaped = _MEANS_SOMETHING.sub(r"\\\g<0>", " ".join(words.split()))
    return _BEGINS_A_BLOCK.sub(r"\1\\\2", escaped)


def code(words: str) -> str:
    """A code span, for a table: there, and only there, its bars are escaped."""
    fence = "`" * (max(map(len, re.findall("`+", words)), default=0) + 1)
    room = " " if len(fence) > 1 else ""
    return f"{fence}{room}{words}{room}{fence}".replace("|", r"\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Of cells that are Markdown already."""
    return "\n".join([_row(head), f"|{'---|' * len(head)}", *map(_row, rows)])


def block(language: str, words: str) -> str:
    """Lines as they are; none of them may be a fence."""
    return f"```{language}\n{words}\n```"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |" if any(cells) else f"|{' |' * len(cells)}"
