"""Couriers without a database: a wrong channel, or a request that nobody could verify, is refused before the start."""

import sys
from pathlib import Path
from typing import Any

import pytest

from ferryman import Courier, Post
from ferryman.cli import wiring
from ferryman.relay.described.couriers import courier, outbox_of
from ferryman.relay.described.service import DescribedOutbox
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings import Settings

HTTP = {"table": "shop.hooks", "channel": "http", "url": "https://hooks.example/"}
MODULE = """
class Good:
    async def send(self, item): ...

class Synchronous:
    def send(self, item): ...

class WithoutAnItem:
    async def send(self): ...

class WithoutSend: ...

class WithArguments(Good):
    def __init__(self, settings): ...

class Failing(Good):
    def __init__(self):
        {}["PIGEON_LOFT"]

instance = Good()
"""


def settings(**described: Any) -> Settings:
    return Settings.model_validate({"database_url": "postgresql://nobody@nowhere/db", "outbox": {"hooks": described}})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with a module of channels, which nothing else finds."""
    (tmp_path / "pigeons.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.delitem(sys.modules, "pigeons", raising=False)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_channel_of_the_users_own_is_found_in_the_current_folder() -> None:
    found = settings(table="shop.hooks", channel="pigeons:Good")
    [service] = wiring.services(["hooks"], found)
    assert service.name == "outbox hooks"
    wiring.check_courier("hooks", found)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "target",
    [
        "pigeons:Synchronous", "pigeons:WithoutAnItem", "pigeons:WithoutSend", "pigeons:WithArguments",
        "pigeons:Failing", "pigeons:instance", "pigeons:Gone", "no_pigeons:Good",
    ],
)  # fmt: skip
def test_class_that_is_not_a_channel_is_refused_with_the_setting(target: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        wiring.check_courier("hooks", settings(table="shop.hooks", channel=target))
    assert refused.value.setting == "outbox.hooks.channel"
    assert target in refused.value.message
    assert "async def send" in (refused.value.remedy or "")


def test_module_of_a_channel_with_a_mistake_in_it_is_refused_with_the_mistake(here: Path) -> None:
    (here / "broken_pigeons.py").write_text("class Good:\n    async def send(self, item) pass\n")
    with pytest.raises(Misconfigured, match="SyntaxError"):
        wiring.check_courier("hooks", settings(table="shop.hooks", channel="broken_pigeons:Good"))


def test_module_of_a_courier_with_a_mistake_in_it_is_refused_with_the_mistake(here: Path) -> None:
    (here / "failing_pigeons.py").write_text("one = 1 / 0\n")
    with pytest.raises(Misconfigured, match="ZeroDivisionError"):
        wiring.check_courier("failing_pigeons:one", Settings())


def test_unknown_name_in_a_couriers_own_description_is_refused_with_the_right_one() -> None:
    with pytest.raises(Misconfigured, match="unknown setting colums") as refused:
        outbox_of(Courier("own", outbox={"table": "shop.hooks", "colums": {}}))
    assert "columns" in (refused.value.remedy or "")


def test_outbox_with_the_name_of_another_service_is_refused_unless_the_relay_delivers_it() -> None:
    with pytest.raises(Misconfigured) as refused:
        wiring.with_outboxes(Settings.model_validate({"outbox": {"relay": HTTP}}))
    assert refused.value.setting == "outbox.relay"
    described = {"relay": {"table": "shop.orders"}, "runner": HTTP}
    wiring.with_outboxes(Settings.model_validate({"outbox": described}))


def test_outbox_of_a_system_may_be_described_otherwise_but_not_with_another_table() -> None:
    """Else the commands would show the user's table, and the process would deliver the system's."""
    mails = {"channel": "email", "words": {"claimed": "SENDING", "dead": "FAILED"}, "lease": {"seconds": 90}}

    def found(table: str) -> Any:
        email = {"provider": "file", "path": "mails", "sender": "a@example.com"}
        given = {"database_url": "postgresql://nobody@nowhere/db", "email": email}
        described = {"outbox": {"memos": {**mails, "table": table}}}
        return wiring.with_outboxes(wiring.settings_class().model_validate(given | described))

    with pytest.raises(Misconfigured) as refused:
        found("shop.mails")
    assert refused.value.setting == "outbox.memos"
    ours = found("memos.email_outbox")
    [delivering, _] = wiring.services(["memos"], ours)
    assert isinstance(delivering, DescribedOutbox)
    assert delivering.outbox == ours.outbox["memos"]


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("memos", "email.provider"), ("runner", "runner.url"), ("payments", "payments.mode"),
        ("relay", "outbox.relay"), ("nobody", "outbox.nobody"),
    ],
)  # fmt: skip
def test_outbox_that_is_not_described_is_refused_with_what_it_needs(name: str, setting: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        wiring.described_outbox(name, wiring.with_outboxes(wiring.settings_class()()))
    assert refused.value.setting == setting
    assert refused.value.remedy
    assert "relay" not in refused.value.remedy


def test_unsigned_requests_must_be_asked_for() -> None:
    with pytest.raises(Misconfigured) as refused:
        courier("hooks", settings(**HTTP))
    assert refused.value.setting == "outbox.hooks.secrets"
    for authority in ({"secrets": ["s"]}, {"bearer": "t"}, {"secrets": ["s"], "bearer": "t"}, {"unsigned": True}):
        courier("hooks", settings(**HTTP, **authority))


def test_courier_that_makes_its_posts_itself_may_sign_them_itself() -> None:
    own = Courier("own", outbox="hooks")
    with pytest.raises(Misconfigured):
        courier("hooks", settings(**HTTP), own)

    @own.prepare
    def posts(_: Any, rows: Any) -> Any:
        return [Post("https://hooks.example/", each.content, secrets=("s",)) for each in rows]

    courier("hooks", settings(**HTTP), own)


def test_system_whose_settings_make_no_valid_outbox_is_named() -> None:
    found = wiring.settings_class().model_validate(
        {"runner": {"url": "https://runner.example/"}, "http": {"timeout_seconds": 40_000}}
    )
    with pytest.raises(Misconfigured, match="lease") as refused:
        wiring.with_outboxes(found)
    assert refused.value.setting == "runner"
