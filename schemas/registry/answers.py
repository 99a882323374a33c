"""What a registry's answer means to us, whichever client asked."""

import ssl
from collections.abc import Iterator
from http import HTTPStatus

from ferryman.runtime.errors import FerrymanError, Misconfigured, Transient, Unreachable
from ferryman.runtime.redaction import redact
from ferryman.schemas import avro
from ferryman.schemas.registry import Refused

OWN_404 = frozenset({40401, 40402, 40403})
"""The error codes of a registry that has not the subject, the version or the schema."""

CHECK_THE_URL = "check that the URL is that of the registry's Confluent API"

_TRUST = "name what signed its certificate in SSL_CERT_FILE, or as ssl.ca.location under [registry.properties]"
_SHOW_A_CERTIFICATE = "name yours as ssl.certificate.location and ssl.key.location under [registry.properties]"
_MOST_WORDS = 500


def failure(host: str, status: int, said: str) -> FerrymanError | None:
    """None for success, and for 404, whose meaning depends on what was asked."""
    said = _words(said)
    words = f"the registry {host} answers {status}{f' ({said})' if said else ''}"
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return setting(words, "give a user and password in the URL, or properties under [registry]")
    if status in {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}:
        return Refused(words, remedy="make the schema compatible with what is registered: `ferryman schemas check`")
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT} or status >= 500:
        return Unreachable(words, setting="registry_url", remedy="see what the registry's log says")
    if not (HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES or status == HTTPStatus.NOT_FOUND):
        return setting(words, CHECK_THE_URL)
    return None


def unheard(host: str, error: BaseException) -> FerrymanError:
    """Nobody answers; or somebody whose certificate is not trusted, or who wants one, which no waiting heals."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return setting(f"the certificate of the registry {host} is not trusted: {cause.verify_message}", _TRUST)
        if isinstance(cause, ssl.SSLError) and "CERTIFICATE" in (cause.reason or ""):
            return setting(f"the registry {host} wants a certificate: {cause.reason}", _SHOW_A_CERTIFICATE)
    why = _words(str(error)) or type(error).__name__
    return Unreachable(
        f"the registry {host} does not answer: {why}", setting="registry_url", remedy="start it, or correct the URL"
    )


def garbage(host: str, what: str) -> Transient:
    """Transient, so that a page that stands in for the registry for a while makes nothing poison."""
    return Transient(
        f"{host} does not answer as a registry does: {what}", setting="registry_url", remedy=CHECK_THE_URL
    )  # fmt: skip


def setting(words: str, remedy: str) -> Misconfigured:
    return Misconfigured(words, setting="registry_url", remedy=remedy)


def flaws(text: str) -> list[str]:
    """Why it is no schema of a message at all: said here, because registries say it late or take anything."""
    try:
        avro.parse(text)
    except avro.BadSchema as error:
        return [f"it is no Avro schema: {error}"]
    return []


def must_be_a_schema(text: str) -> None:
    for flaw in flaws(text):
        raise Refused(flaw, remedy="correct it")


def _words(said: str) -> str:
    return redact(said)[:_MOST_WORDS]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
