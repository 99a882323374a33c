"""Properties that the guarantees depend on cannot be changed by accident."""

import json
from pathlib import Path

import pytest

from ferryman.relay.kafka import DEFAULTS, INSISTED
from ferryman.relay.source import sources
from ferryman.runtime import librdkafka
from ferryman.runtime.settings import Kafka
from ferryman.runtime.sources import BadSettings, load, plain

HARMFUL = {
    "acks": "1",
    "request.required.acks": "0",
    "partitioner": "random",
    "transactional.id": "ours",
    "enable.idempotence": "false",
    "enable.gapless.guarantee": "false",
    "message.timeout.ms": "300000",
    "delivery.timeout.ms": "120000",
    "retries": "0",
    "message.send.max.retries": "3",
    "delivery.report.only.error": "false",
    "allow.auto.create.topics": "true",
    "queuing.strategy": "lifo",
    "enable.auto.commit": "true",
    "isolation.level": "read_uncommitted",
}
BLIND = {"enable.ssl.certificate.verification": "false", "ssl.endpoint.identification.algorithm": "none"}


def refused(environ: dict[str, str]) -> str:
    with pytest.raises(BadSettings) as caught:
        load(environ)
    return str(caught.value)


@pytest.mark.parametrize(("name", "value"), HARMFUL.items())
def test_properties_that_lose_or_reorder_messages_need_consent(name: str, value: str) -> None:
    kafka = Kafka(**{name: value})
    (problem,) = librdkafka.check(kafka)
    assert problem.message == f"kafka.{name} = {value} breaks the guarantees"
    assert problem.setting == "kafka.allow_message_loss"
    assert list(librdkafka.check(kafka.model_copy(update={"allow_message_loss": True}))) == []


@pytest.mark.parametrize(("name", "value"), BLIND.items())
def test_skipping_the_check_of_a_brokers_certificate_needs_consent(name: str, value: str) -> None:
    kafka = Kafka(**{name: value})
    (problem,) = librdkafka.check(kafka)
    assert problem.setting == "kafka.allow_unverified_brokers"
    assert list(librdkafka.check(kafka.model_copy(update={"allow_unverified_brokers": True}))) == []
    assert list(librdkafka.check(kafka.model_copy(update={"allow_message_loss": True}))) != []


def test_every_property_that_is_checked_is_one_of_the_library() -> None:
    assert {*librdkafka._NEEDED, *librdkafka._TRUST} - librdkafka.names() == set()
    assert set(HARMFUL) == set(librdkafka._NEEDED)


@pytest.mark.parametrize("value", ["all", "-1", "ALL"])
def test_saying_what_is_so_anyway_is_no_offence(value: str) -> None:
    assert list(librdkafka.check(Kafka(acks=value))) == []  # type: ignore[call-arg]


def test_the_check_demands_the_properties_that_the_relay_sets() -> None:
    said = {name: str(value).lower() for name, value in INSISTED.items()}
    assert {name: value in librdkafka._NEEDED[name] for name, value in said.items()} == dict.fromkeys(said, True)
    assert not set(INSISTED) & set(DEFAULTS)


def test_an_override_from_the_environment_is_refused_too() -> None:
    said = refused({"FERRYMAN_KAFKA__ACKS": "1"})
    assert "kafka.acks = 1 breaks the guarantees" in said
    accepted = load({"FERRYMAN_KAFKA__ACKS": "1", "FERRYMAN_KAFKA__ALLOW_MESSAGE_LOSS": "true"})
    assert accepted.settings.kafka.properties == {"acks": "1"}


def test_harmless_properties_pass() -> None:
    properties = {"linger.ms": "5", "compression.type": "zstd", "ssl.ca.location": "/ca.pem", "sasl.username": "u"}
    assert list(librdkafka.check(Kafka(**properties))) == []


# Settings of one source of several

SHOP, MILL = "postgresql://u:geheim@one/shop", "postgresql://u:geheim@two/mill"


def test_a_source_can_be_named_in_the_environment() -> None:
    found = load({"FERRYMAN_RELAY__SOURCES__SHOP__DATABASE_URL": SHOP}).settings
    assert plain(found.relay.sources["shop"].database_url) == SHOP
    assert [(each.name, each.ce_source) for each in sources(found)] == [("shop", "/shop")]


def test_a_sources_secret_can_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{SHOP}\n")
    found = load({"FERRYMAN_RELAY__SOURCES__SHOP__DATABASE_URL_FILE": str(tmp_path / "url")}).settings
    assert plain(found.relay.sources["shop"].database_url) == SHOP


def test_the_environment_adds_to_the_sources_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "ferryman.toml"
    file.write_text(f"[relay.sources.shop]\ndatabase_url = '{SHOP}'\n")
    environ = {
        "FERRYMAN_RELAY__SOURCES__SHOP__CE_SOURCE": "/shop/berlin",
        "FERRYMAN_RELAY__SOURCES__MILL_TWO__DATABASE_URL": MILL,
    }
    found = load(environ, file)
    assert [(each.name, each.ce_source) for each in sources(found.settings)] == [
        ("shop", "/shop/berlin"),
        ("mill_two", "/mill"),
    ]
    assert found.origins["relay.sources.mill_two.database_url"] == "FERRYMAN_RELAY__SOURCES__MILL_TWO__DATABASE_URL"


def test_all_sources_can_be_given_as_one_table() -> None:
    environ = {"FERRYMAN_RELAY__SOURCES": json.dumps({"shop": {"database_url": SHOP}, "mill": {"database_url": MILL}})}
    assert list(load(environ).settings.relay.sources) == ["shop", "mill"]


def test_a_source_without_a_database_is_refused_by_its_name() -> None:
    assert "relay.sources.shop.database_url" in refused({"FERRYMAN_RELAY__SOURCES__SHOP__CE_SOURCE": "/shop"})


def test_a_misspelt_setting_of_a_source_is_refused_with_a_suggestion() -> None:
    said = refused({"FERRYMAN_RELAY__SOURCES__SHOP__DATABSE_URL": SHOP})
    assert "unknown environment name FERRYMAN_RELAY__SOURCES__SHOP__DATABSE_URL" in said
    assert "DATABASE_URL?" in said
    assert "geheim" not in said


def test_no_password_of_a_source_shows() -> None:
    """N14."""
    found = load({"FERRYMAN_RELAY__SOURCES__SHOP__DATABASE_URL": SHOP}).settings
    assert "geheim" not in repr(found)
