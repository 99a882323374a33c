"""Connections to a registry: logins, tokens and certificates reach it, and errors name what keeps us from it."""

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
from ferryman.schemas.registry.confluent import ConfluentRegistry
from support.answering import Served, certificate, says, serving
from support.registries import (
    ASKS,
    LOGIN,
    PASSWORD,
    TEXT,
    error_of,
    errors_of,
    with_login,
)


def test_a_server_that_accepts_and_says_nothing_is_unreachable_after_the_timeout() -> None:
    def silent(_: Any) -> None:
        served.over.wait(10)

    with serving(silent) as served:
        began = time.monotonic()
        for error in errors_of(ConfluentRegistry(with_login(served.url), timeout_seconds=0.1)):
            assert isinstance(error, Unreachable)
            assert "timed out" in str(error)
        assert time.monotonic() - began < 5


def test_a_registry_that_does_not_listen_is_unreachable() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        for error in errors_of(ConfluentRegistry(f"http://{LOGIN}127.0.0.1:{bound.getsockname()[1]}/apis")):
            assert isinstance(error, Unreachable)
            assert "refused" in str(error)
            assert error.remedy == "start it, or correct the URL"


def test_a_host_that_does_not_resolve_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = error_of(ASKS["schema"], ConfluentRegistry(f"http://{LOGIN}registry.invalid:8081"))
    assert isinstance(error, Unreachable)
    assert "http://registry.invalid:8081" in str(error)
    assert "not known" in str(error)


def test_user_and_password_of_the_url_reach_the_server_decoded_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving(says(200, {"schema": TEXT})) as served, caplog.at_level(logging.DEBUG):
        assert ConfluentRegistry(with_login(served.url) + "/apis/ccompat/v7/").schema(7) == TEXT
    kind, _, said = served.asked[0].headers["Authorization"].partition(" ")
    assert (kind, base64.b64decode(said).decode()) == ("Basic", f"us@er:{PASSWORD}")
    assert served.asked[0].path == "/apis/ccompat/v7/schemas/ids/7"
    assert "p%40ss" not in caplog.text
    assert PASSWORD not in caplog.text


def test_a_token_as_the_user_alone_reaches_the_server_too() -> None:
    with serving(says(200, {"schema": TEXT})) as served:
        ConfluentRegistry(served.url.replace("://", "://token@")).schema(7)
    assert base64.b64decode(served.asked[0].headers["Authorization"].partition(" ")[2]) == b"token:"


def test_a_subject_is_one_part_of_the_path() -> None:
    with serving(says(200, {"id": 7})) as served:
        assert ConfluentRegistry(served.url).register("../a/b?c", TEXT) == 7
    assert served.asked[0].path.partition("?")[0] == "/subjects/..%2Fa%2Fb%3Fc/versions"
    assert json.loads(served.asked[0].body)["schema"] == TEXT


def test_a_static_token_reaches_the_server_with_the_headers_of_confluent_cloud() -> None:
    properties = {
        "bearer.auth.token": "t0ken", "bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "pool-1",
    }  # fmt: skip
    with serving(says(200, {"schema": TEXT})) as served:
        assert ConfluentRegistry(served.url, properties=properties).schema(7) == TEXT
    headers = served.asked[0].headers
    assert headers["Authorization"] == "Bearer t0ken"
    assert (headers["target-sr-cluster"], headers["Confluent-Identity-Pool-Id"]) == ("lsrc-1", "pool-1")


def oauth(issuer: str) -> dict[str, str]:
    return {
        "bearer.auth.client.id": "me", "bearer.auth.client.secret": "s3cret", "bearer.auth.scope": "registry",
        "bearer.auth.issuer.endpoint.url": issuer,
    }  # fmt: skip


@pytest.mark.parametrize(("lifetime", "asked"), [(300, 1), (1e-9, 3)])
def test_an_oauth_token_is_asked_for_once_and_again_when_it_is_about_to_expire(lifetime: float, asked: int) -> None:
    token = says(200, {"access_token": "t0ken", "token_type": "Bearer", "expires_in": lifetime})
    with serving(token) as issuer, serving(says(200, {"schema": TEXT})) as served:
        registry = ConfluentRegistry(served.url, properties=oauth(f"{issuer.url}/oauth/token"))
        for _ in range(3):
            assert registry.schema(7) == TEXT
    assert [each.headers["Authorization"] for each in served.asked] == ["Bearer t0ken"] * 3
    assert len(issuer.asked) == asked
    request = issuer.asked[0]
    assert (request.method, request.path) == ("POST", "/oauth/token")
    assert request.body == "grant_type=client_credentials&scope=registry"
    assert base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")) == b"me:s3cret"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (says(503), Unreachable),
        (says(200, b"<html>"), Unreachable),
        (says(200, {"token": "x"}), Unreachable),
        (says(200, {"access_token": "two\r\nlines"}), Unreachable),
        (says(200, {"access_token": 7}), Unreachable),
        (says(500, {"error": "server_error"}), Unreachable),
        (says(401, b"<html>"), Unreachable),
        (says(401, {"error": "invalid_client"}), Misconfigured),
        (says(400, {"error": "invalid_scope"}), Misconfigured),
    ],
)
def test_an_error_of_the_token_issuer_is_distinguished_from_one_of_the_registry(answer: Any, kind: type) -> None:
    with serving(answer) as issuer:
        error = error_of(ASKS["schema"], ConfluentRegistry("http://127.0.0.1:1", properties=oauth(issuer.url)))
    assert isinstance(error, kind)
    assert error.setting == "registry.properties"
    assert "token issuer" in str(error)
    assert "s3cret" not in str(error)


def test_a_token_issuer_that_does_not_answer_is_unreachable() -> None:
    error = error_of(ASKS["schema"], ConfluentRegistry("http://127.0.0.1:1", properties=oauth("http://127.0.0.1:2")))
    assert isinstance(error, Unreachable)
    assert "http://127.0.0.1:2" in str(error)


@pytest.mark.parametrize(
    "properties",
    [
        {"nonsense": "1"}, {"ssl.key.location": "x"}, {"ssl.ca.location": "/none"}, {"bearer.auth.client.id": "me"},
        {"bearer.auth.issuer.endpoint.url": "http://issuer"}, {**oauth("no url")},
        {"bearer.auth.token": "t0ken\n"},
    ],
)  # fmt: skip
def test_properties_that_cannot_be_used_are_a_misconfiguration(properties: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match=r"registry\.properties") as raised:
        ConfluentRegistry(f"http://{LOGIN}registry:8081", properties=properties)
    assert "t0ken" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081", "ftp://registry/", "http://", "http:///path", "http://user:12/34@host", "http://user:p#ss@host",
        "http://user:pa/ss@host",
        "http://user:1?ss@host", "http://[::1", "http://host:port", "http://host:99999", "http://a..b/", "http://a b/",
        "http://one:8081,http://two:8081", f"http://{'x' * 70}.example/", "http://host/\x00",
    ],
)  # fmt: skip
def test_an_invalid_url_is_a_misconfiguration_that_does_not_show_it(url: str) -> None:
    with pytest.raises(Misconfigured, match=r"the registry URL is not valid.*\[setting registry_url") as raised:
        ConfluentRegistry(url)
    shown = "".join(traceback.format_exception(raised.value.with_traceback(None), chain=True))
    for secret in ("12/34", "p#ss", "1?ss", "'pa"):
        assert secret not in shown


def test_a_url_with_a_query_is_a_misconfiguration() -> None:
    with pytest.raises(Misconfigured, match="without a query or a fragment"):
        ConfluentRegistry("http://host:8081/?token=t0ken")


def test_an_ipv6_address_is_shown_as_it_was_written() -> None:
    error = error_of(ASKS["schema"], ConfluentRegistry(f"http://{LOGIN}[::1]:1/"))
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


def test_a_certificate_that_is_not_trusted_is_a_misconfiguration(trusted_by_nobody: Served) -> None:
    """Waiting does not help."""
    for error in errors_of(ConfluentRegistry(with_login(trusted_by_nobody.url))):
        assert isinstance(error, Misconfigured)
        assert error.setting == "registry_url"
        assert "is not trusted: self-signed certificate" in str(error)
        assert "SSL_CERT_FILE" in str(error)
        assert "ssl.ca.location" in str(error)
    assert trusted_by_nobody.asked == []


def test_a_certificate_that_ssl_cert_file_names_is_trusted(
    trusted_by_nobody: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    assert ConfluentRegistry(trusted_by_nobody.url).schema(7) == TEXT


def test_a_certificate_of_another_host_is_a_misconfiguration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = certificate(tmp_path, "127.0.0.2")
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with serving(says(200, {"schema": TEXT}), tls=server_side(pem)) as served:
        error = error_of(ASKS["schema"], ConfluentRegistry(served.url))
    assert isinstance(error, Misconfigured)
    assert "not valid for '127.0.0.1'" in str(error)


def test_a_certificate_of_ours_is_shown_and_its_absence_is_a_misconfiguration(tmp_path: Path) -> None:
    pem = str(certificate(tmp_path, "127.0.0.1"))
    mutual = server_side(Path(pem))
    mutual.verify_mode = ssl.CERT_REQUIRED
    mutual.load_verify_locations(pem)
    with serving(says(200, {"schema": TEXT}), tls=mutual) as served:
        both = {"ssl.ca.location": pem, "ssl.certificate.location": pem}
        assert ConfluentRegistry(served.url, properties=both).schema(7) == TEXT
        error = error_of(ASKS["schema"], ConfluentRegistry(served.url, properties={"ssl.ca.location": pem}))
    assert isinstance(error, Misconfigured)
    assert "ssl.certificate.location" in str(error)


def test_https_to_a_server_without_tls_is_unreachable() -> None:
    with serving(says(200, {"schema": TEXT})) as served:
        error = error_of(ASKS["schema"], ConfluentRegistry(with_login(served.url).replace("http:", "https:")))
    assert isinstance(error, Unreachable)
