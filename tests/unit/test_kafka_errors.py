"""Every error of the client library has a verdict: what must the caller do?"""

from __future__ import annotations

import inspect

import pytest
from confluent_kafka import KafkaError, KafkaException

from turnlog.kafka import port
from turnlog.kafka.errors import _ROWS, VERDICTS, library_codes, translate, translated
from turnlog.kafka.port import (
    Fatal,
    LogError,
    NotOwner,
    OffsetGone,
    Partition,
    Rebalancing,
    Refused,
    Retryable,
    TooLarge,
)


def test_every_code_of_the_library_has_a_verdict() -> None:
    unmapped = sorted(library_codes().keys() - VERDICTS.keys())
    assert not unmapped, (
        f"the client library has grown {unmapped}: say in turnlog/kafka/errors.py what the caller must do"
    )


def test_no_code_stands_in_two_rows() -> None:
    names = [name for _, row in _ROWS for name in row.split()]
    assert len(names) == len(set(names))


def test_every_kind_of_error_is_used_or_never_meant_to_come_from_a_code() -> None:
    kinds = {kind for _, kind in inspect.getmembers(port, inspect.isclass) if issubclass(kind, LogError)}
    assert kinds - set(VERDICTS.values()) == {LogError}


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (KafkaError.REBALANCE_IN_PROGRESS, Rebalancing),  # J4: ask again after the rebalance
        (KafkaError.ILLEGAL_GENERATION, Rebalancing),
        (KafkaError.UNKNOWN_MEMBER_ID, NotOwner),  # J4: it is not ours
        (KafkaError.FENCED_INSTANCE_ID, NotOwner),
        (KafkaError._FATAL, Fatal),
        (KafkaError._AUTO_OFFSET_RESET, OffsetGone),  # J15
        (KafkaError.OFFSET_OUT_OF_RANGE, OffsetGone),
        (KafkaError.MSG_SIZE_TOO_LARGE, TooLarge),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, Fatal),  # J7
        (KafkaError._PURGE_INFLIGHT, Retryable),
    ],
)
def test_the_verdicts_that_the_protocol_rests_on(code: int, verdict: type[LogError]) -> None:
    assert type(translate(KafkaError(code))) is verdict


def test_a_fatal_flag_outweighs_the_code() -> None:
    assert type(translate(KafkaError(KafkaError.FENCED_INSTANCE_ID, "taken", fatal=True))) is Fatal


def test_a_code_that_is_younger_than_this_table_stops_and_is_named() -> None:
    error = translate(KafkaError(12345), "commit")
    assert type(error) is Refused
    assert "commit" in str(error)


def test_messages_carry_what_was_done_the_code_and_the_place() -> None:
    error = translated(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)), "append to t", Partition("t", 3))
    assert str(error).startswith("append to t: ")
    assert error.code == "UNKNOWN_TOPIC_OR_PART"
    assert error.partition == Partition("t", 3)
    assert type(translated(KafkaException("odd"), "x")) is Refused
