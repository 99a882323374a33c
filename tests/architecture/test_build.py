"""The files of the build agree with one another and contain no path of a machine."""

import re
import runpy
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ferryman.runtime import librdkafka

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
PINS = {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([^ ;]+)", LOCK, re.MULTILINE)}


def requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    texts = [*project["dependencies"], *PYPROJECT["dependency-groups"]["dev"]]
    texts += [text for extra in project["optional-dependencies"].values() for text in extra]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != "ferryman"]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_lock_satisfies_every_requirement_of_the_project(requirement: Requirement) -> None:
    """Run `make lock` to correct it."""
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def add_packages(found: set[str], name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """Add the packages of others that an installation of this one brings on this machine."""
    for requirement in map(Requirement, metadata.requires(name) or []):
        marker, other = requirement.marker, canonicalize_name(requirement.name)
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        if other not in found or requirement.extras:
            found |= {other} - {"ferryman"}
            add_packages(found, other, frozenset(requirement.extras))
    return found


def test_readme_lists_every_extra_and_counts_its_packages() -> None:
    base = add_packages(set(), "ferryman")
    rows = re.findall(r"^\| `?(\w+)`? \| \+?(\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {extra for extra, _ in rows} == {"base", *PYPROJECT["project"]["optional-dependencies"]}
    brought = {extra: len(add_packages(set(), "ferryman", frozenset({extra})) - base) for extra, _ in rows}
    assert {extra: int(count) for extra, count in rows} == brought | {"base": len(base)}


def test_every_pin_is_hashed() -> None:
    for block in re.split(r"\n(?=\S)", LOCK.strip()):
        assert "--hash=sha256:" in block, block


def test_lock_names_no_host() -> None:
    assert not re.search(r"https?://|index-url|find-links", LOCK)


def test_repository_contains_no_path_of_a_machine() -> None:
    pattern = r"(^|[^A-Za-z0-9_.])/(work|farm|root)/"
    done = subprocess.run(["git", "grep", "-nIE", pattern], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_ci_runs_the_same_command_as_the_readme() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme


def test_every_target_of_the_makefile_has_a_help_text() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    explained = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    assert named == explained


def test_generated_references_are_up_to_date() -> None:
    """Run `make docs` to write them again."""
    reference = runpy.run_path(str(ROOT / "scripts" / "reference.py"))
    for name, text in reference["pages"]().items():
        assert (ROOT / "docs" / name).read_text() == text, name


def test_librdkafka_properties_are_those_of_the_locked_library() -> None:
    """Run `scripts/librdkafka_properties.py` to write it again."""
    script = runpy.run_path(str(ROOT / "scripts" / "librdkafka_properties.py"))
    assert sorted(librdkafka.names()) == script["property_names"]()


def test_every_link_in_the_docs_leads_to_a_file() -> None:
    papers = list(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
    for paper in papers:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", paper.read_text()):
            assert (paper.parent / target).exists(), f"{paper.name}: {target}"
