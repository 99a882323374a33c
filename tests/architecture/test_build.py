"""The build's files agree with one another, and name no place they were made at."""

import re
import runpy
import subprocess
import tomllib
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
def test_the_lock_pins_what_the_project_asks_for(requirement: Requirement) -> None:
    """`make lock` mends it."""
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_every_pin_is_hashed() -> None:
    for block in re.split(r"\n(?=\S)", LOCK.strip()):
        assert "--hash=sha256:" in block, block


def test_the_lock_names_no_host() -> None:
    assert not re.search(r"https?://|index-url|find-links", LOCK)


def test_the_tree_holds_no_path_of_a_machine() -> None:
    pattern = r"(^|[^A-Za-z0-9_.])/(work|farm|root)/"
    done = subprocess.run(["git", "grep", "-nIE", pattern], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme


def test_every_target_of_the_makefile_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    explained = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    assert named == explained


def test_the_generated_references_are_fresh() -> None:
    """`make docs` mends them."""
    reference = runpy.run_path(str(ROOT / "scripts" / "reference.py"))
    for name, text in reference["pages"]().items():
        assert (ROOT / "docs" / name).read_text() == text, name


def test_the_list_of_librdkafka_properties_is_that_of_the_locked_library() -> None:
    """`scripts/librdkafka_properties.py` writes it anew."""
    script = runpy.run_path(str(ROOT / "scripts" / "librdkafka_properties.py"))
    assert sorted(librdkafka.names()) == script["property_names"]()


def test_every_link_in_the_papers_leads_somewhere() -> None:
    papers = list(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
    for paper in papers:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", paper.read_text()):
            assert (paper.parent / target).exists(), f"{paper.name}: {target}"
