"""Subscriptions: which events go to which endpoint, and the secrets that sign them."""

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg.rows import class_row

from ferryman import InvalidEndpoint, Permanent, check_endpoint
from ferryman.services.webhooks.events import KeyReused, request_hash
from ferryman.services.webhooks.webhooks_settings import WebhooksSettings

Connection: TypeAlias = "psycopg.Connection[Any]"

OVERLAP_SECONDS = 86_400.0
"""The time for which the former secrets sign beside a new one."""
MOST_SECRETS = 5
"""The most secrets that sign at once: each is a part of a header."""
MOST_ENDPOINT_CHARACTERS = 2000
_FORGET_SECONDS = 7 * 86_400.0
"""The time for which a secret that has expired is kept."""

_COLUMNS = """\
id, endpoint, event_types, active, paused, max_retry_limit, base_seconds, cap_seconds, created_at, updated_at,
failing_since, disabled_at, disabled_reason"""

_CREATE = f"""\
-- webhooks.subscribe
INSERT INTO webhooks.subscriptions
    (endpoint, event_types, paused, max_retry_limit, base_seconds, cap_seconds, idempotency_key, request_hash)
VALUES (%(endpoint)s, %(event_types)s, %(paused)s, %(max_retry_limit)s, %(base_seconds)s, %(cap_seconds)s, %(key)s,
        %(hash)s)
ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING {_COLUMNS}
"""  # noqa: S608 - literals

_KNOWN = """\
-- webhooks.known_subscription
SELECT id, request_hash FROM webhooks.subscriptions WHERE idempotency_key = %(key)s
"""

_FIND = f"""\
-- webhooks.find_subscription
SELECT {_COLUMNS} FROM webhooks.subscriptions WHERE id = %(id)s
"""  # noqa: S608 - literals

_LIST = f"""\
-- webhooks.list_subscriptions
SELECT {_COLUMNS} FROM webhooks.subscriptions
WHERE id < %(behind)s
  AND (%(active)s::boolean IS NULL OR active = %(active)s) AND (%(paused)s::boolean IS NULL OR paused = %(paused)s)
  AND (%(event_type)s::text IS NULL OR event_types @> ARRAY[%(event_type)s])
ORDER BY id DESC LIMIT %(most)s
"""  # noqa: S608 - literals

_CHANGE = f"""\
-- webhooks.change_subscription
UPDATE webhooks.subscriptions
SET endpoint = %(endpoint)s, event_types = %(event_types)s, active = %(active)s, paused = %(paused)s,
    max_retry_limit = %(max_retry_limit)s, base_seconds = %(base_seconds)s, cap_seconds = %(cap_seconds)s,
    updated_at = clock_timestamp()
WHERE id = %(id)s RETURNING {_COLUMNS}
"""  # noqa: S608 - literals

_SECRETS = """\
-- webhooks.secrets
SELECT created_at, nullif(expires_at, 'infinity') AS expires_at FROM webhooks.subscription_secrets
WHERE subscription_id = %(id)s AND expires_at > clock_timestamp() ORDER BY created_at DESC
"""

_EXPIRE = """\
-- webhooks.expire_secrets
UPDATE webhooks.subscription_secrets
SET expires_at = least(expires_at, clock_timestamp() + make_interval(secs => %(overlap)s))
WHERE subscription_id = %(id)s
"""

_FORGET = """\
-- webhooks.forget_secrets
DELETE FROM webhooks.subscription_secrets
WHERE subscription_id = %(id)s AND expires_at < clock_timestamp() - make_interval(secs => %(seconds)s)
"""

_ADD = """\
-- webhooks.add_secret
INSERT INTO webhooks.subscription_secrets (subscription_id, secret) VALUES (%(id)s, %(secret)s)
"""

_TEST = """\
-- webhooks.send_test
SELECT webhooks.send_test(%(id)s)
"""


class InvalidSubscription(Permanent):
    """A subscription that is refused; `field` names what is wrong. The message shows nothing of its endpoint."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NotPossible(Permanent):
    """An act that the state of a subscription does not allow."""


@dataclass(frozen=True, slots=True)
class SubscriptionInput:
    """A subscription as its owner wants it. None stands for the setting under [webhooks]."""

    endpoint: str
    event_types: Sequence[str]
    paused: bool = False
    max_retry_limit: int | None = None
    base_seconds: float | None = None
    cap_seconds: float | None = None


class SubscriptionRow(NamedTuple):
    """A subscription as its table has it."""

    id: int
    endpoint: str
    event_types: Sequence[str]
    active: bool
    paused: bool
    max_retry_limit: int | None
    base_seconds: float | None
    cap_seconds: float | None
    created_at: datetime
    updated_at: datetime
    failing_since: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None


class SecretTimes(NamedTuple):
    """The times of a secret that signs; `expires_at` is None until another one replaces it."""

    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class SubscriptionRules:
    """The endpoints and the types that a deployment takes."""

    settings: WebhooksSettings
    allow: Sequence[str] = ()
    """The ranges of addresses that `http.allow` opens."""

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse an endpoint that no request could go to, and types that no event may have."""
        if "endpoint" in given:
            self._check_endpoint(given["endpoint"])
        if unknown := self.settings.unknown(given.get("event_types", ())):
            known = ", ".join(self.settings.event_types)
            raise InvalidSubscription("event_types", f"no event has the type {unknown[0]!r}; the types are: {known}")

    def _check_endpoint(self, endpoint: str) -> None:
        try:
            check_endpoint(endpoint, self.allow, http=self.settings.allow_http)
        except InvalidEndpoint as error:
            raise InvalidSubscription("endpoint", error.message) from error
        if len(endpoint) > MOST_ENDPOINT_CHARACTERS or "#" in endpoint or not endpoint.startswith(("https:", "http:")):
            words = f"at most {MOST_ENDPOINT_CHARACTERS} characters, without a fragment (#...), and https in lower case"
            raise InvalidSubscription("endpoint", f"the URL must have {words}")


def create(
    db: Connection, wanted: SubscriptionInput, rules: SubscriptionRules, key: str | None = None
) -> tuple[SubscriptionRow, str | None]:
    """Create a subscription. Return it with its secret, or without one if this request was made before.

    Raise `InvalidSubscription`, or `KeyReused` if another request had the key.
    """
    given = asdict(wanted)
    rules.check(given)
    values = {**given, "event_types": list(wanted.event_types), "key": key, "hash": key and request_hash(given)}
    made = db.cursor(row_factory=class_row(SubscriptionRow)).execute(_CREATE, values).fetchone()
    if made is not None:
        return made, _add_secret(db, made.id)
    known = db.execute(_KNOWN, values).fetchone()
    assert known is not None
    if known[1] != values["hash"]:
        raise KeyReused(f"the subscription {known[0]} was created with this idempotency key, by another request")
    found = find(db, known[0])
    assert found is not None
    return found, None


def find(db: Connection, subscription: int, *, locked: bool = False) -> SubscriptionRow | None:
    """Return a subscription; a locked one stays as it is until the transaction ends."""
    statement = _FIND + "FOR NO KEY UPDATE" if locked else _FIND
    return db.cursor(row_factory=class_row(SubscriptionRow)).execute(statement, {"id": subscription}).fetchone()


def listed(
    db: Connection,
    most: int,
    *,
    active: bool | None = None,
    paused: bool | None = None,
    event_type: str | None = None,
    behind: int | None = None,
) -> list[SubscriptionRow]:
    """Return subscriptions, the newest first; `behind` is the id of the last one of the previous page."""
    values = {"active": active, "paused": paused, "event_type": event_type, "behind": behind or 2**63 - 1, "most": most}
    return db.cursor(row_factory=class_row(SubscriptionRow)).execute(_LIST, values).fetchall()


def change(
    db: Connection, subscription: int, changed: Mapping[str, Any], rules: SubscriptionRules
) -> SubscriptionRow | None:
    """Change some columns of a subscription: pause, resume, disable and enable it too. None if there is none.

    Its deliveries see it with their next attempt. Raise `InvalidSubscription`.
    """
    rules.check(changed)
    found = find(db, subscription, locked=True)
    if found is None:
        return None
    values = {**found._asdict(), **changed}
    return db.cursor(row_factory=class_row(SubscriptionRow)).execute(_CHANGE, values).fetchone()


def secret_times(db: Connection, subscription: int) -> list[SecretTimes]:
    """Return the times of the secrets that sign, the newest first."""
    return db.cursor(row_factory=class_row(SecretTimes)).execute(_SECRETS, {"id": subscription}).fetchall()


def rotate_secret(db: Connection, subscription: int, overlap_seconds: float = OVERLAP_SECONDS) -> str | None:
    """Add a secret, and let the others sign for so long yet. Return the new one; None without such a subscription.

    Raise `NotPossible` if too many sign: each stays valid for its time, so a request that is repeated does no harm.
    """
    if find(db, subscription, locked=True) is None:
        return None
    db.execute(_EXPIRE, {"id": subscription, "overlap": overlap_seconds})
    db.execute(_FORGET, {"id": subscription, "seconds": _FORGET_SECONDS})
    if len(secret_times(db, subscription)) >= MOST_SECRETS:
        raise NotPossible(f"{MOST_SECRETS} secrets sign already: wait until one expires, or let them expire at once")
    return _add_secret(db, subscription)


def send_test(db: Connection, subscription: int) -> int | None:
    """Record a test event for this subscription alone. Return its id; None without such a subscription.

    It is delivered like any other event. Raise `NotPossible` if nothing would be sent now.
    """
    found = find(db, subscription, locked=True)
    if found is None:
        return None
    if found.paused or not found.active:
        state = "paused" if found.active else "not active"
        raise NotPossible(f"the subscription {subscription} is {state}: nothing is sent to it")
    row = db.execute(_TEST, {"id": subscription}).fetchone()
    return row and int(row[0])


def _add_secret(db: Connection, subscription: int) -> str:
    secret = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
    db.execute(_ADD, {"id": subscription, "secret": secret})
    return secret
