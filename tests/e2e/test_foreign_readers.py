"""A real run, read by what is not ours: Confluent's AvroDeserializer and kcat on every topic, and an audit of thirty lines.

The whole system works with a schema registry here, so whatever any part of it writes must carry an id that the registry knows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from examples.airline_retail.play import Teller, converse, load
from examples.airline_retail.recording import DATA_DIR, DOMAINS
from examples.airline_retail.stage import Plan, stage
from tests.foreign_readers import as_json, everything, kcat_json
from turnlog.client import Client, CommandRefused
from turnlog.codec import TOP_LEVEL, Codec, Registry, to_plain
from turnlog.codec.schemas import FIRST_FILE_ID
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.topics import specs, topic_name

ROOT = Path(__file__).parents[2]
SAMPLE, SAMPLE_TRUTH = DATA_DIR / "sample.jsonl", DATA_DIR / "sample_truth.jsonl"
RUN = "tau-airline-gpt4o-t041-r0"
PREFIX = "turnlog."
GARBAGE = b"this is no record"
TOPICS = {
    topic_name(PREFIX, spec.name, toolset): spec
    for spec in specs().values()
    for toolset in (DOMAINS if spec.per_toolset else (None,))
}
UNUSED = {f"{PREFIX}tool-requests.retail"}
"""The run is an airline's."""


class Played(NamedTuple):
    """What a foreign reader is told: where the log is, where the registry."""

    bootstrap: str
    registry: str

    def read(self, topic: str) -> list[Any]:
        return everything(self.bootstrap, topic)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, registry_url: str) -> Iterator[Played]:
    """A recorded conversation to its end, a start that is refused, and a record that nobody can read."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TURNLOG_REGISTRY_URL", registry_url)
        script = load(SAMPLE, SAMPLE_TRUTH, [RUN])
        plan = Plan(tmp_path_factory.mktemp("play"), SAMPLE, SAMPLE_TRUTH)
        options = argparse.Namespace(play="read", concurrency=1, timeout=120.0, chaos=None)
        with stage(plan, lambda _: None) as system:
            producer = Producer({"bootstrap.servers": system.bootstrap, "partitioner": "murmur2"})
            producer.produce(f"{PREFIX}commands", GARBAGE, b"somebody")
            assert producer.flush(30) == 0
            runs, _ = converse(system, script, options, Teller(1, quiet=True))
            assert [run.problem for run in runs] == [""]
            with Client.connect(system.bootstrap) as client, pytest.raises(CommandRefused):
                client.submit("nobody", "hello", "refused").outcome(30)
            yield Played(system.bootstrap, registry_url)


@pytest.mark.parametrize("topic", TOPICS)
def test_confluents_deserializer_reads_what_a_real_run_wrote(played: Played, topic: str) -> None:
    """With nothing but the registry; and it reads what our codec reads."""
    kind = TOP_LEVEL[TOPICS[topic].value]
    registry = Registry(played.registry, register=False)
    codec = Codec(registry)
    values = [message.value() for message in played.read(topic) if message.value() != GARBAGE]
    with SchemaRegistryClient({"url": played.registry}) as client:
        deserialize = AvroDeserializer(client)
        read = [as_json(deserialize(value, SerializationContext(topic, MessageField.VALUE))) for value in values]
    assert read == [to_plain(codec.decode(value, kind)) for value in values]
    assert all(int.from_bytes(value[1:5], "big") < FIRST_FILE_ID for value in values)
    assert bool(values) == (topic not in UNUSED)


@pytest.mark.parametrize("topic", TOPICS)
def test_kcat_finds_everything_of_a_run_in_its_partition(played: Played, topic: str, kcat: str) -> None:
    """A key is a run id, or begins with one and a colon; the partition is what every Java client would take for the run id."""
    messages = {(message.partition(), message.offset()): message for message in played.read(topic)}
    lines = kcat_json(kcat, played.bootstrap, topic)
    assert {(line["partition"], line["offset"]) for line in lines} == messages.keys()
    for line in lines:
        message, key = messages[line["partition"], line["offset"]], line["key"] or ""
        assert key.encode() == (message.key() or b"")
        assert line.get("headers", [])[::2] == [name for name, _ in message.headers() or []]
        if TOPICS[topic].co_partitioned and key:
            assert line["partition"] == partition_of(key.partition(":")[0].encode(), 4)


def test_the_audit_agrees_with_a_real_journal(played: Played) -> None:
    """By the registry's schemas, sharing no code with us."""
    program = ROOT / "examples" / "audit_journal.py"
    command = [sys.executable, str(program), played.bootstrap, f"{PREFIX}journal", played.registry]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "unreadable" not in done.stdout
    assert "1 runs" in done.stdout
