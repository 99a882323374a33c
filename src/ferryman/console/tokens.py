"""Who asks: bearer tokens, known by their SHA-256 and compared in constant time."""

import hashlib
import hmac
from dataclasses import dataclass, field

from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_api import Api

MAKE_ONE = (
    "make one with `openssl rand -hex 32`, keep it with the client, and set its SHA-256 "
    "(`printf %s TOKEN | openssl sha256 -r`) as api.tokens.NAME.sha256, with api.tokens.NAME.scopes"
)

_OF_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a token stands for, and what they may do."""

    name: str
    scopes: frozenset[str] = frozenset()
    everything: bool = False

    def may(self, scope: str) -> bool:
        return self.everything or scope in self.scopes


@dataclass(frozen=True, slots=True)
class Keyring:
    """The tokens of the settings; an open API takes everyone for somebody who may do everything."""

    callers: dict[str, Caller] = field(repr=False)
    open: bool = False

    def caller(self, authorization: str | None) -> Caller | None:
        """Of an `Authorization` header. Each token is compared, so the time says nothing of which one came near."""
        if self.open:
            return Caller("everyone", everything=True)
        kind, _, given = (authorization or "").partition(" ")
        token = given.strip()
        if kind.lower() != "bearer" or not token:
            return None
        shown = hashlib.sha256(token.encode()).hexdigest()
        found = [caller for known, caller in self.callers.items() if hmac.compare_digest(known, shown)]
        return found[0] if found else None


def keyring(api: Api) -> Keyring:
    """Refuses to be without a token, and to be open beside them."""
    if api.open and api.tokens:
        raise Misconfigured(
            "api.open lets everyone in, and there are tokens", setting="api.open", remedy="keep one of the two"
        )
    if not api.open and not api.tokens:
        raise Misconfigured("the API has no token: nobody could ask it anything", setting="api.tokens", remedy=MAKE_ONE)
    callers: dict[str, Caller] = {}
    for name, token in api.tokens.items():
        if token.sha256 == _OF_NOTHING:
            raise Misconfigured(f"the token of {name} is empty", setting=f"api.tokens.{name}.sha256", remedy=MAKE_ONE)
        if twin := callers.get(token.sha256):
            raise Misconfigured(
                f"{twin.name} and {name} have the same token", setting=f"api.tokens.{name}.sha256", remedy=MAKE_ONE
            )
        callers[token.sha256] = Caller(name, frozenset(token.scopes))
    return Keyring(callers, api.open)
