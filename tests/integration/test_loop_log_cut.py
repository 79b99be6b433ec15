"""The log is not what the loop knew: topics made anew, positions gone (docs/journal.md, J9 and J15).

It appends nothing, says why where operators look, and goes on once one of them has adopted the log as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.broker_fixture import SharedBroker
from tests.integration.loop_stage import CODEC, PATIENCE_S, LoopProcess, Stage, result_for, until
from turnlog.kafka.port import LogError
from turnlog.kafka.topics import create_topics

PARTITIONS = 2


@pytest.fixture
def stage(broker: SharedBroker, tmp_path: Path) -> Iterator[Stage]:
    with closing(Stage(broker.bootstrap, tmp_path, partitions=PARTITIONS)) as made:
        yield made


def make_anew(stage: Stage, topic: str) -> None:
    """Delete a topic and create it again as it was."""
    name = stage.prefix + topic
    stage.admin.delete_topics([name])
    until(lambda: name not in stage.admin.topics([name]), f"{name} is gone")

    def made() -> bool:
        try:
            return bool(create_topics(stage.admin, stage.layout))
        except LogError:  # it is not quite gone yet
            return False

    until(made, f"{name} is there again")


def used(stage: Stage) -> list[str]:
    """On either partition a run that ended and, returned, one that waits for a call."""
    stage.hands.hold()
    before = len(stage.hands.keys())
    waiting = [stage.run_id(index, "waits") for index in range(PARTITIONS)]
    for run_id in waiting:
        stage.good_run(stage.home(run_id))
        stage.client.submit("tools", 'call bench_a {"n":1}', run_id)
    until(lambda: len(stage.hands.keys()) == before + PARTITIONS, "both wait")
    return waiting


def finish_one(stage: Stage, partition: int) -> None:
    """A run with a call that is answered although answers are held back."""
    run_id = stage.run_id(partition, "calls")
    stage.client.submit("tools", 'call bench_a {"n":1}', run_id)
    request = until(lambda: stage.hands.of(run_id), "its call")[0]
    stage.put("tool-results", request.call_key.encode(), CODEC.encode(result_for(request, "now")), partition=partition)
    stage.until_succeeded([run_id])


def works(stage: Stage) -> None:
    for index in range(PARTITIONS):
        stage.good_run(index)


def until_it_refuses(stage: Stage, loop: LoopProcess, topic: str) -> None:
    """Both partitions are closed, and health says why and what to do."""
    said = loop.until_it_says(
        f"made anew since this partition was open: {stage.prefix}{topic}; see `turnlog topics adopt`"
    )
    until(lambda: loop.metric("partitions_unready") == PARTITIONS, f"both refuse: {said}")


@pytest.mark.parametrize("topic", ["journal", "commands", "tool-results"])
def test_a_topic_made_anew_while_the_loop_is_down(stage: Stage, topic: str) -> None:
    loop = stage.loop().until_ready()
    waiting = used(stage)
    loop.stop()
    before = stage.journal_ends()
    make_anew(stage, topic)
    loop = stage.loop()
    until_it_refuses(stage, loop, topic)
    assert stage.journal_ends() == ([0, 0] if topic == "journal" else before), "it appended something"
    loop.stop()
    assert '"epoch": 1' in stage.command("topics", "adopt", "--yes", "--json")
    stage.loop().until_ready()
    works(stage)
    stage.hands.release()
    if topic != "journal":  # those runs are lost with it
        stage.until_succeeded(waiting)
    assert stage.audit().findings == []
    works(stage)


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["journal", "commands", "tool-results"])
def test_a_topic_made_anew_under_a_running_loop(stage: Stage, topic: str) -> None:
    loop = stage.loop().until_ready()
    waiting = used(stage)
    if topic == "tool-results":  # so that the consumer stands behind the new topic's end
        for index in range(PARTITIONS):
            finish_one(stage, index)
    make_anew(stage, topic)
    if topic == "journal":  # it hears of that when it appends
        stage.hands.release()
    until_it_refuses(stage, loop, topic)
    before = stage.journal_ends()
    loop.stop()
    loop = stage.loop()
    until_it_refuses(stage, loop, topic)
    assert stage.journal_ends() == before, "it appended something"
    loop.stop()
    stage.command("topics", "adopt", "--yes")
    stage.loop().until_ready()
    works(stage)
    if topic != "journal":
        stage.hands.release()
        stage.until_succeeded(waiting)
    assert [f.kind for f in stage.audit().findings if f.kind != "log_start"] == []


def test_positions_that_are_gone_are_found_again_in_the_journal(stage: Stage) -> None:
    loop = stage.loop().until_ready()
    waiting = used(stage)
    done = stage.submit_work(10, "done")
    stage.hands.release()
    stage.until_succeeded(done + waiting)
    open_now = used(stage)
    loop.stop()
    assert set(stage.pointers()) == {0, 1}
    forget_group(stage)
    assert stage.pointers() == {}
    loop = stage.loop().until_ready()
    stage.hands.release()
    stage.until_succeeded(open_now)
    works(stage)
    assert set(until(stage.pointers, "pointers again")) == {0, 1}
    audit = stage.check(done + waiting + open_now)
    assert all(run.count("run_started") == 1 for run in audit.runs.values())
    assert loop.metric("ownership_ends_total") == 0


def forget_group(stage: Stage) -> None:
    """What Kafka does a week after the last member left."""
    admin = AdminClient({"bootstrap.servers": stage.environment["TURNLOG_KAFKA__BOOTSTRAP_SERVERS"]})
    group = f"{stage.prefix}loop"
    admin.delete_consumer_groups([group])[group].result(timeout=PATIENCE_S)
