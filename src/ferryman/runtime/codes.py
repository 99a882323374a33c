"""The one table that decides which SQLSTATEs and Kafka codes are which family of error.

A code that is not listed: an SQLSTATE is judged by its class, then Permanent (a statement that fails in an unknown way
fails again); a Kafka code is Transient (newer brokers add codes, and a bounded retry is the safer guess).
"""

from dataclasses import dataclass

from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient, Unreachable


@dataclass(frozen=True, slots=True)
class Verdict:
    """A family, and the setting and remedy where the code alone tells them."""

    family: type[FerrymanError]
    remedy: str | None = None
    setting: str | None = None

    def error(self, message: str) -> FerrymanError:
        return self.family(message, setting=self.setting, remedy=self.remedy)


_RETRY = Verdict(Transient)
_AWAY = Verdict(Unreachable)
_BAD = Verdict(Permanent)
_STANDBY = Verdict(Unreachable, "connect to the primary: this server is a standby or was demoted", "database_url")
_PRIVILEGE = Verdict(Misconfigured, "grant the role what it lacks: `ferryman migrate` makes the roles, `doctor` checks")
_LOGIN = Verdict(Misconfigured, "correct the user or the password", "database_url")
_MIGRATE = Verdict(Misconfigured, "run `ferryman migrate`")

# Five characters are one SQLSTATE, two are its class.
SQLSTATES: dict[str, Verdict] = {
    "08": _AWAY,  # connection exceptions
    "21": _BAD,
    "22": _BAD,  # data exceptions
    "22P05": _BAD,  # untranslatable character
    "23": _BAD,  # integrity constraint violations
    "25006": _STANDBY,  # read_only_sql_transaction
    "25P02": _RETRY,  # in_failed_sql_transaction
    "25P03": _RETRY,  # idle_in_transaction_session_timeout
    "25P04": _RETRY,  # transaction_timeout
    "28": _LOGIN,
    "3D000": Verdict(Misconfigured, "create the database, or correct its name", "database_url"),
    "3F000": _MIGRATE,  # invalid_schema_name
    "40": _RETRY,  # transaction rollback: serialization failure, deadlock, unknown completion
    "42": _BAD,  # syntax errors and unknown names
    "42501": _PRIVILEGE,
    "42703": _MIGRATE,  # undefined_column
    "42883": _MIGRATE,  # undefined_function
    "42P01": _MIGRATE,  # undefined_table
    "53": _RETRY,  # insufficient resources
    "53300": Verdict(Unreachable, "raise max_connections, or lower the pools", "database.pool_max"),
    "54": _BAD,  # program limits
    "55P03": _RETRY,  # lock_not_available
    "55006": _RETRY,  # object_in_use
    "57014": _RETRY,  # query_canceled, by statement_timeout too
    "57P01": _AWAY,  # admin_shutdown
    "57P02": _AWAY,  # crash_shutdown
    "57P03": _AWAY,  # cannot_connect_now: starting up or shutting down
    "57P04": Verdict(Misconfigured, "the database was dropped: create it, or correct its name", "database_url"),
    "57P05": _AWAY,  # idle_session_timeout
    "58": _RETRY,  # the server's own input and output
    "XX": _RETRY,  # internal errors
}

_BROKERS = Verdict(Unreachable, "start the broker, or correct the address", "kafka.bootstrap_servers")
_SASL = Verdict(Misconfigured, "correct the SASL mechanism, user or password", "kafka.sasl.username")
_TLS = Verdict(Misconfigured, "correct the TLS settings: certificate, authority or protocol", "kafka.security.protocol")
_ACL = Verdict(Misconfigured, "grant the principal what it lacks by an ACL")
_CREATE = Verdict(Misconfigured, "create the topic: Ferryman's clients never do it on the fly")

KAFKA_CODES: dict[str, Verdict] = {
    "_ALL_BROKERS_DOWN": _BROKERS,
    "_TRANSPORT": _BROKERS,
    "_RESOLVE": Verdict(Misconfigured, "correct the host name", "kafka.bootstrap_servers"),
    "_TIMED_OUT": _BROKERS,
    "_TIMED_OUT_QUEUE": _BROKERS,
    "_WAIT_COORD": _RETRY,
    "_AUTHENTICATION": _SASL,
    "SASL_AUTHENTICATION_FAILED": _SASL,
    "UNSUPPORTED_SASL_MECHANISM": _SASL,
    "ILLEGAL_SASL_STATE": _SASL,
    "SECURITY_DISABLED": Verdict(Misconfigured, "the broker has no authorizer: ACLs cannot be used"),
    "_SSL": _TLS,
    "_INVALID_ARG": Verdict(Misconfigured, "correct the value", "kafka"),
    "_NOT_CONFIGURED": Verdict(Misconfigured, "set the missing property", "kafka"),
    "TOPIC_AUTHORIZATION_FAILED": _ACL,
    "GROUP_AUTHORIZATION_FAILED": _ACL,
    "CLUSTER_AUTHORIZATION_FAILED": _ACL,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _ACL,
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": _ACL,
    "UNKNOWN_TOPIC_OR_PART": _CREATE,
    "_UNKNOWN_TOPIC": _CREATE,
    "UNSUPPORTED_VERSION": Verdict(Misconfigured, "the broker is too old for this client: upgrade it"),
    "_UNSUPPORTED_FEATURE": Verdict(Misconfigured, "the broker or this librdkafka lacks the feature: upgrade it"),
    "_FATAL": _RETRY,  # fatal for one client instance, which is replaced
    "TOPIC_EXCEPTION": _BAD,
    "MSG_SIZE_TOO_LARGE": _BAD,
    "RECORD_LIST_TOO_LARGE": _BAD,
    "INVALID_MSG": _BAD,
    "INVALID_MSG_SIZE": _BAD,
    "INVALID_RECORD": _BAD,
    "INVALID_TIMESTAMP": _BAD,
    "INVALID_CONFIG": _BAD,
    "INVALID_PARTITIONS": _BAD,
    "INVALID_REPLICATION_FACTOR": _BAD,
    "INVALID_REPLICA_ASSIGNMENT": _BAD,
    "INVALID_REQUEST": _BAD,
    "INVALID_GROUP_ID": _BAD,
    "POLICY_VIOLATION": _BAD,
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": _BAD,
    "UNSUPPORTED_COMPRESSION_TYPE": _BAD,
    "TOPIC_ALREADY_EXISTS": _BAD,
    "TOPIC_DELETION_DISABLED": _BAD,
    "OFFSET_METADATA_TOO_LARGE": _BAD,
    "_BAD_MSG": _BAD,
    "_BAD_COMPRESSION": _BAD,
    "_KEY_SERIALIZATION": _BAD,
    "_VALUE_SERIALIZATION": _BAD,
    "_KEY_DESERIALIZATION": _BAD,
    "_VALUE_DESERIALIZATION": _BAD,
}


def sqlstate(code: str | None) -> Verdict:
    """The verdict on an SQLSTATE; an error without one never reached the server."""
    if code is None:
        return _AWAY
    return SQLSTATES.get(code) or SQLSTATES.get(code[:2]) or _BAD


def kafka(name: str) -> Verdict:
    """The verdict on a Kafka error, by librdkafka's name for it (`KafkaError.name()`)."""
    return KAFKA_CODES.get(name) or _RETRY
