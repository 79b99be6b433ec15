"""Readers that are not ours: Confluent's AvroDeserializer, kcat, and an audit that imports nothing of Turnlog.

What they read is written here through our codec, one record for each example; tests/e2e reads the topics of real runs so.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.broker_fixture import SharedBroker
from tests.foreign_readers import as_json, everything, kcat_json
from tests.record_samples import examples
from turnlog.codec import Codec, Registry
from turnlog.codec.schemas import TOP_LEVEL
from turnlog.core.events import Event, RunCancelled
from turnlog.core.records import Fence, JournalRecord, Snapshot
from turnlog.kafka.topics import specs

TOPICS = {f"{spec.name}.airline" if spec.per_toolset else spec.name: spec.value for spec in specs().values()}
"""Topic to record."""
PARTITIONS = 4
AUDIT = Path(__file__).parents[2] / "examples" / "audit_journal.py"
Headers = list[tuple[str, str | bytes | None]]
JAVA = {"partitioner": "murmur2_random"}


class Topics(NamedTuple):
    """Topics with one record for each example. `registry` and `bootstrap` are what a foreign reader needs."""

    prefix: str
    bootstrap: str
    registry: str


@pytest.fixture(scope="module")
def topics(broker: SharedBroker, registry_url: str) -> Iterator[Topics]:
    prefix = f"foreign-{sha256(broker.bootstrap.encode()).hexdigest()[:6]}."
    create(broker.bootstrap, *(f"{prefix}{topic}" for topic in TOPICS))
    registry = Registry(registry_url)
    codec = Codec(registry, {f"{prefix}{topic}": TOP_LEVEL[record] for topic, record in TOPICS.items()})
    producer = Producer({"bootstrap.servers": broker.bootstrap, **JAVA})
    for topic, record in TOPICS.items():
        for example in (one for one in examples() if one.kind.__name__ == record):
            headers: Headers = [("example", example.name.encode()), ("traceparent", b"00-0af7-b7ad-01")]
            producer.produce(prefix + topic, codec.encode(example.record), example.name.encode(), headers=headers)
    assert producer.flush(30) == 0
    yield Topics(prefix, broker.bootstrap, registry_url)
    delete(broker.bootstrap, *(f"{prefix}{topic}" for topic in TOPICS))


def create(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        created.result(30)


def delete(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_topics(list(names)).values():
        deleted.result(30)


def test_every_record_has_its_topic() -> None:
    assert set(TOPICS.values()) == TOP_LEVEL.keys()


@pytest.mark.parametrize("topic", TOPICS)
def test_confluents_deserializer_reads_every_topic(topics: Topics, topic: str) -> None:
    """With nothing but the registry: the very values of the examples, payloads under the names of their kinds."""
    context = SerializationContext(topics.prefix + topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": topics.registry}) as client:
        deserialize = AvroDeserializer(client)
        read = {
            message.key().decode(): as_json(deserialize(message.value(), context))
            for message in everything(topics.bootstrap, topics.prefix + topic)
        }
    assert read == {one.name: one.plain for one in examples() if one.kind.__name__ == TOPICS[topic]}


@pytest.mark.parametrize("topic", TOPICS)
def test_kcat_reads_keys_headers_and_partitions(topics: Topics, topic: str, kcat: str) -> None:
    name = topics.prefix + topic
    lines = kcat_json(kcat, topics.bootstrap, name)
    expected = {message.key().decode(): message for message in everything(topics.bootstrap, name)}
    assert {line["key"] for line in lines} == expected.keys()
    for line in lines:
        message = expected[line["key"]]
        assert (line["topic"], line["partition"], line["offset"]) == (name, message.partition(), message.offset())
        assert line["headers"] == ["example", line["key"], "traceparent", "00-0af7-b7ad-01"]


# ---------------------------------------------------------------- the audit


class Journal:
    """Writes a journal as owners would; what the audit must make of it is known."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        create(bootstrap, topic)
        self.topic = topic
        self._codec = Codec()
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._values: dict[str, list[bytes]] = {}

    def write(self, record: JournalRecord, partition: int = 0) -> None:
        value = self._codec.encode(record)
        if record.kind == "step":
            self._values.setdefault(record.run_id, []).append(value)
        self.put(value, record, partition)

    def put(self, value: bytes, record: JournalRecord, partition: int = 0) -> None:
        headers: Headers = [("kind", record.kind.encode()), ("fence", record.fence), ("step", b"%d" % record.step)]
        self._producer.produce(self.topic, value, record.run_id.encode() or None, partition, headers=headers)

    def fence(self, token: bytes, partition: int = 0) -> None:
        self.write(JournalRecord("fence", token, "", -1, None, 1, "b", 0, 1, (), (), Fence("me", (), 1, ())), partition)

    def step(self, token: bytes, run: str, step: int, prev: bytes | None) -> JournalRecord:
        event = Event("run_cancelled", 1, payload=RunCancelled(f"{run} {step}"))
        record = JournalRecord("step", token, run, step, prev, 1, "b", 1, 1, (), (event,))
        self.write(record)
        return record

    def head(self, run: str) -> bytes:
        return sha256(self._values[run][-1]).digest()

    def audit(self, bootstrap: str, *source: str) -> tuple[int, str]:
        status, said, wrong = self.run_audit(bootstrap, self.topic, *source)
        assert not wrong, wrong
        return status, said

    def run_audit(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, standard output, standard error."""
        assert self._producer.flush(30) == 0
        done = subprocess.run([sys.executable, str(AUDIT), *arguments], capture_output=True, text=True, timeout=90)
        return done.returncode, done.stdout, done.stderr


A, B = b"a" * 16, b"b" * 16


@pytest.fixture
def journal(broker: SharedBroker, topic_prefix: str) -> Iterator[Journal]:
    one = Journal(broker.bootstrap, f"{topic_prefix}journal")
    yield one
    delete(broker.bootstrap, one.topic)


def good(journal: Journal) -> None:
    """Two owners: repeats, void records, a snapshot, a run whose beginning was trimmed."""
    journal.fence(A)
    journal.step(A, "r1", 0, None)
    twice = journal.step(A, "r1", 1, journal.head("r1"))
    journal.write(twice)
    head = journal.head("r1")
    snapshot = JournalRecord("snapshot", A, "r1", 1, head, 1, "b", 1, 1, (), (), snapshot=Snapshot("{}", None, 2))
    journal.write(snapshot)
    journal.step(A, "old", 7, b"x" * 32)
    journal.write(snapshot._replace(run_id="old", step=7, prev=journal.head("old")))
    journal.step(A, "old", 8, journal.head("old"))
    journal.fence(B)
    journal.step(A, "zombie", 0, None)
    journal.step(B, "r1", 2, head)
    journal.fence(B, partition=1)


def test_audit_agrees_with_a_good_journal(journal: Journal, broker: SharedBroker) -> None:
    good(journal)
    status, said = journal.audit(broker.bootstrap)
    assert status == 0, said
    assert said.endswith(": 2 runs, 3 fence, 1 repeat, 2 snapshot, 4 step, 1 trimmed, 1 void\n")


@pytest.mark.parametrize(
    "damage",
    [
        lambda journal: journal.step(B, "r1", 4, journal.head("r1")),
        lambda journal: journal.step(B, "r1", 3, b"?" * 32),
        lambda journal: journal.step(B, "r1", 3, None),
        lambda journal: journal.step(B, "r1", 2, journal.head("r1")),
        lambda journal: journal.step(B, "new", 0, b"?" * 32),
        lambda journal: journal.write(
            JournalRecord("snapshot", B, "r1", 2, b"?" * 32, 1, "b", 1, 1, (), (), snapshot=Snapshot("{}", None, 2))
        ),
    ],
    ids=["gap", "another hash", "no hash", "another step 2", "hash at step 0", "snapshot of another step"],
)
def test_audit_finds_a_broken_chain(journal: Journal, broker: SharedBroker, damage: Callable[[Journal], None]) -> None:
    good(journal)
    damage(journal)
    status, said = journal.audit(broker.bootstrap)
    assert status == 1
    assert "broken: partition 0, offset 11, run" in said
    assert "1 BROKEN" in said


def test_audit_goes_on_after_what_is_no_record(journal: Journal, broker: SharedBroker) -> None:
    good(journal)
    journal.put(b"garbage", JournalRecord("step", B, "r1", 3, None, 1, "b", 1, 1, (), ()))
    journal.step(B, "r1", 3, journal.head("r1"))
    status, said = journal.audit(broker.bootstrap)
    assert (status, "1 unreadable" in said, "5 step" in said) == (0, True, True), said


def test_audit_that_could_judge_nothing_is_no_clean_one(
    journal: Journal, broker: SharedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good(journal)
    assert journal.run_audit(broker.bootstrap, journal.topic, str(tmp_path)) == (
        1,
        f"{journal.topic}: 0 runs, 12 unreadable\n",
        f"nothing could be read: are the schemas in {tmp_path}?\n",
    )
    status, _, said = journal.run_audit(broker.bootstrap, f"{journal.topic}-mistyped")
    assert (status, said) == (1, f"there is no topic {journal.topic}-mistyped\n")
    monkeypatch.chdir(tmp_path)  # its own schemas are found from any folder
    status, said, _ = journal.run_audit(broker.bootstrap, journal.topic)
    assert (status, "unreadable" in said) == (0, False), said


@pytest.mark.parametrize("arguments", [(), ("--help",), ("a", "b", "c", "d")])
def test_audit_says_how_it_is_called(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, str(AUDIT), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "python audit_journal.py BOOTSTRAP" in done.stderr
    assert "Traceback" not in done.stderr


def test_audit_with_schemas_from_the_registry(topics: Topics) -> None:
    """The examples are no whole journal, so only what could be read counts: all of it."""
    command = [sys.executable, str(AUDIT), topics.bootstrap, f"{topics.prefix}journal", topics.registry]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert not done.stderr, done.stderr
    assert "unreadable" not in done.stdout
