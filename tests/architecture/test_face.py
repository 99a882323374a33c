"""The public face: what `import ferryman` offers, and that it costs nothing."""

import json
import subprocess
import sys

import pytest

import ferryman
import ferryman.testing

HEAVY = ("aiohttp", "alembic", "click", "confluent_kafka", "fastapi", "psycopg", "pydantic", "sqlalchemy", "structlog")
PROBE = "import json, sys; {}; print(json.dumps([name for name in {!r} if name in sys.modules]))"


def loaded_by(statement: str, names: tuple[str, ...] = HEAVY) -> list[str]:
    """Which of the libraries a fresh interpreter loads for the statement."""
    code = PROBE.format(statement, names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_exports_are_these() -> None:
    """Adding a name is a decision, removing one breaks somebody: change this list knowingly."""
    assert ferryman.__all__ == [
        "Consumer",
        "Done",
        "Encoded",
        "FerrymanError",
        "Message",
        "Misconfigured",
        "Outcome",
        "Permanent",
        "Received",
        "Refused",
        "Retry",
        "Transient",
        "Unreachable",
        "__version__",
        "append",
        "append_async",
        "append_many",
        "append_many_async",
        "encoded",
        "use_schemas",
    ]
    assert dir(ferryman) == sorted(ferryman.__all__)


@pytest.mark.parametrize("name", ferryman.__all__)
def test_every_export_is_there(name: str) -> None:
    assert getattr(ferryman, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = ferryman.Nonsense


def test_importing_the_package_loads_no_library() -> None:
    assert loaded_by("import ferryman") == []


def test_the_pytest_plugin_loads_no_library() -> None:
    assert loaded_by("import ferryman.testing.plugin") == []


def test_the_testing_kit_offers_these_and_loads_them_on_first_use() -> None:
    assert ferryman.testing.__all__ == ["NotProven", "prove"]
    assert all(getattr(ferryman.testing, name) is not None for name in ferryman.testing.__all__)
    assert loaded_by("import ferryman.testing") == []


def test_the_help_loads_only_click() -> None:
    show_help = (
        "from ferryman.cli.app import run; sys.stdout = sys.stderr; run(['--help']); sys.stdout = sys.__stdout__"
    )
    assert loaded_by(show_help) == ["click"]
