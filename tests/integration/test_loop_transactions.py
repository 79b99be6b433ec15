"""Upstreams that write in Kafka transactions: their marks take offsets that no consumer is told of, behind the last record too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka
import pytest

from tests.broker_fixture import SharedBroker
from tests.integration.loop_stage import CODEC, Stage, until
from turnlog.core.agents import AgentSpec
from turnlog.core.records import Command, RunSummary, StartRun


class Upstream:
    """A producer of another maker, transactional as those of stream processors are."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._prefix = stage.prefix
        bootstrap = stage.environment["TURNLOG_KAFKA__BOOTSTRAP_SERVERS"]
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{stage.prefix}{name}",
                "transaction.timeout.ms": 60_000,
            }
        )
        self._producer.init_transactions(60)

    def begin(self, topic: str, key: str, value: bytes) -> None:
        self._producer.begin_transaction()
        self._producer.produce(self._prefix + topic, value, key=key.encode(), partition=0)
        self._producer.flush(60)

    def commit(self) -> None:
        self._producer.commit_transaction(60)

    def abort(self) -> None:
        self._producer.abort_transaction(60)


def start(run_id: str, agent: str = "echo", deadline_ms: int | None = None) -> bytes:
    return CODEC.encode(
        Command(f"c-{run_id}", run_id, "start", start=StartRun(agent, None, "hello", deadline_ms=deadline_ms))
    )


@pytest.fixture
def stage(broker: SharedBroker, tmp_path: Path) -> Iterator[Stage]:
    with closing(Stage(broker.bootstrap, tmp_path, partitions=1)) as made:
        yield made


def status(stage: Stage, run_id: str) -> str:
    found = stage.newest("run-state", RunSummary).get(run_id)
    return found.status if found is not None else "unknown"


def test_a_loop_is_ready_although_its_topics_end_in_marks_of_transactions(stage: Stage) -> None:
    upstream = Upstream(stage, "upstream")
    upstream.begin("agents", "late", CODEC.encode(AgentSpec("late", "1", "", "scripted/echo")))
    upstream.commit()
    upstream.begin("commands", "kept", start("kept"))
    upstream.commit()
    upstream.begin("commands", "dropped", start("dropped"))
    upstream.abort()
    stage.loop().until_ready()
    until(lambda: status(stage, "kept") == "succeeded", "the committed run ends")
    assert status(stage, "dropped") == "unknown"
    stage.client.submit("late", "hello", "by-agent").wait(60)


def test_a_transaction_that_is_still_open_keeps_nobody_waiting(stage: Stage) -> None:
    upstream = Upstream(stage, "slow")
    upstream.begin("commands", "slow", start("slow"))
    loop = stage.loop().until_ready()
    upstream.commit()
    until(lambda: status(stage, "slow") == "succeeded", "what was committed later")
    loop.stop()


def test_timers_fire_after_a_sleep_behind_a_mark(stage: Stage) -> None:
    loop = stage.loop().until_ready()
    upstream = Upstream(stage, "upstream")
    upstream.begin("commands", "waits", start("waits", "talk", deadline_ms=6_000))
    upstream.commit()
    until(lambda: status(stage, "waits") == "waiting", "it waits for its user")
    loop.child.pause()
    upstream.begin("commands", "other", start("other"))
    upstream.abort()
    time.sleep(6)  # longer than its deadline, shorter than the session
    loop.child.resume()
    until(lambda: status(stage, "waits") == "failed", "its deadline, after the sleep")
