"""The Dockerfile and its build context agree with the tree and the code. No engine is needed."""

import json
import os
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from ferryman.runtime import health
from ferryman.runtime.errors import ENV_PREFIX
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Health, Settings
from ferryman.runtime.sources import load
from support.compose import ROOT, is_pinned, probe

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of the Dockerfile, on one line."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments without flags and `AS name`."""
        return [word for word in self.text.partition(" AS ")[0].split() if not word.startswith("--")]


def read_dockerfile(text: str) -> list[list[Instruction]]:
    """Return the instructions of each stage."""
    without_comments = re.sub(r"(?m)^\s*#.*\n", "", text)
    stages: list[list[Instruction]] = []
    for line in filter(str.strip, re.sub(r"\\\n\s*", "", without_comments).splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append(Instruction(name, rest.strip()))
    return stages


STAGES = read_dockerfile((ROOT / "Dockerfile").read_text())
FINAL = STAGES[-1]
IGNORED = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]


def the(name: str) -> str:
    """Return the text of the only instruction with that name in the final stage."""
    [found] = [each.text for each in FINAL if each.name == name]
    return found


def all_of(name: str) -> list[Instruction]:
    return [each for stage in STAGES for each in stage if each.name == name]


def base_images() -> list[str]:
    stages = {each.text.partition(" AS ")[2] for each in all_of("FROM")}
    return [each.words[0] for each in all_of("FROM") if each.words[0] not in stages]


def test_every_base_image_is_pinned() -> None:
    assert base_images()
    assert all(is_pinned(image) for image in base_images())


def test_image_has_a_python_that_the_package_supports() -> None:
    for image in base_images():
        version = re.fullmatch(r"python:([\d.]+)-slim", image)
        assert version
        assert SpecifierSet(PROJECT["requires-python"]).contains(version[1])


def test_every_copied_file_is_in_the_tree_and_in_the_context() -> None:
    for copied in all_of("COPY"):
        if "--from=" not in copied.text:
            for source in copied.words[:-1]:
                assert (ROOT / source).exists()
                assert source == "." or not is_ignored(source)


def test_build_context_contains_the_sources_and_every_linked_room() -> None:
    rooms = {link.resolve().relative_to(ROOT) for link in (ROOT / "src/ferryman").iterdir() if link.is_symlink()}
    assert rooms
    for needed in (*map(str, rooms), "src/ferryman/cli/app.py", PROJECT["readme"], *PROJECT["license-files"]):
        assert not is_ignored(needed)


@pytest.mark.parametrize("path", [".git/config", ".venv/bin/python", ".env", "tests/unit", "src/a/__pycache__/b.pyc"])
def test_build_context_contains_nothing_else(path: str) -> None:
    assert is_ignored(path)


def test_every_installed_package_has_a_hash_in_the_lock() -> None:
    installs = re.findall(r"(?:pip install|uv build)\b[^&]*", " && ".join(each.text for each in all_of("RUN")))
    assert len(installs) == 4
    for command in installs:
        offline = "--offline --no-deps /tmp/dist/*.whl" in command  # our own wheel, just built
        assert offline or "--require-hashes" in command


def test_installed_extras_exist() -> None:
    extras = set(re.findall(r"--extra (\w+)", " ".join(each.text for each in all_of("RUN"))))
    assert extras
    assert extras <= set(PROJECT["optional-dependencies"])


def test_uv_is_installed_from_its_lines_of_the_lock() -> None:
    [command] = re.findall(r"(sed .*?) > ", " ".join(each.text for each in all_of("RUN")))
    cut = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert re.fullmatch(r"uv==[\d.]+ \\", cut[0])
    assert all(re.fullmatch(r"    --hash=sha256:\w{64}( \\)?", line) for line in cut[1:])
    assert not cut[-1].endswith("\\")


def test_image_runs_as_an_unprivileged_user() -> None:
    user, group = the("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"useradd --uid {user} --gid {group} " in the("RUN")


def test_entrypoint_of_the_image_is_the_program() -> None:
    [program] = json.loads(the("ENTRYPOINT"))
    assert program in PROJECT["scripts"]
    assert json.loads(the("CMD")) == ["--help"]


def test_settings_accept_the_environment_of_the_image() -> None:
    variables = dict(word.split("=", 1) for word in shlex.split(the("ENV")))
    ferrymans = {name: value for name, value in variables.items() if name.startswith(ENV_PREFIX)}
    assert load(ferrymans, Path(os.devnull)).settings.health.host == "0.0.0.0"  # noqa: S104 - in the container


def test_health_check_uses_the_port_of_the_settings() -> None:
    port = str(Settings().health.port)
    assert the("EXPOSE") == port
    assert f"'{port}'" in health_check()[-1]


@pytest.mark.parametrize(("seconds_since_progress", "code"), [(0, 0), (60, 1)])
def test_health_check_follows_livez(seconds_since_progress: int, code: int) -> None:
    now = [0.0]
    life = Life("relay", clock=lambda: now[0])
    now[0] += seconds_since_progress
    with health.endpoint(Health(port=0), [life]) as url:
        assert url
        assert probe(health_check(), url.rpartition(":")[2]) == code


def test_health_check_fails_if_nobody_listens() -> None:
    with health.endpoint(Health(port=0), []) as url:
        assert url
    assert probe(health_check(), url.rpartition(":")[2]) == 1


def health_check() -> list[str]:
    command: list[str] = json.loads(the("HEALTHCHECK").partition("CMD ")[2])
    return command


def is_ignored(path: str) -> bool:
    """Return True if Docker ignores the path: the last pattern that matches it or a folder above it decides."""
    ways = [path, *map(str, Path(path).parents)][:-1] if path != "." else []
    ignored = False
    for line in IGNORED:
        pattern = line.removeprefix("!").removeprefix("**/")
        names = [way.rpartition("/")[2] if "**/" in line else way for way in ways]
        if any(fnmatch(name, pattern) for name in names):
            ignored = not line.startswith("!")
    return ignored
