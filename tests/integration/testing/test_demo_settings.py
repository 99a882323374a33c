"""Processes that the demo and `ferryman up` start use the servers of these commands and no others."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli import wiring
from ferryman.cli.up import beside
from ferryman.demo import payment_flow
from ferryman.demo.payment_flow import NAMES, DemoServers, DemoServices
from ferryman.runtime.sources import plain
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.testing.process import Process

OURS, WALLETS = "postgresql://demo/orchestrator", "postgresql://demo/wallet"
PRODUCTION = "postgresql://production/outbox"
TELLS = """\
import os, sys, json
os.chdir({folder!r})
from ferryman.cli.wiring import load_settings
from ferryman.runtime.sources import plain
found = load_settings(os.environ)
urls = {{name: plain(each.database_url) for name, each in found.settings.relay.sources.items()}}
print(json.dumps({{"url": plain(found.settings.database_url), "sources": urls, "mode": found.settings.payments.mode,
                  "kafka": found.settings.kafka.bootstrap_servers, "origins": list(found.origins.values())}}))
"""


def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a program that prints the settings it loads, where every other source names production."""
    (folder / "ferryman.toml").write_text(
        f"[relay.sources.infile]\ndatabase_url = '{PRODUCTION}'\n[payments]\nmode = 'literal'\n"
    )
    named = folder / "named.toml"
    named.write_text(f"[relay.sources.named]\ndatabase_url = '{PRODUCTION}'\n")
    for name, value in {
        "FERRYMAN_CONFIG": str(named), "FERRYMAN_RELAY__SOURCES__X__DATABASE_URL": PRODUCTION,
        "DATABASE_URL": PRODUCTION,
        "FERRYMAN_PAYMENTS__MODE": "literal", "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": "production:9092",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return TELLS.format(folder=str(folder))


def ended(process: Process) -> str:
    """Wait until the process has ended, and return its output."""
    assert process.wait(30) is not None
    return process.last_words()


def test_demo_processes_load_only_the_settings_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N1: with another source, the demo's relay would publish that outbox to a temporary Kafka."""
    monkeypatch.setattr(payment_flow, "FERRYMAN", (sys.executable, "-c", elsewhere(tmp_path, monkeypatch)))
    own = tmp_path / "demo"
    own.mkdir()
    loaded: dict[str, Any] = {}
    with DemoServices(DemoServers(OURS, WALLETS, "demo:1"), own, wiring.environment()) as running:
        for name, process in running.processes.items():
            loaded[name] = json.loads(ended(process))
    assert list(loaded) == list(NAMES)
    assert loaded["relay"]["sources"] == {"payments": OURS, "wallet": WALLETS}
    assert (loaded["relay"]["url"], loaded["wallet"]["url"], loaded["payments"]["url"]) == (None, WALLETS, OURS)
    for name, each in loaded.items():
        assert (each["kafka"], each["mode"]) == ("demo:1", "saga"), name
        assert name == "relay" or each["sources"] == {}


def test_environment_of_a_child_names_no_database_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(tmp_path, monkeypatch)
    given = wiring.environment(FERRYMAN_DATABASE_URL=OURS)
    assert PRODUCTION not in given.values()
    assert {name for name in given if name.startswith("FERRYMAN_")} == {"FERRYMAN_DATABASE_URL"}
    assert given["PATH"] == os.environ["PATH"]


def test_database_of_up_replaces_every_database_of_a_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other settings of the file stay: a user tries their own program with them."""
    elsewhere(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    alone = beside({"FERRYMAN_DATABASE_URL": OURS}, wiring.systems_called(["payments"]))
    found = wiring.load_settings(wiring.environment(**alone)).settings
    payments = found.section(PaymentsSettings)
    assert (found.relay.sources, payments.mode) == ({}, "literal")
    assert {plain(found.database_url), plain(payments.wallet_database_url)} == {OURS}


def test_process_gets_exactly_the_given_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_STARTER", "1")
    told = {}
    for name, env in {"given": {"OWN": "2"}, "none": None}.items():
        child = Process(name, ["/usr/bin/env"], tmp_path / name, env=env)
        child.launch()
        ended(child)
        told[name] = child.log.read_text().splitlines()
    assert told["given"] == ["OWN=2"]
    assert "OF_THE_STARTER=1" in told["none"]
