"""Settings: the file below the environment, every unknown name refused with a suggestion, secrets from files."""

from pathlib import Path

import pytest

from ferryman.cli.wiring import settings_class
from ferryman.runtime import librdkafka
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.setting import describe
from ferryman.runtime.settings import Settings
from ferryman.runtime.sources import BadSettings, load, plain

HERE = "FERRYMAN_CONFIG"
WRONG_URLS = (
    "", "geheim", "http://geheim example/", "http://geheim:0/", "http://geheim:70000", "http://geheim:abc/",
    "http://geheim..example/", "http://-geheim/", "http://256.1.1.1/geheim", "http://[::geheim]/", "http://u:geheim@h/",
)  # fmt: skip
WRONG_TOKENS = ("", "geheim ü", "geheim\\n", "geheim\\r\\nx: y", "Bearer geheim")


def toml(folder: Path, text: str) -> Path:
    file = folder / "ferryman.toml"
    file.write_text(text)
    return file


def problems(environ: dict[str, str], file: Path | None = None) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        load(environ, file)
    return [str(problem) for problem in caught.value.problems]


def test_without_a_file_and_environment_every_setting_has_its_default() -> None:
    found = load({})
    assert found.settings == Settings()
    assert found.origins == {}


def test_the_environment_stands_above_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path, "[database]\npool_max = 3\nlock_timeout_seconds = 2.5\n")
    found = load({"FERRYMAN_DATABASE__POOL_MAX": "5"}, file)
    assert found.settings.database.pool_max == 5
    assert found.settings.database.lock_timeout_seconds == 2.5
    assert found.origins == {
        "database.pool_max": "FERRYMAN_DATABASE__POOL_MAX",
        "database.lock_timeout_seconds": str(file),
    }


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path, "[log]\nlevel = 'debug'\n")
    assert load({HERE: str(file)}).settings.log.level == "debug"


def test_database_url_is_honoured_below_our_own_name() -> None:
    other, ours = "postgresql://other/db", "postgresql://ours/db"
    assert plain(load({"DATABASE_URL": other}).settings.database_url) == other
    assert plain(load({"DATABASE_URL": other, "FERRYMAN_DATABASE_URL": ours}).settings.database_url) == ours


def test_a_secret_can_stand_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://u:p@h/d\n")
    assert plain(load({"FERRYMAN_DATABASE_URL_FILE": str(secret)}).settings.database_url) == "postgresql://u:p@h/d"
    (tmp_path / "password").write_text("geheim")
    found = load({"FERRYMAN_KAFKA__SASL_PASSWORD_FILE": str(tmp_path / "password")})
    assert found.settings.kafka.properties == {"sasl.password": "geheim"}


def test_a_property_with_an_underscore_in_its_name_can_be_set_by_environment() -> None:
    found = load({"FERRYMAN_KAFKA__LOG_LEVEL": "7", "FERRYMAN_KAFKA__SOCKET_KEEPALIVE_ENABLE": "true"})
    assert found.settings.kafka.properties == {"log_level": "7", "socket.keepalive.enable": "true"}


def test_a_value_and_its_file_at_once_are_refused(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("x")
    said = problems({"FERRYMAN_REGISTRY_URL": "http://a", "FERRYMAN_REGISTRY_URL_FILE": str(tmp_path / "url")})
    assert "both FERRYMAN_REGISTRY_URL and FERRYMAN_REGISTRY_URL_FILE are set" in said[0]


def test_a_secret_file_that_is_missing_is_named() -> None:
    assert "cannot read the file /nowhere" in problems({"FERRYMAN_DATABASE_URL_FILE": "/nowhere"})[0]


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("FERRYMAN_DATABSE_URL", "FERRYMAN_DATABASE_URL"),
        ("FERRYMAN_DATABASE__POOL_MAXX", "FERRYMAN_DATABASE__POOL_MAX"),
        ("FERRYMAN_DATABASE_POOL_MAX", "FERRYMAN_DATABASE__POOL_MAX"),
        ("FERRYMAN_HEALTH_PORT", "FERRYMAN_HEALTH__PORT"),
        ("FERRYMAN_KAFKA__SASL_PASWORD", "FERRYMAN_KAFKA__SASL_PASSWORD"),
    ],
)
def test_an_unknown_environment_name_is_refused_with_a_suggestion(variable: str, suggestion: str) -> None:
    assert problems({variable: "8080"}) == [f"unknown environment name {variable}. Remedy: did you mean {suggestion}?"]


@pytest.mark.parametrize(
    "theirs",
    [
        {"FERRYMAN_SERVICE_HOST": "10.0.0.1", "FERRYMAN_SERVICE_PORT": "80", "FERRYMAN_SERVICE_PORT_HTTP": "80"},
        {"FERRYMAN_RELAY_PORT": "tcp://10.0.0.1:80", "FERRYMAN_RELAY_PORT_80_TCP": "tcp://10.0.0.1:80"},
        {"FERRYMAN_PORT_80_TCP_ADDR": "10.0.0.1", "FERRYMAN_PORT_80_TCP_PROTO": "tcp"},
    ],
)
def test_kubernetes_variables_about_a_service_are_ignored(theirs: dict[str, str]) -> None:
    assert load(theirs).settings == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[databse]\npool_max = 1", "unknown setting databse"),
        ("[database]\npool_mx = 1", "did you mean database.pool_max?"),
        ("[kafka]\nsasl.pasword = 'x'", "did you mean sasl.password?"),
        ("[kafka]\n'bootstrap.servers' = 'x'", "write it as kafka.bootstrap_servers"),
        ("[database]\npool_max = 0", "Input should be greater than or equal to 1"),
        ("[log]\nlevel = 'loud'", "[setting log.level, or FERRYMAN_LOG__LEVEL]"),
        ("database = 3", "setting database"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    assert said in problems({}, toml(tmp_path, text))[0]


OUTBOX = "[outbox.hooks]\ntable = 'shop.hooks'\nchannel = 'http'\n"
RUNNER = "[runner]\nauth = 'bearer'\n"


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        *((f"{OUTBOX}url = '{url}'", "outbox.hooks.url") for url in WRONG_URLS),
        *((f"[runner]\nurl = '{url}'", "runner.url") for url in WRONG_URLS),
        *((f'{OUTBOX}bearer = "{token}"', "outbox.hooks.bearer") for token in WRONG_TOKENS),
        *((f'{RUNNER}secret = "{token}"', "runner.secret") for token in WRONG_TOKENS),
        (f'{OUTBOX}secrets = ["good", "whsec_geheim!"]', "outbox.hooks.secrets.1"),
        (f'{OUTBOX}secrets = ["geheim\\n"]', "outbox.hooks.secrets.0"),
        ("[runner]\nsecret = 'whsec_geheim!'", "runner.secret"),
        ("[runner]\nauth = 'basic'", "runner.auth"),
        ("[email.resend]\nurl = 'http://api.example/geheim'", "email.resend.url"),
    ],
)
def test_invalid_endpoint_is_refused_without_being_shown(tmp_path: Path, text: str, setting: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load({}, toml(tmp_path, text), settings_class())
    [problem] = caught.value.problems
    assert problem.setting == setting
    assert problem.remedy or setting in ("runner.auth", "email.resend.url")
    assert "geheim" not in str(problem)


def test_bearer_beside_signatures_is_accepted_and_unsigned_beside_either_is_not(tmp_path: Path) -> None:
    both = OUTBOX + "secrets = ['s']\nbearer = 't'\n"
    assert load({}, toml(tmp_path, both)).settings.outbox["hooks"].signs
    assert problems({}, toml(tmp_path, both + "unsigned = true"))


@pytest.mark.parametrize(
    ("lines", "remedy"),
    [
        ("url = 'https://h.example/'", 'set channel = "http", or remove url'),
        ("secrets = ['s']", 'set channel = "http", or remove secrets'),
        ("channel = 'email'\nbearer = 't'\nwords.dead = 'DEAD'", 'set channel = "http", or remove bearer'),
        ("channel = 'http'\ntopic = 'hooks'", "remove topic, or channel"),
    ],
)
def test_setting_of_another_channel_is_refused(tmp_path: Path, lines: str, remedy: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load({}, toml(tmp_path, f"[outbox.hooks]\ntable = 'shop.hooks'\n{lines}"))
    assert [(each.setting, each.remedy) for each in caught.value.problems] == [("outbox.hooks", remedy)]


@pytest.mark.parametrize(
    "line",
    ["channel = 'pigeon'", "table = 'a.b.c'", "columns.id = 'a%b'", "words.claimed = ''", "topic = 'a b'"],
)
def test_text_of_the_wrong_form_is_refused_in_words_and_without_a_regex(tmp_path: Path, line: str) -> None:
    [said] = problems({}, toml(tmp_path, f"[outbox.hooks]\ntable = 'shop.hooks'\n{line}".replace(
        "table = 'shop.hooks'\ntable", "table")))  # fmt: skip
    assert "pattern" not in said
    assert "^" not in said


@pytest.mark.parametrize(
    ("environ", "text", "said"),
    [
        ({}, "[outbox.hooks]\ntabel = 'shop.hooks'", "did you mean outbox.hooks.table?"),
        ({}, "[outbox.hooks]\ntable = 'h'\ncolums.id = 'nr'", "did you mean outbox.hooks.columns.id?"),
        ({"FERRYMAN_OUTBOX__HOOKS__TABEL": "h"}, "", "did you mean FERRYMAN_OUTBOX__HOOKS__TABLE?"),
        ({}, "[http]\nallow = ['127.0.0.1/8']", "write it as 127.0.0.0/8"),
        ({}, "[http]\nallow = ['localhost']", "names are not ranges"),
        ({}, "[http]\nallow = '10.0.0.0/8'", "http.allow: it is a list"),
        ({"FERRYMAN_HTTP__ALLOW": "10.0.0.0/8"}, "", "write it in brackets"),
        ({}, "[outbox]\ntable = 'shop.hooks'", "[outbox.NAME], with a name of your own"),
        ({}, "[outbox.'a:b']\ntable = 'h'", "the name of an outbox"),
        ({}, "[outbox.'my hooks']\ntable = 'h'", "setting outbox.my hooks,"),
        ({}, "[outbox.hooks]\nchannel = 'http'", "outbox.hooks.table: it is missing"),
    ],
)
def test_mistake_in_an_outbox_or_in_http_is_refused_with_what_is_right(
    tmp_path: Path, environ: dict[str, str], text: str, said: str
) -> None:
    assert said in " ".join(problems(environ, toml(tmp_path, text)))


def test_all_problems_are_found_at_once(tmp_path: Path) -> None:
    file = toml(tmp_path, "[database]\npool_max = 0\n[log]\nlevel = 'loud'\n")
    assert len(problems({"FERRYMAN_NONSENSE": "1"}, file)) == 3


def test_a_file_that_is_not_toml_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="line 1"):
        load({}, toml(tmp_path, "this is not toml"))


def test_a_named_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot read the settings file"):
        load({}, tmp_path / "missing.toml")


def test_librdkafka_properties_pass_through_however_toml_spells_them(tmp_path: Path) -> None:
    text = (
        "[kafka]\n'security.protocol' = 'SASL_SSL'\nssl.ca.location = '/ca.pem'\nenable.idempotence = true\nacks = -1\n"
    )
    assert load({}, toml(tmp_path, text)).settings.kafka.properties == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca.pem",
        "enable.idempotence": "true",
        "acks": "-1",
    }


def test_a_property_newer_than_our_list_is_asked_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "names", lambda: frozenset({"acks"}))
    assert librdkafka.is_known("linger.ms")
    assert not librdkafka.is_known("linger.mss")


def test_no_secret_shows_in_a_settings_repr() -> None:
    environ = {"FERRYMAN_DATABASE_URL": "postgresql://u:geheim@h/d", "FERRYMAN_KAFKA__SASL_PASSWORD": "geheim"}
    assert "geheim" not in repr(load(environ).settings)


def test_a_bad_value_never_shows_in_the_error() -> None:
    assert "geheim" not in str(problems({"FERRYMAN_DATABASE__POOL_MAX": "geheim"}))


def test_every_setting_says_what_it_means_and_numbers_have_a_unit() -> None:
    for described in describe(settings_class()):
        assert described.text.endswith("."), described.name
        if described.name.endswith("_seconds"):
            assert described.unit == "seconds", described.name
