"""Prepare .venv from requirements.lock. This needs only Python 3.11 or newer, and works offline after the first time.

pip downloads the wheels of the lock once, by the machine's own pip settings, into a folder of the user's cache that is
named after the lock. Every later clone installs from there without a network.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
VENV = ROOT / ".venv"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferryman"


def main() -> None:
    if sys.version_info < (3, 11):
        sys.exit(
            f"prepare: Python {platform.python_version()} is too old: Ferryman needs 3.11 or newer. "
            "Name a newer one: make PYTHON=python3.13 ..."
        )
    python = make_venv()
    wheels = wheelhouse(python)
    say(f"installing into {VENV.name}")
    offline = ["--no-index", "--find-links", str(wheels)]
    run(python, "-m", "pip", "install", "-q", *offline, "uv")
    run(python, "-m", "uv", "pip", "sync", "-q", "--compile-bytecode", *offline, "--python", str(python), str(LOCK))
    run(
        python, "-m", "uv", "pip", "install", "-q", "--no-index", "--python", str(python),
        "--no-build-isolation", "--no-deps", "--editable", str(ROOT),
    )  # fmt: skip
    (VENV / "ready").touch()


def wheels_folder() -> Path:
    """Return the folder for this lock, this Python and this kind of machine."""
    lock = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    version = f"py{sys.version_info[0]}{sys.version_info[1]}"
    return CACHE / "wheels" / f"{lock}-{version}-{sys.platform}-{platform.machine()}"


def wheelhouse(python: Path) -> Path:
    """Return a folder with every wheel of the lock. It appears complete or not at all."""
    wheels = wheels_folder()
    if wheels.is_dir():
        return wheels
    say("downloading the packages of requirements.lock (once; cached for later)")
    wheels.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheels.parent) as scratch:
        new = Path(scratch, "wheels")
        run(
            python, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--progress-bar", "off",
            "--only-binary", ":all:", "--require-hashes", "--no-deps", "-r", str(LOCK), "-d", str(new),
        )  # fmt: skip
        try:
            new.rename(wheels)
        except OSError:
            if not wheels.is_dir():  # another clone was first, and its folder is as good
                raise
    return wheels


def make_venv() -> Path:
    shutil.rmtree(VENV, ignore_errors=True)
    try:
        venv.create(VENV, with_pip=True)
    except subprocess.CalledProcessError:
        sys.exit("prepare: this Python cannot make a virtual environment. On Debian: apt-get install python3-venv")
    return VENV / "bin" / "python"


def run(*command: str | Path) -> None:
    """Run one step. Its own output explains a failure better than a traceback would."""
    if failed := subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(f"prepare: '{' '.join(map(str, command))}' failed with exit code {failed}")


def say(text: str) -> None:
    print(f"prepare: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
