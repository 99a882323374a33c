"""A registry server, by Confluent's REST API: the calls that are needed, what each answer means, and the way there.

The properties (TLS, and the credentials that each request carries) have the names that Confluent's clients give them.
"""

import base64
import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient, Unreachable
from ferryman.runtime.redaction import redact
from ferryman.schemas.registry import LARGEST_ID, SchemaRefused, UnknownSchema, flaws, is_id, refuse_flaws

CA, CERTIFICATE, KEY, KEY_PASSWORD = (
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
)  # fmt: skip
CLIENT, SECRET, SCOPE, ISSUER, TOKEN = (
    "bearer.auth.client.id", "bearer.auth.client.secret", "bearer.auth.scope", "bearer.auth.issuer.endpoint.url",
    "bearer.auth.token",
)  # fmt: skip
_HEADERS = {
    "bearer.auth.logical.cluster": "target-sr-cluster",
    "bearer.auth.identity.pool.id": "Confluent-Identity-Pool-Id",
}
_KNOWN = {CA, CERTIFICATE, KEY, KEY_PASSWORD, TOKEN, CLIENT, SECRET, SCOPE, ISSUER, *_HEADERS}
_NEEDS = ((KEY, CERTIFICATE), (ISSUER, CLIENT), (ISSUER, SECRET), (CLIENT, ISSUER))

_MEDIA = "application/vnd.schemaregistry.v1+json"
_OWN_404 = (40401, 40402, 40403)
"""The error codes of a registry that does not have the subject, the version or the schema."""
_MOST_BYTES = 8 * 1024 * 1024
"""An answer is read up to this size and one chunk more."""
_CHUNK_BYTES = 64 * 1024
_MOST_WORDS = 500
_SHARE_OF_LIFE = 0.8
_LIFE_SECONDS = 300.0
_BLANK = re.compile(r"[\x00-\x20\x7f]")
_CHECK_THE_URL = "check that the URL is that of the registry's Confluent API"
_WRITE_A_URL = (
    "write http://host:port/path, without a query or a fragment, or file:///folder; percent-encode special characters "
    "in a user and password"
)


class ConfluentRegistry:
    """A client that asks once and never retries: the caller decides when to ask again."""

    def __init__(self, url: str, timeout_seconds: float = 5.0, properties: Mapping[str, str] | None = None) -> None:
        given = properties or {}
        _check_properties(given)
        self._server = BoundedClient(url, timeout_seconds, given)
        self._credentials = Credentials(self._server.login, given, timeout_seconds)
        self._host = self._server.host
        self.url = f"{self._host}{self._server.path}"
        """The URL without the login."""

    def schema(self, number: int) -> str:
        # Registries answer a larger number with the 404 of an unknown path, and foreign bytes would wait for ever.
        if number > LARGEST_ID:
            raise UnknownSchema(f"no registry has a schema with id {number}")
        try:
            answer = self._ask("GET", f"/schemas/ids/{number}")
        except SchemaRefused as error:
            raise self._garbage(error.message) from error
        if answer is None:
            raise UnknownSchema(f"the registry has no schema with id {number}")
        return str(self._field(answer, "schema", str))

    def lookup(self, subject: str, text: str) -> int | None:
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}", {"schema": text})
        return None if answer is None else self._number(answer)

    def register(self, subject: str, text: str) -> int:
        refuse_flaws(text)
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": text})
        if answer is None:
            raise self._garbage("it does not register schemas")
        return self._number(answer)

    def objections(self, subject: str, text: str) -> list[str]:
        if found := flaws(text):
            return found
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions?verbose=true"
        try:
            answer = self._ask("POST", path, {"schema": text})
        except SchemaRefused as error:
            return [error.message]
        if answer is None or self._field(answer, "is_compatible", bool):  # None: the subject has no versions yet
            return []
        messages = answer.get("messages")
        said = [str(each) for each in messages] if isinstance(messages, list) else []
        return said or ["it breaks a version that is registered"]

    def insist(self, subject: str, level: str) -> None:
        if self._ask("PUT", f"/config/{quote(subject, safe='')}", {"compatibility": level}) is None:
            raise self._garbage("its subjects have no configuration")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the answer, or None for a 404 of the registry's own."""
        headers = {"Accept": f"{_MEDIA}, application/json", "Content-Type": _MEDIA, **self._credentials.headers()}
        sent = json.dumps(body) if body is not None else None
        try:
            status, content = self._server.request(method, path, sent, headers)
        except OSError as error:
            raise self._no_answer(error) from error
        except http.client.HTTPException as error:
            raise self._garbage(f"it does not speak HTTP ({type(error).__name__})") from error
        return self._understood(status, content)

    def _understood(self, status: int, content: bytes) -> dict[str, Any] | None:
        whole = len(content) <= _MOST_BYTES
        try:
            answer = json.loads(content) if whole else None
        except (ValueError, RecursionError):
            answer = None
        fields = answer if isinstance(answer, dict) else {}
        self._raise_failure(status, redact(str(fields.get("message") or ""))[:_MOST_WORDS])
        if status == HTTPStatus.NOT_FOUND:
            if fields.get("error_code") in _OWN_404:
                return None
            raise self._garbage("its 404 is not a registry's")
        if not isinstance(answer, dict):
            raise self._garbage("its answer is not a JSON object" if whole else "its answer is too large")
        return answer

    def _raise_failure(self, status: int, said: str) -> None:
        """Raise the error that a status means; return for success and for 404, which depends on the request."""
        words = f"the registry {self._host} answers {status}{f' ({said})' if said else ''}"
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise _wrong_setting(words, "give a user and password in the URL, or properties under [registry]")
        if status in {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}:
            raise SchemaRefused(words, remedy="make it compatible with what is registered: `ferryman schemas check`")
        if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT} or status >= 500:
            raise Unreachable(words, setting="registry_url", remedy="see what the registry's log says")
        if not (HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES or status == HTTPStatus.NOT_FOUND):
            raise _wrong_setting(words, _CHECK_THE_URL)

    def _no_answer(self, error: OSError) -> FerrymanError:
        """Tell a certificate that is not trusted or missing, which no waiting heals, from a server that is away."""
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                return _wrong_setting(
                    f"the certificate of the registry {self._host} is not trusted: {cause.verify_message}",
                    f"name the authority that signed it in SSL_CERT_FILE, or as {CA} under [registry.properties]",
                )
            if isinstance(cause, ssl.SSLError) and "CERTIFICATE" in (cause.reason or ""):
                return _wrong_setting(
                    f"the registry {self._host} asks for a certificate of yours: {cause.reason}",
                    f"name it as {CERTIFICATE} and {KEY} under [registry.properties]",
                )
        why = redact(str(error))[:_MOST_WORDS] or type(error).__name__
        return Unreachable(
            f"the registry {self._host} does not answer: {why}", setting="registry_url",
            remedy="start it, or correct the URL",
        )  # fmt: skip

    def _number(self, answer: dict[str, Any]) -> int:
        if not is_id(number := answer.get("id")):
            raise self._garbage("its answer has no valid id")
        return number

    def _field(self, answer: dict[str, Any], name: str, kind: type) -> Any:
        if not isinstance(answer.get(name), kind):
            raise self._garbage(f"its answer has no valid {name}")
        return answer[name]

    def _garbage(self, what: str) -> Transient:
        """Return a transient error: a page that stands in for the registry for a while must not reject messages."""
        return Transient(
            f"{self._host} does not answer as a registry does: {what}", setting="registry_url", remedy=_CHECK_THE_URL
        )


def _wrong_setting(words: str, remedy: str) -> Misconfigured:
    return Misconfigured(words, setting="registry_url", remedy=remedy)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class BoundedClient:
    """A client of one server: a connection per request, with a deadline and a limit on the answer's size."""

    def __init__(
        self, url: str, timeout_seconds: float, properties: Mapping[str, str], *, what: str = "the registry URL",
        setting: str = "registry_url",
    ) -> None:  # fmt: skip
        try:
            parts = _parsed(url)
        except ValueError:
            # Not as the cause: a library's error would show pieces of a password.
            raise Misconfigured(f"{what} is not valid", setting=setting, remedy=_WRITE_A_URL) from None
        self.host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.path = quote(parts.path.rstrip("/"), safe="/%:;,=+~!$&'()*")
        self.login = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        self._timeout = timeout_seconds
        tls = _tls_context(properties) if properties or parts.scheme == "https" else None
        kind = (
            partial(http.client.HTTPSConnection, context=tls) if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connect = partial(kind, parts.hostname or "", parts.port, timeout=timeout_seconds)

    def request(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return status and content. Raise OSError or HTTPException if there is no whole answer in time."""
        deadline = time.monotonic() + self._timeout
        connection = self._connect()
        try:
            connection.request(method, self.path + path, body, dict(headers))
            with connection.getresponse() as answer:
                return answer.status, _content(answer, deadline)
        except (ssl.SSLEOFError, ConnectionError):
            # A server that refuses our certificate may hang up before it reads a request. Its TLS alert says so.
            if connection.sock is not None:
                connection.sock.recv(1)
            raise
        finally:
            connection.close()


def _parsed(url: str) -> SplitResult:
    """Return the parts of a URL that can be asked, or raise ValueError."""
    parts = urlsplit(url)
    hostname, _ = parts.hostname or "", parts.port
    hostname.encode("idna")
    if parts.scheme not in {"http", "https"} or not hostname or "@" in parts.path or _BLANK.search(url):
        raise ValueError
    if parts.query or parts.fragment:  # a password with ? or # that is not percent-encoded, or a token
        raise ValueError
    return parts


def _content(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read until the limit or the deadline: a socket's own timeout begins again with every byte."""
    content = b""
    while len(content) <= _MOST_BYTES and (more := answer.read1(_CHUNK_BYTES)):
        content += more
        if time.monotonic() > deadline:
            raise TimeoutError("its answer takes too long")
    if len(content) <= _MOST_BYTES and answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return content


class Credentials:
    """The headers that identify us: a login, a static token, or OAuth tokens by the client credentials grant."""

    def __init__(self, login: str | None, properties: Mapping[str, str], timeout_seconds: float) -> None:
        self._fixed = {header: properties[name] for name, header in _HEADERS.items() if name in properties}
        self._properties = properties
        self._issuer: BoundedClient | None = None
        self._renew_at = 0.0
        if ISSUER in properties:
            self._issuer = BoundedClient(
                properties[ISSUER], timeout_seconds, properties, what="the URL of the token issuer",
                setting="registry.properties",
            )  # fmt: skip
        elif TOKEN in properties:
            self._fixed["Authorization"] = f"Bearer {properties[TOKEN]}"
        elif login is not None:
            self._fixed["Authorization"] = _basic(login)

    def headers(self) -> Mapping[str, str]:
        """Return the headers for one request; ask the issuer for a token if the last one is about to expire."""
        if self._issuer is not None and time.monotonic() >= self._renew_at:
            token, seconds = self._granted(self._issuer)
            self._fixed["Authorization"] = f"Bearer {token}"
            self._renew_at = time.monotonic() + _SHARE_OF_LIFE * seconds
        return self._fixed

    def _granted(self, issuer: BoundedClient) -> tuple[str, float]:
        form = {"grant_type": "client_credentials", "scope": self._properties.get(SCOPE)}
        login = ":".join(quote(self._properties[name], safe="") for name in (CLIENT, SECRET))  # as RFC 6749 says
        headers = {
            "Authorization": _basic(login), "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }  # fmt: skip
        body = urlencode({name: value for name, value in form.items() if value})
        try:
            status, content = issuer.request("POST", "", body, headers)
            said = json.loads(content)
            if status == HTTPStatus.OK:
                return _header_value(said["access_token"]), float(said.get("expires_in") or _LIFE_SECONDS)
            why = str(said["error"])
        except OSError as error:
            raise _no_token(issuer, redact(str(error))) from error
        except (http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _no_token(issuer, "its answer is not a token") from error
        if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED}:
            raise Misconfigured(
                f"the token issuer {issuer.host} refuses us: {redact(why)}", setting="registry.properties",
                remedy=f"correct {CLIENT}, {SECRET} and {SCOPE}",
            )  # fmt: skip
        raise _no_token(issuer, f"it answers {status}")


def _no_token(issuer: BoundedClient, why: str) -> Unreachable:
    return Unreachable(
        f"there is no token for the registry: the token issuer {issuer.host} does not give one: {why}",
        setting="registry.properties", remedy="see what the log of the token issuer says",
    )  # fmt: skip


def _check_properties(properties: Mapping[str, str]) -> None:
    """Raise `Misconfigured` for a property that is not known, and for one that lacks the others it needs."""
    for name in properties.keys() - _KNOWN:
        raise _unusable(f"{name} is not one of them", f"they are {', '.join(sorted(_KNOWN))}")
    for name in properties.keys() & {TOKEN, *_HEADERS}:
        try:
            _header_value(properties[name])
        except ValueError:
            raise _unusable(f"{name} has characters that HTTP does not allow", f"correct {name}") from None
    for name, needed in _NEEDS:
        if name in properties and needed not in properties:
            raise _unusable(f"{name} needs {needed}", f"add {needed}")


def _tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS settings: SSL_CERT_FILE and the system's authorities unless one is named; our certificate."""
    try:
        context = ssl.create_default_context(cafile=properties.get(CA))
        if CERTIFICATE in properties:
            # Without any password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(properties[CERTIFICATE], properties.get(KEY), properties.get(KEY_PASSWORD, ""))
    except OSError as error:
        raise _unusable(
            f"a certificate or key cannot be read: {error}", f"correct {CA}, {CERTIFICATE}, {KEY}"
        ) from error
    return context


def _unusable(why: str, remedy: str) -> Misconfigured:
    return Misconfigured(
        f"the registry's properties cannot be used: {why}", setting="registry.properties", remedy=remedy
    )


def _header_value(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise ValueError("it cannot be a header's value")
    return text


def _basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"
