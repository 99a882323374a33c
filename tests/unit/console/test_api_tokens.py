"""Tokens are known by their hashes alone, and an API without tokens refuses to start unless it is open."""

import hashlib
import json

import pytest

from ferryman import Misconfigured
from ferryman.cli import config
from ferryman.cli.wiring import load_settings, settings_class
from ferryman.console.gate import Caller, Keyring, keyring
from ferryman.console.service import ApiService, check_scopes
from ferryman.runtime.setting import describe
from ferryman.runtime.settings import Api, Settings, Token
from ferryman.runtime.sources import BadSettings
from support.asking import READ, WRITE, sha256, token


def api(**names: tuple[str, ...]) -> Api:
    return Api(tokens={name: Token(sha256=sha256(name), scopes=list(scopes)) for name, scopes in names.items()})


def test_a_token_stands_for_its_client_and_its_scopes() -> None:
    ring = keyring(api(shop=(WRITE, READ), auditor=(READ,)))
    assert ring.caller(f"Bearer {token('auditor')}") == Caller("auditor", frozenset({READ}))
    shop = ring.caller(f"bearer  {token('shop')} ")
    assert shop is not None
    assert (shop.may(WRITE), shop.may("internal:results")) == (True, False)


@pytest.mark.parametrize(
    "shown",
    [None, "", "Bearer", "Bearer ", f"Bearer {sha256('shop')}", f"Basic {token('shop')}", token("shop")],
)
def test_anything_else_stands_for_nobody(shown: str | None) -> None:
    """The hash in the settings is not a token either."""
    assert keyring(api(shop=(WRITE,))).caller(shown) is None


def test_without_a_token_the_error_says_how_to_make_one() -> None:
    with pytest.raises(Misconfigured, match=r"openssl rand -hex 32.*api\.tokens\.NAME\.sha256"):
        keyring(Api())


def test_an_open_api_has_no_tokens_beside_it() -> None:
    assert keyring(Api(open=True)).caller(None) is not None
    with pytest.raises(Misconfigured, match=r"api\.open"):
        keyring(Api(open=True, tokens=api(shop=(WRITE,)).tokens))


def test_one_token_is_not_two_clients() -> None:
    same = Token(sha256=sha256("shop"), scopes=[READ])
    with pytest.raises(Misconfigured, match="the same token"):
        keyring(Api(tokens={"one": same, "two": same}))


def test_a_token_of_white_space_is_none() -> None:
    """This holds even if somebody sets the hash of the empty string."""
    ring = Keyring({hashlib.sha256(b"").hexdigest(): Caller("shop")})
    assert ring.caller("Bearer \xa0") is None


def test_the_hash_of_an_empty_token_is_refused() -> None:
    """This is what `printf %s $TOKEN | openssl sha256` prints if TOKEN is not set."""
    empty = Token(sha256=hashlib.sha256(b"").hexdigest(), scopes=[READ])
    with pytest.raises(Misconfigured, match=r"the token of shop is empty.*api\.tokens\.shop\.sha256"):
        keyring(Api(tokens={"shop": empty}))


def test_the_environment_can_name_a_client() -> None:
    found = load_settings(
        {"FERRYMAN_API__TOKENS__SHOP__SHA256": sha256("shop"), "FERRYMAN_API__TOKENS__SHOP__SCOPES": f'["{READ}"]'}
    ).settings
    assert keyring(found.api).caller(f"Bearer {token('shop')}") == Caller("shop", frozenset({READ}))


def test_a_plain_token_in_the_settings_is_refused_and_not_shown() -> None:
    given = {"FERRYMAN_API__TOKENS__SHOP__SHA256": token("shop"), "FERRYMAN_API__TOKENS__SHOP__SCOPES": f'["{READ}"]'}
    with pytest.raises(BadSettings, match=r"api\.tokens\.shop\.sha256") as caught:
        load_settings(given)
    assert token("shop") not in str(caught.value)


def test_an_unknown_scope_is_refused_with_the_valid_ones() -> None:
    """By the start of the API, and by `config check` without a database."""
    found = Settings(database_url="postgresql://u@h/d", api=api(shop=(WRITE, "all"), auditor=("payments:*",)))
    for refusing in (ApiService, check_scopes):
        with pytest.raises(BadSettings, match="payments:write, payments:read, internal:results") as refused:
            refusing(found)
        settings = [each.setting for each in refused.value.problems]
        assert settings == ["api.tokens.shop.scopes", "api.tokens.auditor.scopes"]


def test_config_check_finds_an_unknown_scope(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERRYMAN_API__TOKENS__SHOP__SHA256", sha256("shop"))
    for scope, code, problems in (("all", 3, ["api.tokens.shop.scopes"]), (READ, 0, [])):
        monkeypatch.setenv("FERRYMAN_API__TOKENS__SHOP__SCOPES", f'["{scope}"]')
        assert config.check.main(["--json"], standalone_mode=False) == code
        assert [each["setting"] for each in json.loads(capsys.readouterr().out)["problems"]] == problems


def test_the_setting_that_opens_the_api_is_marked_as_dangerous() -> None:
    [found] = [each for each in describe(settings_class()) if each.name == "api.open"]
    assert found.danger
    assert found.default is False
