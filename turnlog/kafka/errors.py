"""Kafka's errors, sorted by what the caller must do. The only place where a KafkaError becomes a `LogError`.

Every code the client library knows stands in exactly one row below; `tests/unit/test_kafka_errors.py` fails when the
library grows one that does not. A code that is unknown at run time counts as `Refused`: stopping with its name in the log
is better than asking for ever. The meaning of the codes: https://kafka.apache.org/protocol#protocol_error_codes and
librdkafka's rdkafka.h (names with a leading underscore never left this machine).
"""

from __future__ import annotations

import re

from confluent_kafka import KafkaError, KafkaException

from turnlog.kafka.port import (
    Fatal,
    LogError,
    NotAuthorised,
    NotOwner,
    OffsetGone,
    Partition,
    QueueFull,
    Rebalancing,
    Refused,
    Retryable,
    TooLarge,
    UnknownTopic,
)

_ROWS: tuple[tuple[type[LogError], str], ...] = (
    (
        # The cluster or the network is not ready for it now. _PURGE_*: the caller gave up the record itself; it may have landed.
        Retryable,
        """
        BROKER_NOT_AVAILABLE CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
        ELIGIBLE_LEADERS_NOT_AVAILABLE FENCED_LEADER_EPOCH FETCH_SESSION_ID_NOT_FOUND INCONSISTENT_TOPIC_ID
        INVALID_FETCH_SESSION_EPOCH INVALID_MSG KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE LISTENER_NOT_FOUND
        LOG_DIR_NOT_FOUND NETWORK_EXCEPTION NOT_CONTROLLER NOT_COORDINATOR NOT_ENOUGH_REPLICAS
        NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_FOR_PARTITION OFFSET_NOT_AVAILABLE OPERATION_NOT_ATTEMPTED
        PREFERRED_LEADER_NOT_AVAILABLE REASSIGNMENT_IN_PROGRESS REBOOTSTRAP_REQUIRED REPLICA_NOT_AVAILABLE
        REQUEST_TIMED_OUT STALE_BROKER_EPOCH STALE_CTRL_EPOCH THROTTLING_QUOTA_EXCEEDED UNKNOWN_CONTROLLER_ID
        UNKNOWN_LEADER_EPOCH UNSTABLE_OFFSET_COMMIT SHARE_SESSION_LIMIT_REACHED SHARE_SESSION_NOT_FOUND
        _ALL_BROKERS_DOWN _BAD_COMPRESSION _BAD_MSG _DESTROY_BROKER _INTR _IN_PROGRESS _ISR_INSUFF _MAX_POLL_EXCEEDED
        _MSG_TIMED_OUT _NODE_UPDATE _NOOP _NO_OFFSET _OUTDATED _PARTIAL _PARTITION_EOF _PREV_IN_PROGRESS _PURGE_INFLIGHT
        _PURGE_QUEUE _RESOLVE _RETRY _TIMED_OUT _TIMED_OUT_QUEUE _TRANSPORT _UNDERFLOW _UNKNOWN_BROKER _WAIT_CACHE
        _WAIT_COORD
        """,
    ),
    # (J4) With these two a commit is asked again after the rebalance.
    (Rebalancing, "REBALANCE_IN_PROGRESS ILLEGAL_GENERATION _ASSIGN_PARTITIONS _REVOKE_PARTITIONS"),
    (QueueFull, "_QUEUE_FULL"),
    (
        TooLarge,
        "MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE OFFSET_METADATA_TOO_LARGE TELEMETRY_TOO_LARGE",
    ),
    (
        NotAuthorised,
        """
        CLUSTER_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED
        SASL_AUTHENTICATION_FAILED TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        PRINCIPAL_DESERIALIZATION_FAILURE DELEGATION_TOKEN_EXPIRED DELEGATION_TOKEN_OWNER_MISMATCH _AUTHENTICATION _SSL
        """,
    ),
    (UnknownTopic, "UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID _UNKNOWN_PARTITION _UNKNOWN_TOPIC"),
    (
        NotOwner,
        """
        UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID UNRELEASED_INSTANCE_ID FENCED_MEMBER_EPOCH STALE_MEMBER_EPOCH
        FENCED_STATE_EPOCH MEMBER_ID_REQUIRED _ASSIGNMENT_LOST
        """,
    ),
    (OffsetGone, "OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET _LOG_TRUNCATION"),
    (
        # The producer's sequence or the instance itself is lost: no later call on this client can be trusted (J7).
        Fatal,
        """
        DUPLICATE_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING OUT_OF_ORDER_SEQUENCE_NUMBER
        PRODUCER_FENCED TRANSACTION_COORDINATOR_FENCED UNKNOWN_PRODUCER_ID _CRIT_SYS_RESOURCE _DESTROY _FATAL _FENCED
        _GAPLESS_GUARANTEE _INCONSISTENT
        """,
    ),
    (
        Refused,
        """
        DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        DUPLICATE_RESOURCE DUPLICATE_VOTER ELECTION_NOT_NEEDED FEATURE_UPDATE_FAILED GROUP_ID_NOT_FOUND
        GROUP_MAX_SIZE_REACHED GROUP_SUBSCRIBED_TO_TOPIC ILLEGAL_SASL_STATE INCONSISTENT_GROUP_PROTOCOL
        INCONSISTENT_VOTER_SET INVALID_COMMIT_OFFSET_SIZE INVALID_CONFIG INVALID_GROUP_ID INVALID_PARTITIONS
        INVALID_PRINCIPAL_TYPE INVALID_RECORD INVALID_RECORD_STATE INVALID_REGISTRATION INVALID_REGULAR_EXPRESSION
        INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_REQUEST INVALID_REQUIRED_ACKS
        INVALID_SESSION_TIMEOUT INVALID_SHARE_SESSION_EPOCH INVALID_TIMESTAMP INVALID_TRANSACTION_TIMEOUT
        INVALID_TXN_STATE INVALID_UPDATE_VERSION INVALID_VOTER_KEY MISMATCHED_ENDPOINT_TYPE NON_EMPTY_GROUP
        NO_REASSIGNMENT_IN_PROGRESS POLICY_VIOLATION RESOURCE_NOT_FOUND SECURITY_DISABLED STREAMS_INVALID_TOPOLOGY
        STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED TOPIC_ALREADY_EXISTS TOPIC_DELETION_DISABLED
        TOPIC_EXCEPTION TRANSACTION_ABORTABLE UNACCEPTABLE_CREDENTIAL UNKNOWN UNKNOWN_SUBSCRIPTION_ID
        UNSUPPORTED_ASSIGNOR UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_ENDPOINT_TYPE UNSUPPORTED_FOR_MESSAGE_FORMAT
        UNSUPPORTED_SASL_MECHANISM UNSUPPORTED_VERSION VOTER_NOT_FOUND _APPLICATION _CONFLICT _EXISTING_SUBSCRIPTION
        _FAIL _FS _INVALID_ARG _INVALID_DIFFERENT_RECORD _INVALID_TYPE _KEY_DESERIALIZATION _KEY_SERIALIZATION _NOENT
        _NOT_CONFIGURED _NOT_IMPLEMENTED _READ_ONLY _STATE _UNKNOWN_GROUP _UNKNOWN_PROTOCOL _UNSUPPORTED_FEATURE
        _VALUE_DESERIALIZATION _VALUE_SERIALIZATION
        """,
    ),
)

#: Class of every code by Kafka's own name for it.
VERDICTS: dict[str, type[LogError]] = {name: verdict for verdict, names in _ROWS for name in names.split()}


def library_codes() -> dict[str, int]:
    """Every error code the installed client library can name, without success."""
    names = (name for name in dir(KafkaError) if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name))
    return {name: getattr(KafkaError, name) for name in names if name != "NO_ERROR"}


# By number, because KafkaError.name() of a code younger than the library is only a guess.
_BY_CODE = {code: (name, VERDICTS.get(name, Refused)) for name, code in library_codes().items()}


def translate(error: KafkaError, doing: str = "", partition: Partition | None = None) -> LogError:
    """What the caller must do about `error`; `doing` says in the message what was attempted. A fatal one is `Fatal` whatever its code."""
    name, verdict = _BY_CODE.get(error.code(), (error.name(), Refused))
    text = f"{doing}: {error.str()}" if doing else error.str()
    return (Fatal if error.fatal() else verdict)(f"{text} [{name}]", name, partition)


def translated(raised: KafkaException, doing: str = "", partition: Partition | None = None) -> LogError:
    """The same for an exception of the client library."""
    error = raised.args[0] if raised.args else None
    if isinstance(error, KafkaError):
        return translate(error, doing, partition)
    return Refused(f"{doing}: {raised}", "", partition)
