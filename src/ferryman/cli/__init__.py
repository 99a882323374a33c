"""The command line: a noun per file, with the same words as the code."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `ferryman` command."""
    from ferryman.cli.app import run

    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))
