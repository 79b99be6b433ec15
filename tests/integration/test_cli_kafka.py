"""The command line as a program of its own, against a real broker with a journal written by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.broker_fixture import SharedBroker
from tests.cli_journal import JournalWriter, respelt
from turnlog.cli.errors import Exit
from turnlog.client import Client, idle
from turnlog.codec import Codec
from turnlog.core.events import Cancel
from turnlog.core.records import Command, CommandOutcome, DeadLetter, Header, InputRef
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.fenced import Pointer
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import Delivered, Headers, Partition, Position

PARTITIONS = 3


class Installation:
    """Topics under a prefix of their own, a journal writer on them, and the program."""

    def __init__(self, bootstrap: str, prefix: str, folder: Path) -> None:
        self.prefix = prefix
        self.cluster = KafkaCluster({"bootstrap.servers": bootstrap})
        self.codec = Codec()
        self.producer = self.cluster.producer("test")
        self.writer = JournalWriter(self.codec, PARTITIONS, self._journal)
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")},
            "TURNLOG_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "TURNLOG_TOPIC_PREFIX": prefix,
            "TURNLOG_PARTITIONS": str(PARTITIONS),
            "TURNLOG_STATE_DIR": str(folder),
        }

    def _journal(self, partition: int, key: bytes | None, value: bytes, headers: Headers) -> None:
        self.producer.produce(f"{self.prefix}journal", value, key=key, partition=partition, headers=headers)

    def put(self, topic: str, key: str, record: Any) -> None:
        self.producer.produce(self.prefix + topic, self.codec.encode(record), key=key.encode())

    def landed(self) -> None:
        assert self.producer.flush(20) == 0

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "turnlog.cli.main", *arguments]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output of the program, which must end with `code`."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, (process.returncode, out, err)
        assert "Traceback" not in err
        return out

    def lines(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*arguments, "--json", code=code).splitlines()]


@pytest.fixture
def installation(broker: SharedBroker, topic_prefix: str, tmp_path: Path) -> Iterator[Installation]:
    made = Installation(broker.bootstrap, topic_prefix, tmp_path)
    made.run("topics", "create")
    yield made
    made.producer.close()


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    with Client(installation.cluster, installation.codec, installation.prefix) as made:
        yield made


def test_topics_are_created_once_and_checked(installation: Installation) -> None:
    assert installation.lines("topics", "create") == [{"created": []}]
    found = installation.lines("topics", "check")
    assert all(item["severity"] == "warning" for item in found)
    installation.env["TURNLOG_PARTITIONS"] = "5"
    assert "partitions is 3, expected 5" in installation.run("topics", "check", code=Exit.BAD)


def test_a_journal_is_shown_replayed_and_verified(installation: Installation) -> None:
    writer = installation.writer
    writer.fence_all()
    writer.whole("good")
    writer.repeat("good")
    writer.void("good")
    writer.start("broken")
    writer.chains["broken"].step += 1
    writer.answer("broken")
    scratch = JournalWriter(installation.codec, PARTITIONS, lambda *_: None)
    scratch.fence_all()
    for each in (writer, scratch):
        each.start("newer")
    scratch.say("newer", Cancel("c1"))
    made, mine = scratch.chains["newer"], writer.chains["newer"]
    headers = list({**dict(made.headers), "fence": dict(mine.headers)["fence"], "prev": mine.prev}.items())
    writer.put("newer", respelt(made.value, "run_cancelled", "run_teleport1"), headers)
    installation.landed()

    timeline = installation.run("runs", "show", "good", "--journal")
    assert "owned by host/loop-0" in timeline
    assert "run_succeeded" in timeline
    (state,) = installation.lines("replay", "good", "--step", "1")
    assert (state["phase"], len(state["calls"])) == ("calls", 2)
    assert installation.lines("verify", "good")[-1]["findings"] == 0

    *findings, counts = installation.lines("verify", "--all", code=Exit.BAD)
    assert {(item["kind"], item["run_id"]) for item in findings} == {
        ("broken_chain", "broken"),
        ("unreadable", "newer"),
    }
    assert (counts["runs"], counts["repeats"], counts["void"], counts["fences"]) == (3, 1, 1, PARTITIONS)
    explained = installation.run("runs", "explain", "broken")
    assert "its chain is broken" in explained


def test_runs_are_submitted_from_the_program_and_followed(installation: Installation, client: Client) -> None:
    writer = installation.writer
    writer.fence_all()
    installation.landed()
    process = installation.start("run", "clerk", "--input", "Who is Ada?", "--run-id", "case-1", "--follow", "--json")
    try:
        command = _next_command(installation)
        assert (command.kind, command.run_id) == ("start", "case-1")
        installation.put(
            "command-outcomes",
            command.command_id,
            CommandOutcome(command.command_id, "case-1", "start", "accepted", "", 0, 1),
        )
        writer.whole("case-1")
        installation.put("run-state", "case-1", writer.summary("case-1"))
        installation.landed()
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    items = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, items[-1]["answer"]) == (0, "Ada was a mathematician."), err
    assert [item["kind"] for item in items[:2]] == ["run_started", "turn_started"]
    assert client.get("case-1").status == "succeeded"
    assert [event.event.kind for event in client.events("case-1", timeout_s=20)][-1] == "run_succeeded"


def _next_command(installation: Installation) -> Command:
    """The first command that arrives, as the loop would read it."""
    reader = installation.cluster.reader("loop")
    reader.follow({Partition(f"{installation.prefix}commands", i): 0 for i in range(PARTITIONS)})
    end = time.monotonic() + 30
    try:
        while time.monotonic() < end:
            for record in reader.poll(0.5):
                assert record.partition == partition_of(record.key or b"", PARTITIONS)
                return installation.codec.decode(record.value, Command)
    finally:
        reader.close()
    raise AssertionError("no command arrived")


def test_following_ends_cleanly_by_ctrl_c(installation: Installation) -> None:
    installation.writer.fence_all()
    installation.writer.start("case-1")
    installation.put("run-state", "case-1", installation.writer.summary("case-1"))
    installation.landed()
    process = installation.start("runs", "show", "case-1", "--follow")
    assert process.stdout is not None
    assert "run_started" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == Exit.INTERRUPTED
    assert "the run goes on" in err
    assert "Traceback" not in err


def test_a_reader_of_our_output_may_leave_early(installation: Installation) -> None:
    installation.writer.fence_all()
    for number in range(200):
        installation.writer.start(f"r{number}")
        installation.put("run-state", f"r{number}", installation.writer.summary(f"r{number}"))
    installation.landed()
    command = f"{sys.executable} -m turnlog.cli.main runs list -n 200 --json | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=installation.env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["agent"] == "clerk"


def test_the_client_sees_what_the_loop_publishes(installation: Installation, client: Client) -> None:
    run = client.submit("clerk", "hello", "r1")
    installation.writer.fence_all()
    installation.writer.start("r1")
    installation.put(
        "command-outcomes", run.command_id, CommandOutcome(run.command_id, "r1", "start", "accepted", "", 0, 1)
    )
    installation.put("run-state", "r1", installation.writer.summary("r1"))
    assert run.outcome(20).step == 0
    assert run.wait(20, lambda summary: summary.status == "running").waits_for == "model"
    installation.writer.answer("r1")
    installation.put("run-state", "r1", installation.writer.summary("r1"))
    assert run.wait(20).answer == "Ada was a mathematician."
    assert client.wait("r1", 20, idle).status == "succeeded"


def test_dead_letters_go_back_where_they_came_from(installation: Installation) -> None:
    value = b"\x00\xffnot avro"
    letter = DeadLetter(
        InputRef(f"{installation.prefix}tool-results", 2, 5), "not_avro", "read it", b"k", value, len(value), sha256(value).digest(),
        (Header("h", b"\x01"), Header("h", None)), "loop", 1,
    )  # fmt: skip
    installation.put("dead-letters", "k", letter)
    installation.landed()
    (item,) = installation.lines("dead-letters", "list")
    assert "sent to" in installation.run("dead-letters", "retry", item["id"], "--yes")
    (record,) = installation.cluster.reader("x").read_at(Partition(f"{installation.prefix}tool-results", 2), [0])
    assert (record.key, record.value, record.headers) == (b"k", value, (("h", b"\x01"), ("h", None)))


def test_adopting_a_log_that_was_made_anew(installation: Installation) -> None:
    prefix, group = installation.prefix, f"{installation.prefix}loop"
    admin = installation.cluster.admin()
    stale = Pointer(900, b"x" * 16, 1_000, 900, 4, ((f"{prefix}commands", "another0"),)).encode()
    admin.reset_positions(group, {Partition(f"{prefix}commands", i): Position(50, stale) for i in range(PARTITIONS)})
    installation.writer.fence_all()
    installation.landed()
    shown = installation.lines("topics", "adopt", "--yes")[0]
    assert shown["epoch"] == 5
    found = admin.group_positions(group, [Partition(f"{prefix}{topic}", 1) for topic in ("commands", "tool-results")])
    commands, results = found[Partition(f"{prefix}commands", 1)], found[Partition(f"{prefix}tool-results", 1)]
    assert commands is not None
    assert results is not None
    pointer = Pointer.decode(commands.metadata)
    assert pointer is not None
    assert (commands.offset, results.offset, pointer.epoch, pointer.floor, pointer.end) == (0, 0, 5, 0, 1)
    admin.close()


def test_keys_lie_where_librdkafka_puts_them(installation: Installation) -> None:
    keys = [f"run-{i}" * (i % 7 + 1) for i in range(200)]
    found: dict[int, int] = {}

    def note(number: int) -> Any:
        def report(delivered: Delivered) -> None:
            found[number] = delivered.partition

        return report

    for number, key in enumerate(keys):
        installation.producer.produce(
            f"{installation.prefix}commands", b"x", key=key.encode(), on_delivery=note(number)
        )
    installation.landed()
    assert found == {number: partition_of(key.encode(), PARTITIONS) for number, key in enumerate(keys)}
