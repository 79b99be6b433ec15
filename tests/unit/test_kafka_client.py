"""Which properties the clients get, and which are refused."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from turnlog.kafka.client import ALIASES, MEMBER_FIXED, PRODUCER_FIXED, READING_FIXED, KafkaCluster
from turnlog.kafka.port import Partition, Refused, Retryable

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def test_without_an_address_there_is_no_cluster() -> None:
    with pytest.raises(Refused, match=r"bootstrap\.servers"):
        KafkaCluster({})


@pytest.mark.parametrize("name", sorted({**PRODUCER_FIXED, **READING_FIXED, **MEMBER_FIXED, **ALIASES}))
def test_what_the_protocol_rests_on_cannot_be_weakened(name: str) -> None:
    with pytest.raises(Refused, match=name.replace(".", r"\.")):
        KafkaCluster({**NOWHERE, name: "something else"})


def test_saying_what_is_so_anyway_is_allowed() -> None:
    KafkaCluster({**NOWHERE, "enable.idempotence": "TRUE", "acks": "all", "max.in.flight": "1"})


def test_secrets_are_not_printed() -> None:
    secret = {"sasl.password": "wine", "sasl.username": "ann", "security.protocol": "SASL_PLAINTEXT"}
    cluster = KafkaCluster({**NOWHERE, **secret, "sasl.mechanism": "PLAIN"})
    assert "wine" not in repr(cluster)
    assert "ann" not in repr(cluster)
    assert "sasl.password" in repr(cluster)


def test_a_property_that_librdkafka_does_not_know_is_refused_by_name() -> None:
    cluster = KafkaCluster({**NOWHERE, "no.such.property": "1"})
    makers: list[Callable[[], object]] = [
        lambda: cluster.producer("p"),
        lambda: cluster.consumer("g"),
        lambda: cluster.reader("r").bounds(Partition("t", 0)),
        cluster.admin,
    ]
    for make in makers:
        with pytest.raises(Refused, match=r"no\.such\.property"):
            make()


def test_recommended_properties_can_be_changed() -> None:
    config = KafkaCluster({**NOWHERE, "session.timeout.ms": "6000", "linger.ms": "7"})
    consumer = config._config({"session.timeout.ms": 10_000}, {}, frozenset(), "c")
    assert consumer["session.timeout.ms"] == "6000"


def test_a_cluster_that_does_not_answer_is_named_within_the_time_given() -> None:
    began = time.monotonic()
    for names in (["t"], None):
        with pytest.raises(Retryable, match=r"^the cluster at 127\.0\.0\.1:1 does not answer$"):
            KafkaCluster(NOWHERE).admin().topics(names, timeout_s=0.3)
    assert time.monotonic() - began < 5
