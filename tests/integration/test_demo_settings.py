"""What processes that we start beside servers of our own go by: those servers, whatever else is named around them."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli import wiring
from ferryman.cli.up import alone
from ferryman.demo import cast
from ferryman.demo.cast import NAMES, Cast, Servers
from ferryman.runtime.sources import load, plain
from ferryman.testing.process import Process

OURS, WALLETS = "postgresql://demo/orchestrator", "postgresql://demo/wallet"
PRODUCTION = "postgresql://production/outbox"
TELLS = """\
import os, sys, json
os.chdir({folder!r})
from ferryman.runtime.sources import load, plain
found = load(os.environ)
urls = {{name: plain(each.database_url) for name, each in found.settings.relay.sources.items()}}
print(json.dumps({{"url": plain(found.settings.database_url), "sources": urls, "mode": found.settings.payments.mode,
                  "kafka": found.settings.kafka.bootstrap_servers, "origins": list(found.origins.values())}}))
"""


def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program that tells what it loads, where every way of naming a setting names one of production."""
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
    """What it said until its end."""
    deadline = time.monotonic() + 30
    while process.pid is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process.last_words()


def test_the_demos_processes_load_the_settings_of_the_demo_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1: with one more source its relay would publish that outbox to a Kafka that goes away."""
    monkeypatch.setattr(cast, "_PROGRAM", (sys.executable, "-c", elsewhere(tmp_path, monkeypatch)))
    own = tmp_path / "demo"
    own.mkdir()
    loaded: dict[str, Any] = {}
    with Cast(Servers(OURS, WALLETS, "demo:1"), own, wiring.environment()) as players:
        for name, player in players.players.items():
            loaded[name] = json.loads(ended(player.process))
    assert list(loaded) == list(NAMES)
    assert loaded["relay"]["sources"] == {"payments": OURS, "wallet": WALLETS}
    assert (loaded["relay"]["url"], loaded["wallet"]["url"], loaded["payments"]["url"]) == (None, WALLETS, OURS)
    for name, each in loaded.items():
        assert (each["kafka"], each["mode"]) == ("demo:1", "saga"), name
        assert name == "relay" or each["sources"] == {}


def test_what_runs_beside_servers_of_ours_is_given_no_database_of_anybody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(tmp_path, monkeypatch)
    given = wiring.environment(FERRYMAN_DATABASE_URL=OURS)
    assert PRODUCTION not in given.values()
    assert {name for name in given if name.startswith("FERRYMAN_")} == {"FERRYMAN_DATABASE_URL"}
    assert given["PATH"] == os.environ["PATH"]


def test_what_up_brings_up_stands_for_every_database_that_a_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the folder counts for the rest: a user's own program is tried with it."""
    elsewhere(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    found = load(wiring.environment(**alone({"FERRYMAN_DATABASE_URL": OURS}))).settings
    assert (found.relay.sources, found.payments.mode) == ({}, "literal")
    assert {plain(found.database_url), plain(found.payments.wallet_database_url)} == {OURS}


def test_a_process_runs_with_exactly_the_environment_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_STARTER", "1")
    told = {}
    for name, env in {"given": {"OWN": "2"}, "none": None}.items():
        child = Process(name, ["/usr/bin/env"], tmp_path / name, env=env)
        child.launch()
        ended(child)
        told[name] = child.log.read_text().splitlines()
    assert told["given"] == ["OWN=2"]
    assert "OF_THE_STARTER=1" in told["none"]
