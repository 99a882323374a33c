"""How a registry is reached: logins, tokens and certificates get there, and what keeps us from it is said."""

import base64
import json
import logging
import socket
import ssl
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.runtime.errors import Misconfigured, Unreachable
from ferryman.schemas.registry.official import OfficialRegistry
from support.answering import Served, certificate, says, serving
from support.registries import (
    ASKS,
    CLIENTS,
    LOGIN,
    PASSWORD,
    TEXT,
    Client,
    connecting,
    error_of,
    errors_of,
    with_login,
)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with connecting(request.param) as connected:
        yield connected


def test_who_accepts_and_says_nothing_is_unreachable_when_the_time_is_over(client: Client) -> None:
    def silent(_: Any) -> None:
        served.over.wait(10)

    with serving(silent) as served:
        began = time.monotonic()
        for error in errors_of(client(with_login(served.url), timeout_seconds=0.1)):
            assert isinstance(error, Unreachable)
            assert "timed out" in str(error)
        assert time.monotonic() - began < 5


def test_where_nobody_listens_the_registry_is_unreachable(client: Client) -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        for error in errors_of(client(f"http://{LOGIN}127.0.0.1:{bound.getsockname()[1]}/apis")):
            assert isinstance(error, Unreachable)
            assert "refused" in str(error)
            assert error.remedy == "start it, or correct the URL"


def test_a_host_that_does_not_resolve_is_unreachable(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = error_of(ASKS["schema"], client(f"http://{LOGIN}registry.invalid:8081"))
    assert isinstance(error, Unreachable)
    assert "http://registry.invalid:8081" in str(error)
    assert "not known" in str(error)


def test_user_and_password_of_the_url_reach_the_server_decoded_and_no_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(says(200, {"schema": TEXT})) as served, caplog.at_level(logging.DEBUG):
        assert client(with_login(served.url) + "/apis/ccompat/v7/").schema(7) == TEXT
    kind, _, said = served.asked[0].headers["Authorization"].partition(" ")
    assert (kind, base64.b64decode(said).decode()) == ("Basic", f"us@er:{PASSWORD}")
    assert served.asked[0].path == "/apis/ccompat/v7/schemas/ids/7"
    assert "p%40ss" not in caplog.text
    assert PASSWORD not in caplog.text


def test_a_token_as_the_user_alone_reaches_the_server_too(client: Client) -> None:
    with serving(says(200, {"schema": TEXT})) as served:
        client(served.url.replace("://", "://token@")).schema(7)
    assert base64.b64decode(served.asked[0].headers["Authorization"].partition(" ")[2]) == b"token:"


def test_a_subject_is_one_part_of_the_path(client: Client) -> None:
    with serving(says(200, {"id": 7})) as served:
        assert client(served.url).register("../a/b?c", TEXT) == 7
    assert served.asked[0].path.partition("?")[0] == "/subjects/..%2Fa%2Fb%3Fc/versions"
    assert json.loads(served.asked[0].body)["schema"] == TEXT


def test_confluents_client_shows_a_token() -> None:
    token = {
        "bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "t0ken",
        "bearer.auth.logical.cluster": "lsrc-1",
    }  # fmt: skip
    with serving(says(200, {"schema": TEXT})) as served:
        registry = OfficialRegistry(served.url, token)
        assert registry.schema(7) == TEXT
        registry._client.close()
    assert served.asked[0].headers["Authorization"] == "Bearer t0ken"


def test_an_issuer_of_tokens_that_is_away_is_told_apart_from_the_registry() -> None:
    with serving(says(503)) as issuer:
        registry = OfficialRegistry(
            "http://127.0.0.1:1",
            {
                "bearer.auth.credentials.source": "OAUTHBEARER", "bearer.auth.client.id": "me",
                "bearer.auth.client.secret": "s3cret", "bearer.auth.scope": "registry",
                "bearer.auth.issuer.endpoint.url": issuer.url, "bearer.auth.logical.cluster": "lsrc-1",
                "bearer.auth.identity.pool.id": "pool-1",
            },
        )  # fmt: skip
        error = error_of(ASKS["schema"], registry)
        registry._client.close()
    assert isinstance(error, Unreachable)
    assert error.setting == "registry.properties"
    assert "no token" in str(error)
    assert "s3cret" not in str(error)


@pytest.mark.parametrize("properties", [{"nonsense": "1"}, {"ssl.key.location": "x"}, {"ssl.ca.location": "/none"}])
def test_properties_that_confluents_client_does_not_take_are_told(properties: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match=r"does not take its properties.*registry\.properties"):
        OfficialRegistry(f"http://{LOGIN}registry:8081", properties)


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081", "ftp://registry/", "http://", "http:///path", "http://user:12/34@host", "http://user:p#ss@host",
        "http://user:pa/ss@host",
        "http://user:1?ss@host", "http://[::1", "http://host:port", "http://host:99999", "http://a..b/", "http://a b/",
        "http://one:8081,http://two:8081", f"http://{'x' * 70}.example/", "http://host/\x00",
    ],
)  # fmt: skip
def test_what_is_no_url_is_a_misconfiguration_that_shows_none_of_it(client: Client, url: str) -> None:
    with pytest.raises(Misconfigured, match=r"the registry's URL is none.*\[setting registry_url") as raised:
        client(url)
    shown = "".join(traceback.format_exception(raised.value.with_traceback(None), chain=True))
    for secret in ("12/34", "p#ss", "1?ss", "'pa"):
        assert secret not in shown


def test_a_url_with_a_query_is_a_misconfiguration(client: Client) -> None:
    with pytest.raises(Misconfigured, match="a query or a fragment"):
        client("http://host:8081/?token=t0ken")


def test_an_ipv6_address_is_shown_as_it_was_written(client: Client) -> None:
    error = error_of(ASKS["schema"], client(f"http://{LOGIN}[::1]:1/"))
    assert isinstance(error, Unreachable)
    assert "http://[::1]:1 " in str(error)


def server_side(pem: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


@pytest.fixture
def trusted_by_nobody(tmp_path: Path) -> Iterator[Served]:
    with serving(says(200, {"schema": TEXT}), tls=server_side(certificate(tmp_path, "127.0.0.1"))) as served:
        yield served


def test_a_certificate_that_is_not_trusted_is_a_misconfiguration(client: Client, trusted_by_nobody: Served) -> None:
    """No waiting heals it."""
    for error in errors_of(client(with_login(trusted_by_nobody.url))):
        assert isinstance(error, Misconfigured)
        assert error.setting == "registry_url"
        assert "is not trusted: self-signed certificate" in str(error)
        assert "SSL_CERT_FILE" in str(error)
        assert "ssl.ca.location" in str(error)
    assert trusted_by_nobody.asked == []


def test_a_certificate_that_ssl_cert_file_names_is_trusted(
    client: Client, trusted_by_nobody: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    assert client(trusted_by_nobody.url).schema(7) == TEXT


def test_a_certificate_of_another_host_is_a_misconfiguration(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = certificate(tmp_path, "127.0.0.2")
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with serving(says(200, {"schema": TEXT}), tls=server_side(pem)) as served:
        error = error_of(ASKS["schema"], client(served.url))
    assert isinstance(error, Misconfigured)
    assert "not valid for '127.0.0.1'" in str(error)


def test_confluents_client_shows_a_certificate_and_who_has_none_is_told(tmp_path: Path) -> None:
    pem = str(certificate(tmp_path, "127.0.0.1"))
    mutual = server_side(Path(pem))
    mutual.verify_mode = ssl.CERT_REQUIRED
    mutual.load_verify_locations(pem)
    with serving(says(200, {"schema": TEXT}), tls=mutual) as served:
        known = OfficialRegistry(served.url, {"ssl.ca.location": pem, "ssl.certificate.location": pem})
        stranger = OfficialRegistry(served.url, {"ssl.ca.location": pem})
        assert known.schema(7) == TEXT
        error = error_of(ASKS["schema"], stranger)
        for each in (known, stranger):
            each._client.close()
    assert isinstance(error, Misconfigured)
    assert "ssl.certificate.location" in str(error)


def test_https_where_there_is_none_is_unreachable(client: Client) -> None:
    with serving(says(200, {"schema": TEXT})) as served:
        error = error_of(ASKS["schema"], client(with_login(served.url).replace("http:", "https:")))
    assert isinstance(error, Unreachable)
