"""Reading and verifying journals, on MemoryLog: what counts, what is found, and what a state was."""

from __future__ import annotations

import pytest

from tests.cli_cluster import ThreadedCluster
from tests.cli_journal import JournalWriter, respelt
from turnlog.codec import Codec
from turnlog.core.errors import BadHistory
from turnlog.core.events import Cancel, RunCancelled
from turnlog.core.snapshot import from_json, to_json
from turnlog.journal.history import NotInJournal, records_of, state_at
from turnlog.journal.reading import JournalReader, owners
from turnlog.journal.timeline import clean, words
from turnlog.journal.verification import Counts, Finding, PartitionCheck, describe
from turnlog.kafka.fenced import Verdict
from turnlog.kafka.port import Headers, Partition
from turnlog.schema_check import check_arguments

TOPIC = "t.journal"


class World:
    """A journal of four partitions in memory, its writer and its reader."""

    def __init__(self, partitions: int = 4) -> None:
        self.codec = Codec()
        self.cluster = ThreadedCluster()
        self.cluster.create(TOPIC, partitions)
        self._producer = self.cluster.producer("test")
        self.writer = JournalWriter(self.codec, partitions, self.append)
        self.journal = JournalReader(self.cluster.reader("test"), self.codec, TOPIC, partitions)

    def append(self, partition: int, key: bytes | None, value: bytes, headers: Headers) -> None:
        self._producer.produce(TOPIC, value, key=key, partition=partition, headers=headers)

    def verify(self, run_id: str) -> tuple[list[Finding], Counts]:
        partition = self.journal.partition_of(run_id)
        check = PartitionCheck(self.journal, partition, check_arguments)
        for entry in self.journal.entries(partition):
            check.take(entry)
        return check.findings, check.counts


@pytest.fixture
def world() -> World:
    made = World()
    made.writer.fence_all()
    return made


def test_a_whole_run_is_found_folded_and_verified(world: World) -> None:
    world.writer.whole("r1")
    world.writer.whole("another")
    entries = world.journal.run("r1")
    assert [e.verdict for e in entries if e.run_id] == [Verdict.STEP] * 5
    state, step = state_at("r1", records_of(entries))
    assert (step, state) == (4, world.writer.chains["r1"].state)
    assert world.verify("r1")[0] == []


def test_the_state_at_every_step_is_what_it_was(world: World) -> None:
    writer = world.writer
    states = []
    writer.start("r1")
    states.append(to_json(writer.chains["r1"].state))
    for key in writer.ask_tool("r1", "Ada"):
        states.append(to_json(writer.chains["r1"].state))
        writer.tool_says("r1", key)
        states.append(to_json(writer.chains["r1"].state))
    records = records_of(world.journal.run("r1"))
    for step, text in enumerate(states):
        assert to_json(state_at("r1", records, step)[0]) == text
    with pytest.raises(NotInJournal, match="steps 0 to 2"):
        state_at("r1", records, 3)


def test_a_run_that_is_not_there_has_no_entries(world: World) -> None:
    world.writer.whole("r1")
    assert world.journal.run("nobody") == []
    with pytest.raises(NotInJournal):
        state_at("nobody", [])


def test_repeats_and_void_records_are_skipped_and_counted(world: World) -> None:
    writer = world.writer
    writer.start("r1")
    writer.repeat("r1")
    writer.void("r1")
    writer.answer("r1")
    writer.repeat("r1")
    findings, counts = world.verify("r1")
    assert findings == []
    assert (counts.steps, counts.repeats, counts.void, counts.runs) == (2, 2, 1, 1)


def test_a_new_fence_voids_the_old_owner(world: World) -> None:
    writer = world.writer
    writer.start("r1")
    old = writer.chains["r1"].headers
    partition = writer.partition("r1")
    writer.fence(partition, "host/loop-1")
    world.append(partition, b"r1", writer.chains["r1"].value, old)
    writer.answer("r1")
    entries = world.journal.run("r1")
    assert [e.verdict for e in entries if e.run_id] == [Verdict.STEP, Verdict.VOID, Verdict.STEP]
    assert [owner.name for owner in owners(entries)] == ["host/loop-0", "host/loop-1"]


def test_a_broken_chain_stops_the_run_and_no_other(world: World) -> None:
    writer = world.writer
    neighbour = next(name for name in map("n{}".format, range(50)) if writer.partition(name) == writer.partition("r1"))
    writer.start("r1")
    writer.chains["r1"].step += 1  # a step is missing
    writer.answer("r1")
    writer.whole(neighbour)
    findings, counts = world.verify("r1")
    assert [(f.kind, f.run_id, f.step) for f in findings] == [("broken_chain", "r1", 2)]
    assert counts.runs == 2


def test_a_step_with_another_hash_is_a_broken_chain(world: World) -> None:
    world.writer.start("r1")
    world.writer.chains["r1"].prev = b"\1" * 32
    world.writer.answer("r1")
    assert [f.kind for f in world.verify("r1")[0]] == ["broken_chain"]


def test_an_unknown_event_kind_is_found_and_does_not_stop_the_partition(world: World) -> None:
    scratch = World()  # where the bytes of a newer build are made
    scratch.writer.fence_all()
    for writer in (world.writer, scratch.writer):
        writer.start("r1")
    scratch.writer.say("r1", Cancel("c1", "no reason"))
    made = scratch.writer.chains["r1"]
    world.writer.put("r1", respelt(made.value, "run_cancelled", "run_teleport1"), made.headers)
    findings, _ = world.verify("r1")
    assert [(f.kind, f.step) for f in findings] == [("unreadable", 1)]
    assert "run_teleport1" in findings[0].message
    with pytest.raises(BadHistory):
        records_of(world.journal.run("r1"))


def test_bytes_that_are_no_record_are_found(world: World) -> None:
    world.writer.start("r1")
    chain = world.writer.chains["r1"]
    headers = [(name, b"1" if name == "step" else value) for name, value in chain.headers]
    world.writer.put("r1", b"\0\0\0\0\7garbage", [*headers, ("prev", chain.prev)])
    findings, _ = world.verify("r1")
    assert [f.kind for f in findings] == ["unreadable"]


def test_a_divergence_names_only_what_differs(world: World) -> None:
    scratch = World()
    scratch.writer.fence_all()
    for writer in (world.writer, scratch.writer):
        writer.start("r1")
    *events, last = scratch.writer.say("r1", Cancel("c1"))
    world.writer.write("r1", (*events, last._replace(payload=RunCancelled("invented"))))
    findings, _ = world.verify("r1")
    assert [(f.kind, f.step, f.arrival) for f in findings] == [("divergence", 1, "cancel_requested")]
    assert findings[0].differences == (("events[1].payload.reason", "invented", "cancelled"),)
    assert "recorded: 'invented'" in "\n".join(describe(findings[0]))


def test_headers_that_contradict_the_value_are_found(world: World) -> None:
    home = world.writer.partition("r1")
    other = next(name for name in map("n{}".format, range(50)) if world.writer.partition(name) == home)
    world.writer.start("r1")
    chain = world.writer.chains["r1"]
    world.append(home, other.encode(), chain.value, chain.headers)
    findings, _ = world.verify("r1")
    assert [(f.kind, f.run_id) for f in findings] == [("headers", other)]
    assert findings[0].message == f"key is '{other}' in the headers and 'r1' in the value"


def test_a_run_in_a_foreign_partition_is_found(world: World) -> None:
    abroad = (world.writer.partition("r1") + 1) % 4
    world.writer.partition = lambda run_id: abroad  # type: ignore[method-assign]
    world.writer.start("r1")
    check = PartitionCheck(world.journal, Partition(TOPIC, abroad), check_arguments)
    for entry in world.journal.entries(Partition(TOPIC, abroad)):
        check.take(entry)
    assert [f.kind for f in check.findings] == ["wrong_partition"]


def test_a_snapshot_is_compared_with_the_fold(world: World) -> None:
    writer = world.writer
    writer.start("r1")
    writer.snapshot("r1")
    assert world.verify("r1")[0] == []
    lying = from_json(to_json(writer.chains["r1"].state))
    lying.tool_calls = 7
    writer.snapshot("r1", to_json(lying))
    findings, _ = world.verify("r1")
    assert [f.kind for f in findings] == ["snapshot"]
    assert findings[0].differences == (("tool_calls", 7, 0),)


def test_a_run_whose_head_was_trimmed_begins_with_its_snapshot(world: World) -> None:
    writer = world.writer
    writer.start("r1")
    (key,) = writer.ask_tool("r1", "Ada")
    writer.fence(writer.partition("r1"))
    partition = world.journal.partition_of("r1")
    cut = world.journal.bounds(partition)[1] - 1
    writer.snapshot("r1")
    writer.tool_says("r1", key)
    with world.cluster.lock:
        world.cluster.memory.admin().delete_records({partition: cut})
    state, step = state_at("r1", records_of(world.journal.run("r1")))
    assert (step, to_json(state)) == (2, to_json(writer.chains["r1"].state))
    with pytest.raises(NotInJournal):
        state_at("r1", records_of(world.journal.run("r1")), 0)
    assert world.verify("r1")[0] == []


def test_a_log_that_does_not_begin_with_a_fence_is_found() -> None:
    world = World(1)
    world.writer._tokens[0] = b"x" * 16
    world.writer.start("r1")
    assert [f.kind for f in world.verify("r1")[0]] == ["log_start"]


def test_late_outcomes_after_the_end_are_verified(world: World) -> None:
    writer = world.writer
    writer.start("r1")
    (key,) = writer.ask_tool("r1", "Ada")
    writer.say("r1", Cancel("c1"))
    writer.tool_says("r1", key)
    findings, counts = world.verify("r1")
    assert findings == []
    assert counts.steps == 4


def test_the_fence_before_an_offset_is_found_backwards(world: World) -> None:
    partition = world.journal.partition_of("r1")
    world.writer.whole("r1")
    _, end = world.journal.bounds(partition)
    first = world.journal.token_before(partition, end)
    second = world.writer.fence(partition.index)
    assert world.journal.token_before(partition, end) == first != second
    assert world.journal.token_before(partition, end + 1) == second
    assert world.journal.token_before(partition, 0) is None


def test_every_event_has_words(world: World) -> None:
    world.writer.whole("r1")
    records = records_of(world.journal.run("r1"))
    said = [words(event) for record in records for event in record.events]
    assert all(said)
    assert any("“Who is Ada?”" in text for text in said)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [("a\nb", "a ⏎ b"), ("\x1b[31mred", "�[31mred"), ("a\u202eb", "a�b"), ("x" * 9, "xxxx…"), ("\udc80", "�")],
)
def test_texts_cannot_command_a_terminal(raw: str, shown: str) -> None:
    assert clean(raw, 20 if len(raw) != 9 else 5) == shown
