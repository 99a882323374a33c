"""A second system with routes, tables and a saga of its own, beside ours; it is in no installation."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ferryman import services
from ferryman.migrations import chains

HERE = Path(__file__).parent


@contextmanager
def with_toys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the system and its chain be found beside ours, by their folders alone."""
    for owner in chains.owners():
        (folder / owner).symlink_to(chains.HOME / owner)
    (folder / "toys").symlink_to(HERE / "chain")
    with monkeypatch.context() as patched:
        patched.setattr(services, "__path__", [*services.__path__, str(HERE)])
        patched.setattr(chains, "HOME", folder)
        _forget()
        yield
    _forget()


def _forget() -> None:
    for cached in (services.systems, chains.owners, chains.head):
        cached.cache_clear()
