"""The command line explains itself, and every mistake ends in one clear line and its exit code."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from psycopg import conninfo

from ferryman.cli.app import COMMANDS
from ferryman.runtime.version import __version__
from ferryman.testing import stack
from support.launch import Launched, Launcher
from support.pace import in_time


def one_line(launched: Launched) -> str:
    """Return the one line that says what went wrong; fail on a traceback."""
    assert "Traceback" not in launched.stderr
    lines = [line for line in launched.stderr.splitlines() if line.startswith("ferryman: ")]
    assert len(lines) == 1, launched.transcript()
    return lines[0]


def test_help_comes_within_half_a_second(ferryman: Launcher) -> None:
    """Time the installed program; take the best of three runs, because the machine may be busy."""
    seconds, printed = [], ""
    for _ in range(3):
        began = time.monotonic()
        printed = ferryman.run("--help", real=True).stdout
        seconds.append(time.monotonic() - began)
    assert in_time(min(seconds), 0.5)
    for name in COMMANDS:
        assert f"\n  {name} " in printed


@pytest.mark.parametrize("command", [*COMMANDS, "config show", "config check", "config schema"])
def test_every_command_explains_itself(ferryman: Launcher, command: str) -> None:
    helped = ferryman.run(*command.split(), "--help")
    assert helped.wait() == 0
    assert len(helped.stdout.splitlines()) > 4


def test_the_version_is_the_installed_one(ferryman: Launcher) -> None:
    assert ferryman.run("version", real=True).stdout == f"ferryman {__version__}\n"
    assert ferryman.run("version", "--json").json["ferryman"] == __version__


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(ferryman: Launcher, shell: str) -> None:
    assert "_FERRYMAN_COMPLETE" in ferryman.run("completion", shell).stdout


@pytest.mark.parametrize(("words", "completed"), [("ferryman do", "doctor"), ("ferryman run pay", "payments")])
def test_completion_completes_commands_and_services(ferryman: Launcher, words: str, completed: str) -> None:
    asked = {"_FERRYMAN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert completed in ferryman.run(env=asked, real=True).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["docter"], "Did you mean 'doctor'?"),
        (["migrate", "--since", "engine_0001"], "--since goes with --sql"),
        (["run"], "Missing argument 'NAME...'"),
        (["run", "rely"], "Did you mean 'relay'?"),
        (["run", "zebra"], "there is no service called zebra. The services are: relay"),
        (["migrate", "--nonsense"], "No such option"),
    ],
)
def test_wrong_usage_exits_2_and_says_how(ferryman: Launcher, arguments: list[str], said: str) -> None:
    asked = ferryman.run(*arguments)
    assert asked.wait() == 2
    assert said in asked.stderr


@pytest.mark.parametrize(
    ("environment", "arguments", "exit_code", "said"),
    [
        ({"FERRYMAN_DATABSE_URL": "x"}, ["doctor"], 3, "did you mean FERRYMAN_DATABASE_URL?"),
        ({"FERRYMAN_DATABASE__POOL_MAX": "many"}, ["migrate"], 3, "FERRYMAN_DATABASE__POOL_MAX"),
        ({}, ["migrate"], 3, "FERRYMAN_DATABASE_URL"),
        ({"FERRYMAN_DATABASE_URL": "http://x"}, ["migrate"], 3, "write postgresql://"),
        ({"FERRYMAN_DATABASE_URL": "postgresql://u:geheim@127.0.0.1:1/d"}, ["migrate"], 4, "start PostgreSQL"),
        ({}, ["migrate", "--for", "nonsense"], 3, "the chains are"),
        ({}, ["--config", "gone.toml", "doctor"], 3, "cannot read the settings file gone.toml"),
        ({}, ["run", "no_such_module:x"], 3, "cannot import no_such_module"),
        ({}, ["run", "json:no_such_name"], 3, "json has no no_such_name"),
        ({}, ["run", "json:JSONDecodeError.doc"], 3, "json has no"),
        ({}, ["run", "sys:path"], 3, "is not a service"),
    ],
)
def test_a_mistake_ends_in_one_line_that_names_the_remedy(
    ferryman: Launcher, environment: dict[str, str], arguments: list[str], exit_code: int, said: str
) -> None:
    asked = ferryman.run(*arguments, env=environment)
    assert asked.wait() == exit_code
    assert said in one_line(asked)
    assert "geheim" not in asked.transcript()


def test_a_wrong_password_exits_with_the_code_of_configuration(ferryman: Launcher, ferryman_postgres: str) -> None:
    url = conninfo.make_conninfo(ferryman_postgres, password="wrong")
    asked = ferryman.run("migrate", env={"FERRYMAN_DATABASE_URL": url})
    assert asked.wait() == 3
    assert "correct the user or the password" in one_line(asked)


def test_a_port_in_use_is_named_with_its_setting(ferryman: Launcher) -> None:
    (ferryman.folder / "quiet.py").write_text(
        "class Quiet:\n    name = 'quiet'\n    def run(self, life): life.wait(60)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        asked = ferryman.run("run", "quiet:Quiet()", env={"FERRYMAN_HEALTH__PORT": port})
        assert asked.wait() == 3
        (ferryman.folder / "quiet.py").write_text((ferryman.folder / "quiet.py").read_text() + "quiet = Quiet()\n")
        asked = ferryman.run("run", "quiet:quiet", env={"FERRYMAN_HEALTH__PORT": port})
    assert asked.wait() == 3
    assert "setting health.port" in one_line(asked)


def test_debug_shows_the_traceback_wherever_it_stands(ferryman: Launcher) -> None:
    assert "Traceback" in ferryman.run("--debug", "migrate").stderr
    assert "Traceback" in ferryman.run("migrate", "--debug").stderr
    assert "Traceback" not in ferryman.run("migrate").stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("hooks = {}['x']\n", "cannot import mine: KeyError: 'x', at mine.py:1 <module>"),
        ("import os\nhooks = os.nothing\n", "at mine.py:2 <module>"),
        ("hooks = (\n", "at mine.py:1"),
    ],
)
def test_error_in_a_users_module_names_their_line_and_is_not_called_ours(
    ferryman: Launcher, source: str, said: str
) -> None:
    (ferryman.folder / "mine.py").write_text(source)
    asked = ferryman.run("run", "mine:hooks")
    assert asked.wait() == 3
    assert said in one_line(asked)
    assert "is a bug" not in one_line(asked)


def test_error_in_a_users_function_is_not_called_ours(ferryman: Launcher) -> None:
    (ferryman.folder / "mine.py").write_text("def hooks(settings):\n    return settings.nothing\n")
    asked = ferryman.run("run", "mine:hooks")
    assert asked.wait() == 1
    assert "at mine.py:2 hooks" in one_line(asked)
    assert "is a bug" not in one_line(asked)


def test_with_json_an_error_is_json_too(ferryman: Launcher) -> None:
    asked = ferryman.run("migrate", "--json")
    assert asked.json["error"] == {
        "message": "no database is named",
        "setting": "database_url",
        "environment": "FERRYMAN_DATABASE_URL",
        "remedy": "set it to postgresql://user:password@host/name",
        "exit_code": 3,
    }


def test_with_json_a_usage_error_is_json_too(ferryman: Launcher) -> None:
    asked = ferryman.run("run", "rely", "--json")
    assert asked.wait() == 2
    assert asked.json["error"]["exit_code"] == 2


def test_config_show_tells_each_value_and_where_it_comes_from_and_masks_secrets(ferryman: Launcher) -> None:
    (ferryman.folder / "ferryman.toml").write_text("[database]\npool_max = 3\n[kafka]\nsasl.username = 'me'\n")
    environment = {
        "FERRYMAN_DATABASE_URL": "postgresql://u:geheim@h/d",
        "FERRYMAN_KAFKA__SASL_PASSWORD": "geheim",
    }
    shown = ferryman.run("config", "show", "--json", env=environment)
    rows = {row["name"]: (row["value"], row["from"]) for row in shown.json}
    assert rows["database.pool_max"] == (3, "ferryman.toml")
    assert rows["database_url"] == ("postgresql://u:***@h/d", "FERRYMAN_DATABASE_URL")
    assert rows["kafka.sasl.username"] == ("me", "ferryman.toml")
    assert rows["kafka.sasl.password"] == ("***", "FERRYMAN_KAFKA__SASL_PASSWORD")
    assert rows["log.level"] == ("info", "default")
    assert "geheim" not in shown.transcript() + ferryman.run("config", "show", env=environment).transcript()


def test_config_check_lists_every_problem_and_exits_3(ferryman: Launcher) -> None:
    (ferryman.folder / "ferryman.toml").write_text("[database]\npool_mx = 3\n[log]\nlevel = 'loud'\n")
    checked = ferryman.run("config", "check", "--json")
    assert checked.wait() == 3
    assert [problem["setting"] for problem in checked.json["problems"]] == [None, "log.level"]
    (ferryman.folder / "ferryman.toml").unlink()
    assert ferryman.run("config", "check").wait() == 0


def test_the_json_schema_refuses_what_the_settings_refuse(ferryman: Launcher) -> None:
    schema = ferryman.run("config", "schema").json
    jsonschema.validate({"database": {"pool_max": 3}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"database": {"pool_mx": 3}}, schema)


def test_doctor_is_green_with_good_parts_and_exits_4_with_postgresql_away(
    ferryman: Launcher, ferryman_database_url: str, ferryman_kafka: str, ferryman_registry: str
) -> None:
    good = {
        "FERRYMAN_DATABASE_URL": ferryman_database_url,
        "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": ferryman_kafka,
        "FERRYMAN_REGISTRY_URL": ferryman_registry,
    }
    well = ferryman.run("doctor", "--json", env=good)
    assert well.wait() == 0
    assert well.json["healthy"] is True
    away = ferryman.run("doctor", "--json", env={**good, "FERRYMAN_DATABASE_URL": "postgresql://u@127.0.0.1:1/d"})
    assert away.wait() == 4
    reached = next(check for check in away.json["checks"] if check["name"] == "postgresql.reached")
    assert (reached["status"], reached["remedy"]) == ("failed", "start PostgreSQL, or correct the host and port")


def test_four_replicas_that_migrate_at_once_all_succeed(ferryman: Launcher, ferryman_postgres: str) -> None:
    url = stack.new_database(ferryman_postgres, "ferryman_replicas")
    try:
        replicas = [ferryman.start("migrate", "--json", env={"FERRYMAN_DATABASE_URL": url}) for _ in range(4)]
        assert [replica.wait() for replica in replicas] == [0, 0, 0, 0]
        moved = [replica.json["chains"][0]["from"] for replica in replicas]
        assert moved.count(None) == 1
    finally:
        stack.drop_database(ferryman_postgres, "ferryman_replicas")


def test_a_closed_pipe_is_not_an_error(ferryman: Launcher) -> None:
    program = Path(sys.executable).parent / "ferryman"
    done = subprocess.run(
        ["sh", "-c", f"{program} config schema | head -c 10"],
        capture_output=True,
        text=True,
        cwd=ferryman.folder,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_the_migrations_print_as_sql_without_a_database(ferryman: Launcher) -> None:
    printed = ferryman.run("migrate", "--sql")
    assert printed.wait() == 0
    assert printed.stdout.startswith("BEGIN;")
    assert "CREATE ROLE ferryman_relay" in printed.stdout
    assert "CREATE ROLE" not in ferryman.run("migrate", "--sql", "--since", "engine_0001").stdout


def test_json_goes_to_standard_output_alone(ferryman: Launcher, ferryman_database_url: str) -> None:
    migrated = ferryman.run("migrate", "--json", env={"FERRYMAN_DATABASE_URL": ferryman_database_url})
    assert json.loads(migrated.stdout)["chains"][0]["chain"] == "engine"
