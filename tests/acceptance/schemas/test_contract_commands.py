"""`ferryman schemas` and `ferryman topics`, run as an owner of topics does."""

import json
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from ferryman import Message, Permanent, append, use_schemas
from ferryman.runtime.kafka import create_topics
from ferryman.schemas import active
from support import catalogues
from support.catalogues import PLACED, enum, field, record
from support.launch import Launched, Launcher

Database = psycopg.Connection[tuple[Any, ...]]
GREW = record(*PLACED["fields"], field("channel", "string", default="web"))
BROKE = record(*(each for each in PLACED["fields"] if each["name"] != "amount"))
BROKEN_SAMPLE = {"order": catalogues.ORDER["order"], "kind": "TRADE"}


class Owner:
    """A person who runs commands on a catalogue of their own."""

    def __init__(self, ferryman: Launcher, folder: Path, **env: str) -> None:
        self._ferryman = ferryman
        self.folder = catalogues.write(folder / "catalogue")
        self.env = {"FERRYMAN_SCHEMAS__PATH": str(self.folder), **env}

    def run(self, line: str, exit_code: int = 0) -> Launched:
        ran = self._ferryman.run(*line.split(), env=self.env)
        assert ran.wait() == exit_code, ran.transcript()
        return ran


@pytest.fixture
def owner(ferryman: Launcher, tmp_path: Path) -> Owner:
    return Owner(ferryman, tmp_path)


def test_a_type_is_released_and_may_grow_but_not_break(owner: Owner) -> None:
    assert owner.run("schemas check").stdout == "all types (1) are compatible with every released version\n"
    assert json.loads(owner.run("schemas release --json").stdout) == {
        "released": [{"type": "order.placed", "version": 1}]
    }
    catalogues.write(owner.folder, GREW, version=2)
    owner.run("schemas check")
    assert "released order.placed version 2" in owner.run("schemas release order.placed").stdout
    assert sorted(path.name for path in (owner.folder / "released" / "order.placed").iterdir()) == [
        "1.avsc", "1.json", "2.avsc", "2.json",
    ]  # fmt: skip
    catalogues.write(owner.folder, BROKE, version=3, samples=[BROKEN_SAMPLE])
    said = json.loads(owner.run("schemas check --json", exit_code=1).stdout)
    assert {each["version"] for each in said["problems"]} == {1, 2}
    assert any("field amount was released and is gone" in each["problem"] for each in said["problems"])
    assert "field amount" in owner.run("schemas release", exit_code=1).stderr
    assert not (owner.folder / "released" / "order.placed" / "3.avsc").exists()


def test_an_unknown_type_is_refused_with_the_list_of_types(owner: Owner) -> None:
    assert "its types: order.placed" in owner.run("schemas release nonsense", exit_code=1).stderr


def test_an_invalid_catalogue_exits_with_the_code_of_configuration(owner: Owner) -> None:
    (owner.folder / "avro" / "order.placed.avsc").write_text("{")
    said = owner.run("schemas check", exit_code=3).stderr
    assert "order.placed.avsc" in said
    assert "FERRYMAN_SCHEMAS__PATH" in said


def test_docs_are_written_and_checked_for_freshness(owner: Owner, tmp_path: Path) -> None:
    owner.run(f"schemas docs --out {tmp_path / 'docs'} --check", exit_code=1)
    owner.run(f"schemas docs --out {tmp_path / 'docs'}")
    owner.run(f"schemas docs --out {tmp_path / 'docs'} --check")
    catalogues.write(owner.folder, GREW)
    assert "not up to date" in owner.run(f"schemas docs --out {tmp_path / 'docs'} --check", exit_code=1).stdout


def test_schemas_are_published_after_a_dry_run_and_breaking_ones_are_refused(
    owner: Owner, ferryman_registry: str
) -> None:
    if urlsplit(ferryman_registry).scheme == "file":
        pytest.skip("there is no real registry here")
    name = f"shop{secrets.token_hex(4)}.Placed"
    catalogues.write(owner.folder, {**PLACED, "name": name})
    owner.env["FERRYMAN_REGISTRY_URL"] = ferryman_registry
    assert "nothing was changed: add --yes to do it" in owner.run("schemas publish").stdout
    [planned] = json.loads(owner.run("schemas publish --json").stdout)["schemas"]
    assert (planned["subject"], planned["id"]) == (name, None)
    [done] = json.loads(owner.run("schemas publish --yes --json").stdout)["schemas"]
    assert (done["new"], done["objections"]) == (True, [])
    [again] = json.loads(owner.run("schemas publish --yes --json").stdout)["schemas"]
    assert (again["id"], again["new"]) == (done["id"], False)
    owner.run("schemas check")
    catalogues.write(
        owner.folder, {**BROKE, "name": name}, samples=[BROKEN_SAMPLE]
    )  # it is not released, so our own gate accepts it
    assert "the registry objects" in owner.run("schemas check", exit_code=1).stdout
    owner.run("schemas check --offline")
    refused = json.loads(owner.run("schemas publish --yes --json", exit_code=1).stdout)
    assert refused["dry_run"]
    assert refused["schemas"][0]["objections"]


def test_publishing_to_a_registry_that_does_not_answer_exits_with_four(owner: Owner) -> None:
    owner.env["FERRYMAN_REGISTRY_URL"] = "http://127.0.0.1:1"
    assert "does not answer" in owner.run("schemas publish", exit_code=4).stderr
    owner.run("schemas check", exit_code=4)


def test_publishing_without_a_registry_says_that_it_is_not_needed(owner: Owner) -> None:
    assert "nothing needs to be published" in owner.run("schemas publish", exit_code=3).stderr


def test_appending_data_that_does_not_fit_the_catalogue_fails_the_writer(owner: Owner, ferryman_db: Database) -> None:
    """A message is written in the writer's transaction, or not at all (N1, N2)."""
    codecs = use_schemas(owner.folder)
    try:
        with ferryman_db.transaction():
            append(ferryman_db, Message("order.placed", catalogues.ORDER, key="k"))
        with pytest.raises(Permanent, match="field amount"), ferryman_db.transaction():
            append(ferryman_db, Message("order.placed", {**catalogues.ORDER, "amount": 0.5}, key="k"))
    finally:
        active.forget()
    rows = ferryman_db.execute("SELECT topic, type, content_type, payload FROM ferryman.outbox").fetchall()
    [(topic, kind, content_type, payload)] = rows
    codec = codecs.of("order.placed")
    assert codec is not None
    assert (topic, kind, content_type) == ("orders", "order.placed", "application/avro")
    assert codec.decode(payload)["amount"] == 5


# Topics


@pytest.fixture
def topic(ferryman_kafka: str, owner: Owner) -> str:
    """Return a topic of the catalogue that the cluster does not have."""
    name = f"orders-{secrets.token_hex(4)}"
    owner.env["FERRYMAN_KAFKA__BOOTSTRAP_SERVERS"] = ferryman_kafka
    named(owner, name)
    return name


def named(owner: Owner, name: str, **limits: int) -> None:
    file = owner.folder / "catalogue.toml"
    catalogues.write(owner.folder)
    lines = "".join(f"{key} = {value}\n" for key, value in limits.items())
    text = file.read_text().replace("[topics.orders]\n", f'[topics."{name}"]\n{lines}')
    file.write_text(text.replace('topic = "orders"', f'topic = "{name}"'))


def differences(ran: Launched) -> dict[str, str]:
    return {each["what"]: each["action"] for each in json.loads(ran.stdout)["differences"]}


@pytest.mark.real_kafka
def test_missing_topics_are_created_after_a_dry_run(owner: Owner, topic: str, ferryman_kafka: str) -> None:
    assert differences(owner.run("topics check --json", exit_code=1)) == {"topic": "create"}
    assert "nothing was changed" in owner.run("topics apply").stdout
    assert differences(owner.run("topics check --json", exit_code=1)) == {"topic": "create"}
    owner.run("topics apply --yes --replication 1")
    assert differences(owner.run("topics check --json")) == {}
    assert f"as the catalogue says ({1})" in owner.run("topics apply --yes").stdout
    about = AdminClient({"bootstrap.servers": ferryman_kafka}).list_topics(topic, timeout=10).topics[topic]
    assert len(about.partitions) == 6


@pytest.mark.real_kafka
def test_limits_are_raised_never_lowered_and_partitions_stay(owner: Owner, topic: str, ferryman_kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": ferryman_kafka})
    config = {"retention.ms": "3600000", "max.message.bytes": "2000000"}
    create_topics(admin, [NewTopic(topic, 3, 1, config=config)], 10)
    wanted = {"partitions": "leave", "retention.ms": "raise", "max.message.bytes": "leave"}
    assert differences(owner.run("topics check --json", exit_code=1)) == wanted
    owner.run("topics apply --yes", exit_code=5)
    left = {"partitions": "leave", "max.message.bytes": "leave"}
    assert differences(owner.run("topics check --json", exit_code=1)) == left
    said = owner.run("topics check", exit_code=1).stdout
    assert "more partitions would move keys" in said
    assert "nothing is lowered" in said


@pytest.mark.real_kafka
def test_a_compacted_topic_is_refused(owner: Owner, topic: str, ferryman_kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": ferryman_kafka})
    create_topics(admin, [NewTopic(topic, 6, 1)], 10)
    entry = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    said = owner.run("topics apply --yes", exit_code=5).stdout
    assert "a late duplicate would overwrite a newer value" in said


def test_topics_of_a_cluster_that_does_not_answer_exit_with_four(owner: Owner) -> None:
    owner.env |= {"FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "FERRYMAN_KAFKA__TIMEOUT_SECONDS": "1"}
    owner.run("topics check", exit_code=4)


@pytest.mark.parametrize("systems", ["payments", "payments,wallet", "all"])
def test_our_own_catalogue_is_used_for_our_systems(ferryman: Launcher, systems: str, tmp_path: Path) -> None:
    """The option takes precedence over `schemas.path`."""
    env = {"FERRYMAN_SCHEMAS__PATH": str(tmp_path)}
    ran = ferryman.run("schemas", "check", "--for", systems, "--json", env=env)
    assert ran.wait() == 0, ran.transcript()
    assert json.loads(ran.stdout)["types"] > 10


@pytest.mark.parametrize(
    "line",
    ["schemas check", "schemas release", "schemas publish --yes", "schemas docs", "topics check", "topics apply --yes"],
)
def test_without_a_catalogue_nothing_is_done_and_the_error_names_the_ways_out(
    ferryman: Launcher, line: str, tmp_path: Path
) -> None:
    registry = tmp_path / "registry"
    registry.mkdir()
    ran = ferryman.run(*line.split(), env={"FERRYMAN_REGISTRY_URL": registry.as_uri()})
    assert ran.wait() == 3, ran.transcript()
    assert "schemas.path" in ran.stderr
    assert "--for" in ran.stderr
    assert list(registry.iterdir()) == []


def test_an_unknown_system_is_a_configuration_error(ferryman: Launcher) -> None:
    ran = ferryman.run("topics", "apply", "--for", "nonsense")
    assert ran.wait() == 3, ran.transcript()
    assert "payments" in ran.stderr


def test_an_enum_without_a_default_is_found_before_it_is_released(owner: Owner) -> None:
    catalogues.write(owner.folder, record(field("kind", enum("A"))), samples=[{"kind": "A"}])
    assert "its readers would fail at the next symbol" in owner.run("schemas check", exit_code=1).stdout
