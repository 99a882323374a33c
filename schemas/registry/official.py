"""The same registry by Confluent's own client, which knows OAuth and mutual TLS: the extra `registry`."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from ferryman.runtime.errors import FerrymanError, Misconfigured, Unreachable
from ferryman.runtime.redaction import redact
from ferryman.schemas.registry import Refused, UnknownSchema, address, answers
from ferryman.schemas.registry.numbers import LARGEST, possible

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

T = TypeVar("T")

# What the client raises when it takes an answer for what it is not.
_BY_A_BAD_ANSWER = (AttributeError, KeyError, TypeError, ValueError, RecursionError)


class OfficialRegistry:
    """Its retries are switched off: whoever asks decides when to ask again."""

    def __init__(self, url: str, properties: Mapping[str, str], timeout_seconds: float = 5.0) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise Misconfigured(
                f"properties under [registry] need Confluent's client, which lacks {error.name}",
                setting="registry.properties", remedy="pip install 'ferryman[registry]'",
            ) from error  # fmt: skip
        where = address.read(url)
        self._host = where.host
        ours: dict[str, Any] = {"url": where.url, "timeout": timeout_seconds, "max.retries": 0}
        if where.login is not None:  # not in the URL, which its transport writes into logs
            ours["basic.auth.user.info"] = where.login
        try:
            self._client = SchemaRegistryClient({**ours, **properties})
        except Exception as error:  # it says what it does not like in many ways
            raise Misconfigured(
                f"Confluent's registry client does not take its properties: {redact(str(error))}",
                setting="registry.properties", remedy="see its documentation for their names",
            ) from error  # fmt: skip

    def schema(self, number: int) -> str:
        if number > LARGEST:
            raise UnknownSchema(f"no registry has a schema with id {number}")
        try:
            found = self._asked(lambda: self._client.get_schema(number))
        except Refused as error:
            raise answers.garbage(self._host, error.message) from error
        if found is None:
            raise UnknownSchema(f"the registry has no schema with id {number}")
        if not isinstance(found.schema_str, str):
            raise self._forgotten("its answer has no schema")
        return found.schema_str

    def lookup(self, subject: str, text: str) -> int | None:
        found = self._asked(lambda: self._client.lookup_schema(subject, self._avro(text)))
        return None if found is None else self._number(found.schema_id)

    def register(self, subject: str, text: str) -> int:
        answers.must_be_a_schema(text)
        number = self._asked(lambda: (self._client.register_schema(subject, self._avro(text)),))
        if number is None:
            raise answers.garbage(self._host, "it takes no schemas")
        return self._number(*number)

    def objections(self, subject: str, text: str) -> list[str]:
        if flaws := answers.flaws(text):
            return flaws
        try:
            fits = self._asked(lambda: (self._client.test_compatibility_all_versions(subject, self._avro(text)),))
        except Refused as error:
            return [error.message]
        if fits is None:  # nothing is there to be compatible with
            return []
        if not isinstance(fits[0], bool):
            raise self._forgotten("its answer has no is_compatible")
        return [] if fits[0] else ["it breaks a version that is registered"]

    def insist(self, subject: str, level: str) -> None:
        if self._asked(lambda: self._client.set_compatibility(subject, level)) is None:
            raise answers.garbage(self._host, "its subjects have no configuration")

    @staticmethod
    def _avro(text: str) -> "Schema":
        from confluent_kafka.schema_registry import Schema

        return Schema(text, "AVRO")

    def _number(self, number: Any) -> int:
        if not possible(number):
            raise self._forgotten("its answer has no id")
        return number

    def _asked(self, question: Callable[[], T]) -> T | None:
        """The answer; None for a 404 of the registry's own."""
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            return question()
        except SchemaRegistryError as error:
            if error.http_status_code == HTTPStatus.NOT_FOUND and error.error_code in answers.OWN_404:
                return None
            raise self._failure(error.http_status_code, error.error_code, error.error_message) from error
        except OAuthTokenError as error:
            raise Unreachable(
                f"no token is to be had for the registry {self._host}: {redact(error.message)}",
                setting="registry.properties", remedy="see what the issuer of tokens says",
            ) from error  # fmt: skip
        except _BY_A_BAD_ANSWER as error:
            raise self._forgotten("what it says is not what was asked for") from error
        except Exception as error:  # what its transport raises when nobody answers
            raise answers.unheard(self._host, error) from error

    def _failure(self, status: int, code: int | None, said: str | None) -> FerrymanError:
        """Words only of a registry's own: others' would be a whole page."""
        words = said if said and code not in {None, -1} else ""
        return answers.failure(self._host, status, words) or answers.garbage(self._host, "its 404 is not a registry's")

    def _forgotten(self, what: str) -> FerrymanError:
        """The client keeps whatever answer it got, and would give it again."""
        self._client.clear_caches()  # type: ignore[no-untyped-call]
        return answers.garbage(self._host, what)
