"""The public names of `import ferryman`, and the cost of importing it."""

import json
import subprocess
import sys

import pytest

import ferryman
import ferryman.routes
import ferryman.testing

HEAVY = ("aiohttp", "click", "confluent_kafka", "fastapi", "psycopg", "pydantic", "sqlalchemy", "structlog")
PROBE = "import json, sys; {}; print(json.dumps([name for name in {!r} if name in sys.modules]))"


def loaded_by(statement: str, names: tuple[str, ...] = HEAVY) -> list[str]:
    """Return which of the libraries a new interpreter loads for the statement."""
    code = PROBE.format(statement, names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_exports_are_exactly_these() -> None:
    """To add a name is a decision; to remove one breaks users. Change this list on purpose only."""
    assert ferryman.__all__ == [
        "BearerToken",
        "Chore",
        "Claimed",
        "Columns",
        "Consumer",
        "Courier",
        "Done",
        "Encoded",
        "End",
        "Ended",
        "FerrymanError",
        "Go",
        "HttpUrl",
        "InvalidEndpoint",
        "InvalidMail",
        "Life",
        "Mail",
        "Message",
        "Misconfigured",
        "Outcome",
        "Permanent",
        "Post",
        "Received",
        "Refused",
        "ResultSource",
        "Retry",
        "Row",
        "Saga",
        "Section",
        "SigningSecret",
        "Started",
        "State",
        "System",
        "Transient",
        "Unreachable",
        "__version__",
        "append",
        "append_async",
        "append_many",
        "append_many_async",
        "check_endpoint",
        "check_mail",
        "encoded",
        "setting",
        "use_schemas",
    ]
    assert dir(ferryman) == sorted(ferryman.__all__)


@pytest.mark.parametrize("name", ferryman.__all__)
def test_every_export_exists(name: str) -> None:
    assert getattr(ferryman, name) is not None


def test_what_routes_are_written_with_is_exactly_this() -> None:
    names = "STORABLE After Body Door Instant Limit Moment Number page read_cursor read_number wrong"
    assert ferryman.routes.__all__ == names.split()


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = ferryman.Nonsense


def test_importing_the_package_loads_no_library() -> None:
    assert loaded_by("import ferryman") == []


def test_pytest_plugin_loads_no_library() -> None:
    assert loaded_by("import ferryman.testing.plugin") == []


def test_testing_kit_loads_its_exports_on_first_use() -> None:
    assert ferryman.testing.__all__ == ["NotProven", "prove"]
    assert all(getattr(ferryman.testing, name) is not None for name in ferryman.testing.__all__)
    assert loaded_by("import ferryman.testing") == []


def test_help_loads_only_click() -> None:
    show_help = (
        "from ferryman.cli.app import run; sys.stdout = sys.stderr; run(['--help']); sys.stdout = sys.__stdout__"
    )
    assert loaded_by(show_help) == ["click"]


def test_services_that_answer_no_requests_load_no_http_framework() -> None:
    """The base install has none; only the routes of a service and the API need it."""
    load_all = (
        "from ferryman.cli import wiring; from ferryman.runtime.system import load; import ferryman.services as ours; "
        "[load(target) for name, (target, _) in wiring.runs().items() if name != 'api']; "
        "[load(each.evidence) for each in ours.systems() if each.evidence]"
    )
    assert loaded_by(load_all, ("fastapi", "psycopg_pool", "starlette", "uvicorn")) == []
