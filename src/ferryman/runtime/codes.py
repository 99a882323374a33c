"""The one table that maps SQLSTATEs and Kafka codes to our errors.

An SQLSTATE that is not listed is judged by its class, and is else Permanent: a statement that fails in an unknown way
fails again, and so does one whose data, constraint or syntax is wrong (22, 23, 42). A Kafka code that is not listed is
Transient: newer brokers add codes, and a bounded retry is the safer guess.
"""

from dataclasses import dataclass

from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient, Unreachable


@dataclass(frozen=True, slots=True)
class Family:
    """The class of an error, with the setting and the remedy if the code alone tells them."""

    family: type[FerrymanError]
    remedy: str | None = None
    setting: str | None = None

    def error(self, message: str, remedy: str | None = None) -> FerrymanError:
        return self.family(message, setting=self.setting, remedy=remedy or self.remedy)


_RETRY = Family(Transient)
_AWAY = Family(Unreachable)
_BAD = Family(Permanent)
_STANDBY = Family(
    Unreachable, "connect to the primary, or let the database take writes (its disk may be nearly full)", "database_url"
)
_PRIVILEGE = Family(Misconfigured, "grant the login the role of its process (docs/roles.md)")
_LOGIN = Family(Misconfigured, "correct the user or the password", "database_url")
_MIGRATE = Family(Misconfigured, "run `ferryman migrate`")

# Five characters are one SQLSTATE, two are its class.
SQLSTATES: dict[str, Family] = {
    "08": _AWAY,  # connection exceptions
    "25006": _STANDBY,  # read_only_sql_transaction
    "25P02": _RETRY,  # in_failed_sql_transaction
    "25P03": _RETRY,  # idle_in_transaction_session_timeout
    "25P04": _RETRY,  # transaction_timeout
    "28": _LOGIN,
    "3D000": Family(Misconfigured, "create the database, or correct its name", "database_url"),
    "3F000": _MIGRATE,  # invalid_schema_name
    "40": _RETRY,  # transaction rollback: serialization failure, deadlock, unknown completion
    "42501": _PRIVILEGE,
    "42703": _MIGRATE,  # undefined_column
    "42883": _MIGRATE,  # undefined_function
    "42P01": _MIGRATE,  # undefined_table
    "53": _RETRY,  # insufficient resources
    "53300": Family(Unreachable, "raise max_connections, or lower the pools", "database.pool_max"),
    "55P03": _RETRY,  # lock_not_available
    "55006": _RETRY,  # object_in_use
    "57014": _RETRY,  # query_canceled, by statement_timeout too
    "57P01": _AWAY,  # admin_shutdown
    "57P02": _AWAY,  # crash_shutdown
    "57P03": _AWAY,  # cannot_connect_now: starting up or shutting down
    "57P04": Family(Misconfigured, "the database was dropped: create it, or correct its name", "database_url"),
    "57P05": _AWAY,  # idle_session_timeout
    "58": _RETRY,  # the server's own input and output
    "XX": _RETRY,  # internal errors
}

_BROKERS = Family(Unreachable, "start the broker, or correct the address", "kafka.bootstrap_servers")
_SASL = Family(Misconfigured, "correct the SASL mechanism, user or password", "kafka.sasl.username")
_TLS = Family(Misconfigured, "correct the TLS settings: certificate, authority or protocol", "kafka.security.protocol")
_ACL = Family(Misconfigured, "grant the missing permission by an ACL")
_CREATE = Family(Misconfigured, "create the topic: Ferryman's clients never do it on the fly")

_FORBIDDEN = (
    "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
)  # fmt: skip
_REFUSED = (
    "TOPIC_EXCEPTION", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG", "INVALID_MSG_SIZE",
    "INVALID_RECORD", "INVALID_TIMESTAMP", "INVALID_CONFIG", "INVALID_PARTITIONS", "INVALID_REPLICATION_FACTOR",
    "INVALID_REPLICA_ASSIGNMENT", "INVALID_REQUEST", "INVALID_GROUP_ID", "POLICY_VIOLATION",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT", "UNSUPPORTED_COMPRESSION_TYPE", "TOPIC_ALREADY_EXISTS",
    "TOPIC_DELETION_DISABLED", "OFFSET_METADATA_TOO_LARGE", "_BAD_MSG", "_BAD_COMPRESSION", "_KEY_SERIALIZATION",
    "_VALUE_SERIALIZATION", "_KEY_DESERIALIZATION", "_VALUE_DESERIALIZATION",
)  # fmt: skip

KAFKA_CODES: dict[str, Family] = {
    "_ALL_BROKERS_DOWN": _BROKERS,
    "_TRANSPORT": _BROKERS,
    "_RESOLVE": Family(Misconfigured, "correct the host name", "kafka.bootstrap_servers"),
    "_TIMED_OUT": _BROKERS,
    "_TIMED_OUT_QUEUE": _BROKERS,
    "_AUTHENTICATION": _SASL,
    "SASL_AUTHENTICATION_FAILED": _SASL,
    "UNSUPPORTED_SASL_MECHANISM": _SASL,
    "ILLEGAL_SASL_STATE": _SASL,
    "SECURITY_DISABLED": Family(Misconfigured, "the broker has no authorizer: ACLs cannot be used"),
    "_SSL": _TLS,
    "_INVALID_ARG": Family(Misconfigured, "correct the value", "kafka"),
    "_NOT_CONFIGURED": Family(Misconfigured, "set the missing property", "kafka"),
    **dict.fromkeys(_FORBIDDEN, _ACL),
    "UNKNOWN_TOPIC_OR_PART": _CREATE,
    "_UNKNOWN_TOPIC": _CREATE,
    "UNSUPPORTED_VERSION": Family(Misconfigured, "the broker is too old for this client: upgrade it"),
    "_UNSUPPORTED_FEATURE": Family(Misconfigured, "the broker or this librdkafka lacks the feature: upgrade it"),
    **dict.fromkeys(_REFUSED, _BAD),
}


def sqlstate(code: str | None) -> Family:
    """Return the family of an SQLSTATE; an error without one never reached the server."""
    if code is None:
        return _AWAY
    return SQLSTATES.get(code) or SQLSTATES.get(code[:2]) or _BAD


def kafka(name: str) -> Family:
    """Return the family of a Kafka error, by librdkafka's name for it (`KafkaError.name()`)."""
    return KAFKA_CODES.get(name) or _RETRY
