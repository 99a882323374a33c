"""`ferryman outbox check`, and the indexes that claims need: judged by the catalogue, and by the plan of a claim."""

import json
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from ferryman.cli.app import run
from ferryman.relay.admin.table_check import examine
from ferryman.relay.described.layout import fit, look
from ferryman.relay.described.statements import compiled
from ferryman.relay.described.table import claim_values
from ferryman.relay.described.way_out import Room
from ferryman.runtime.errors import Exit, Misconfigured
from support.hooks import HookTable

PENDING, SENDING = "status = 'PENDING'", "status = 'SENDING'"
CLAIM, LOST = "leads from destination to destination", "being sent"


def index(hooks: HookTable, *definitions: str) -> None:
    """Drop the table's indexes, except for that of the ids, and create these."""
    names = "SELECT indexname FROM pg_indexes WHERE tablename = 'hooks' AND indexname <> 'hooks_pkey'"
    for (name,) in hooks.db.execute(names).fetchall():
        hooks.db.execute(f"DROP INDEX shop.{name}")
    for definition in definitions:
        hooks.db.execute(f"CREATE INDEX ON shop.hooks {definition}")


def lacks(hooks: HookTable) -> list[str]:
    """Return which indexes are missing: of claims, or of rows that are being sent."""
    flaws = examine(hooks.db, "hooks", hooks.settings.outbox["hooks"])
    assert all(flaw.ddl.startswith("CREATE INDEX CONCURRENTLY ON shop.hooks (") for flaw in flaws)
    return [CLAIM if CLAIM in flaw.why else LOST for flaw in flaws if CLAIM in flaw.why or LOST in flaw.why]


@pytest.mark.parametrize(
    ("definitions", "missing"),
    [
        ([f"(destination, next_attempt_at, id) WHERE {PENDING}", f"(claimed_at) WHERE {SENDING}"], []),
        ([f"(destination, next_attempt_at) WHERE {PENDING}", f"(id) WHERE {SENDING}"], []),
        (["(status, destination, next_attempt_at, id)"], []),
        (["(destination, next_attempt_at, id) WHERE status IN ('SENDING', 'PENDING')"], []),
        (["(destination, next_attempt_at, id) WHERE status <> 'SENT'"], []),
        ([], [CLAIM, LOST]),
        ([f"(next_attempt_at, id) WHERE {PENDING}", f"(id) WHERE {SENDING}"], [CLAIM]),
        (["(destination, next_attempt_at, id)", f"(id) WHERE {SENDING}"], [CLAIM]),
        ([f"(destination, created_at) WHERE {PENDING}"], [CLAIM, LOST]),
        ([f"(destination, next_attempt_at) WHERE {PENDING} AND attempts = 0", f"(id) WHERE {SENDING}"], [CLAIM]),
        ([f"(lower(destination), next_attempt_at) WHERE {PENDING}", f"(id) WHERE {SENDING}"], [CLAIM]),
        (["(destination, next_attempt_at) WHERE status IN ('PENDING', 'SENT')", f"(id) WHERE {SENDING}"], [CLAIM]),
        ([f"USING hash (destination) WHERE {PENDING}", f"(id) WHERE {SENDING}"], [CLAIM]),
    ],
)
def test_indexes_are_judged_by_their_columns_and_predicates(
    hooks: HookTable, definitions: list[str], missing: list[str]
) -> None:
    index(hooks, *definitions)
    assert lacks(hooks) == missing


@pytest.mark.parametrize(
    "described",
    [
        {},
        {"words": {"pending": ["PENDING", "FAILED"], "done": "SENT", "dead": "DEAD"}},
        {
            "channel": "kafka",
            "secrets": [],
            "topic": "hooks",
            "type": "t",
            "columns": {"key": "destination"},
            "order": "key",
        },
    ],
)
def test_the_indexes_that_check_names_serve_the_plan_of_a_claim(hooks: HookTable, described: dict[str, Any]) -> None:
    hooks.described |= described
    index(hooks)
    outbox = hooks.settings.outbox["hooks"]
    for flaw in examine(hooks.db, "hooks", outbox):
        hooks.db.execute(flaw.ddl.encode())
    assert examine(hooks.db, "hooks", outbox) == []
    hooks.db.execute("ANALYZE shop.hooks; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off")
    statements = compiled("hooks", outbox, fit("hooks", outbox, look(hooks.db, outbox)))
    for name in (
        "claim_fair" if "claim_fair" in statements else "claim",
        *(["claim_lost"] if outbox.words.claimed else []),
    ):
        plan = hooks.db.execute(b"EXPLAIN " + statements[name].as_bytes(), claim_values(Room(10, each=8))).fetchall()
        lines = [line for (line,) in plan]
        assert not any("Seq Scan on hooks" in line for line in lines), lines
        assert any("Scan using hooks_" in line and "pkey" not in line for line in lines), lines


def test_check_prints_a_line_and_the_mending_ddl_for_each_flaw(
    hooks: HookTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FERRYMAN_DATABASE_URL", hooks.url)
    monkeypatch.setenv("FERRYMAN_OUTBOX", json.dumps({"hooks": hooks.description}))
    hooks.db.execute(
        "ALTER TABLE shop.hooks DROP COLUMN error, ALTER COLUMN attempts TYPE text, DROP COLUMN claimed_at"
    )
    hooks.write("http://h/")
    for exit_code in (Exit.FAILURE, Exit.FAILURE, Exit.OK):
        capsys.readouterr()
        assert run(["outbox", "check", "hooks", "--json"]) == exit_code
        found = json.loads(capsys.readouterr().out)
        assert found["fits"] == (exit_code == Exit.OK)
        for flaw in found["flaws"]:
            hooks.db.execute("ALTER TABLE shop.hooks ALTER attempts DROP DEFAULT")
            hooks.db.execute(flaw["ddl"].encode())
    hooks.db.execute("DROP TABLE shop.hooks")
    assert run(["outbox", "check", "hooks"]) == Exit.FAILURE
    assert "CREATE TABLE shop.hooks" in capsys.readouterr().out
    assert run(["outbox", "check", "nothing"]) == Exit.CONFIGURATION


@pytest.mark.parametrize(
    ("constraint", "refused"),
    [
        ("status IN ('PENDING', 'SENT', 'DEAD', 'THEIRS')", "SENDING"),
        ("status = ANY (ARRAY['PENDING', 'SENDING'])", "SENT, DEAD"),
        ("status IN ('PENDING', 'SENDING', 'SENT', 'DEAD')", None),
        ("status IS NULL OR length(status) <= 7", None),
        ("status <> 'SENT' OR done_at IS NOT NULL", None),
    ],
)
def test_constraint_that_refuses_a_word_is_a_flaw_and_its_ddl_keeps_what_it_allows(
    hooks: HookTable, constraint: str, refused: str | None
) -> None:
    hooks.write("http://h/")
    hooks.db.execute(f'ALTER TABLE shop.hooks ADD CONSTRAINT "Known" CHECK ({constraint})'.encode())
    found = examine(hooks.db, "hooks", hooks.settings.outbox["hooks"])
    assert [flaw.why for flaw in found] == (
        [f"the constraint Known of shop.hooks refuses {refused} as a status"] if refused else []
    )
    for flaw in found:
        hooks.db.execute(flaw.ddl.encode())
    assert examine(hooks.db, "hooks", hooks.settings.outbox["hooks"]) == []
    if "THEIRS" in constraint:
        hooks.db.execute("UPDATE shop.hooks SET status = 'THEIRS'")
    if refused:
        with pytest.raises(psycopg.errors.CheckViolation):
            hooks.db.execute("UPDATE shop.hooks SET status = 'OTHER'")


def test_domain_that_lacks_a_word_is_a_flaw(hooks: HookTable) -> None:
    hooks.db.execute("CREATE DOMAIN shop.state AS text CONSTRAINT known CHECK (VALUE IN ('PENDING', 'SENT'))")
    index(hooks)
    hooks.db.execute("ALTER TABLE shop.hooks ALTER status DROP DEFAULT, ALTER status TYPE shop.state")
    outbox = hooks.settings.outbox["hooks"]
    [flaw] = examine(hooks.db, "hooks", outbox)
    hooks.db.execute(flaw.ddl.encode())
    assert all("CREATE INDEX" in each.ddl for each in examine(hooks.db, "hooks", outbox))


def test_everything_that_check_says_of_a_table_that_is_missing_makes_one_that_fits(hooks: HookTable) -> None:
    hooks.described |= {"table": "new_shop.hooks"}
    outbox = hooks.settings.outbox["hooks"]
    for _ in range(2):  # the table, then its indexes
        for flaw in examine(hooks.db, "hooks", outbox):
            hooks.db.execute(flaw.ddl.encode())
    assert examine(hooks.db, "hooks", outbox) == []
    hooks.db.execute("INSERT INTO new_shop.hooks (destination, payload) VALUES ('http://h/', '{}')")


@pytest.mark.parametrize("table", ["hooks", "shop.hook", "shop.Hooks"])
def test_table_with_nearly_this_name_is_suggested(hooks: HookTable, table: str) -> None:
    hooks.described |= {"table": table}
    [flaw] = examine(hooks.db, "hooks", hooks.settings.outbox["hooks"])
    assert flaw.why == f"there is no table {table}; did you mean shop.hooks?"


def test_check_finds_a_database_that_is_not_migrated(hooks: HookTable) -> None:
    hooks.db.execute("DROP SCHEMA ferryman CASCADE")
    with pytest.raises(Misconfigured, match="engine"):
        examine(hooks.db, "hooks", hooks.settings.outbox["hooks"])


@pytest.mark.parametrize(
    "described",
    [{"secrets": []}, {"secrets": [], "channel": "no_module:Pigeon"}, {"lease": {"seconds": 40}}],
)
def test_check_refuses_what_a_start_would_refuse(
    hooks: HookTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], described: dict[str, Any]
) -> None:
    monkeypatch.setenv("FERRYMAN_DATABASE_URL", hooks.url)
    monkeypatch.setenv("FERRYMAN_OUTBOX", json.dumps({"hooks": hooks.description | described}))
    assert run(["outbox", "check", "hooks"]) == Exit.CONFIGURATION
    assert "[setting outbox.hooks." in capsys.readouterr().err


def test_a_start_warns_once_of_a_missing_index(hooks: HookTable) -> None:
    index(hooks, f"(destination, next_attempt_at) WHERE {PENDING}")
    with capture_logs() as logs, hooks.courier() as courier, courier.service.opened():
        pass
    [warning] = [each for each in logs if each["event"] == "index missing"]
    assert warning["log_level"] == "warning"
    assert "(claimed_at) WHERE status IN ('SENDING')" in warning["mend"]


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [("payments", "FERRYMAN_PAYMENTS__MODE", "literal"), ("runner", "FERRYMAN_RUNNER__URL", "http://127.0.0.1:9/")],
)
def test_our_own_described_tables_fit(
    ferryman_database_url: str, monkeypatch: pytest.MonkeyPatch, name: str, variable: str, value: str
) -> None:
    monkeypatch.setenv("FERRYMAN_DATABASE_URL", ferryman_database_url)
    monkeypatch.setenv(variable, value)
    assert run(["outbox", "check", name]) == Exit.OK
