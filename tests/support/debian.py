"""Unpack programs of Debian packages into the cache, without installing them.

This needs apt but no root, changes nothing else on the machine, and runs none of the packages' scripts.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ferryman.testing import places
from ferryman.testing.parts import NotHere

_PATIENCE_SECONDS = 40
_APT = ("-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10", "-o", "APT::Sandbox::User=root")


def unpacked(package: str) -> Path:
    """Return a folder with the files of the package and of the libraries it needs that this machine lacks."""
    if missing := [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]:
        raise NotHere(f"Debian's package {package} needs {' and '.join(missing)}")
    with places.filled_once(f"debian/{_release()}/{package}") as (folder, new):
        if new is not None:
            for archive in _downloaded(package, new.parent):
                _run(package, ["dpkg-deb", "-x", str(archive), str(new)], new.parent)
    return folder


def environment(folder: Path) -> Mapping[str, str]:
    """Return our environment, extended so that a program of that folder finds the libraries beside it."""
    libraries = sorted({str(library.parent) for library in folder.rglob("lib*.so*")})
    given = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([*libraries, *([given] if given else [])])}


def _downloaded(package: str, workplace: Path) -> list[Path]:
    """Download by the machine's package lists, or by temporary new ones if those are missing or outdated."""
    try:
        _download(package, _APT, workplace)
    except NotHere:
        lists, cache = workplace / "lists", workplace / "cache"
        for folder in (lists, cache / "archives"):
            (folder / "partial").mkdir(parents=True)
        ours = (*_APT, "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}")
        _run(
            package, ["apt-get", *ours, "-qq", "update"], workplace, may_fail=True
        )  # one of several sources may be unreachable
        _download(package, ours, workplace)
    return sorted(workplace.glob("*.deb"))


def _download(package: str, options: Sequence[str], workplace: Path) -> None:
    wanted = ["apt-get", *options, "install", "--simulate", "--no-install-recommends", package]
    would_install = re.findall(r"^Inst (\S+) ", _run(package, wanted, workplace), re.MULTILINE)
    libraries = [name for name in would_install if name.startswith("lib") and name != package]
    _run(package, ["apt-get", *options, "-qq", "download", package, *libraries], workplace)


def _run(package: str, command: Sequence[str], workplace: Path, *, may_fail: bool = False) -> str:
    environment = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=workplace, check=False, timeout=_PATIENCE_SECONDS,
            env=environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise NotHere(f"Debian's package {package} was not downloaded within {_PATIENCE_SECONDS} s") from error
    if done.returncode and not may_fail:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "dpkg"))]
        raise NotHere(f"apt cannot download Debian's package {package}: {lines[0] if lines else 'no reason given'}")
    return done.stdout


def _release() -> str:
    try:
        known = platform.freedesktop_os_release()
    except OSError:
        known = {}
    return f"{known.get('ID', 'unknown')}-{known.get('VERSION_ID', 'rolling')}-{platform.machine()}"
