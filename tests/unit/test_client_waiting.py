"""The client against a loop that the test plays by hand, on MemoryLog."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli_cluster import ThreadedCluster
from tests.cli_journal import JournalWriter
from turnlog.client import (
    BadCommand,
    Client,
    CommandRefused,
    NotAcknowledged,
    NotConnected,
    RunUnknown,
    StartRequest,
    TimedOut,
    ended,
    idle,
)
from turnlog.client.client import CONTACT_S
from turnlog.client.connect import BOOTSTRAP_VARIABLE, embedded
from turnlog.codec import Codec
from turnlog.core.agents import Usage
from turnlog.core.records import Command, CommandOutcome, RunSummary
from turnlog.kafka.port import Headers, Partition, Retryable
from turnlog.local.process import ProcessName
from turnlog.local.state import Identity, RunningBroker, StateDir
from turnlog.settings import Settings

TOPICS = ("commands", "run-state", "command-outcomes", "journal")


class Loop:
    """What the test says in the loop's place."""

    def __init__(self, partitions: int = 2) -> None:
        self.cluster = ThreadedCluster()
        for name in TOPICS:
            self.cluster.create(f"t.{name}", partitions)
        self.codec = Codec()
        self._producer = self.cluster.producer("loop")
        self._reader = self.cluster.reader("loop")
        self._partitions = partitions
        self.writer = JournalWriter(self.codec, partitions, self._journal)

    def _journal(self, partition: int, key: bytes | None, value: bytes, headers: Headers) -> None:
        self._producer.produce("t.journal", value, key=key, partition=partition, headers=headers)

    def commands(self) -> list[Command]:
        """Everything that was sent so far."""
        found = []
        for index in range(self._partitions):
            partition = Partition("t.commands", index)
            for batch in self._reader.read(partition, *self._reader.bounds(partition)):
                found += [self.codec.decode(record.value, Command) for record in batch]
        return found

    def outcome(
        self,
        command_id: str,
        run_id: str,
        kind: str = "start",
        outcome: str = "accepted",
        reason: str = "",
        step: int | None = 0,
    ) -> None:
        record = CommandOutcome(command_id, run_id, kind, outcome, reason, step, 1)
        self._producer.produce("t.command-outcomes", self.codec.encode(record), key=command_id.encode())

    def summary(
        self, run_id: str, step: int, status: str = "running", waits_for: str = "", answer: str | None = None
    ) -> None:
        record = RunSummary(
            run_id, "clerk", "1", (), status, "", waits_for, 0, 0, Usage(), answer, None, step, b"", 1, 1, None
        )
        self._producer.produce("t.run-state", self.codec.encode(record), key=run_id.encode())

    def forget(self, run_id: str) -> None:
        self._producer.produce("t.run-state", None, key=run_id.encode())


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def client(loop: Loop) -> Iterator[Client]:
    with Client(loop.cluster, loop.codec, "t.") as made:
        yield made


def test_a_run_is_submitted_and_waited_for(loop: Loop, client: Client) -> None:
    run = client.submit("clerk", "hello", "r1", labels={"tenant": "acme"})
    (command,) = loop.commands()
    assert (command.run_id, command.command_id, command.kind) == ("r1", "start:r1", "start")
    loop.outcome(run.command_id, "r1")
    loop.summary("r1", 0)
    loop.summary("r1", 3, "succeeded", answer="hi")
    assert run.outcome(5).step == 0
    assert run.wait(5).answer == "hi"


def test_waiting_is_woken_by_news(loop: Loop, client: Client) -> None:
    run = client.submit("clerk", run_id="r1")
    threading.Timer(0.1, loop.summary, ("r1", 2, "failed")).start()
    began = time.monotonic()
    assert run.wait(10).status == "failed"
    assert time.monotonic() - began < 5


def test_a_refused_start_ends_every_wait(loop: Loop, client: Client) -> None:
    run = client.submit("nobody", run_id="r1")
    loop.outcome(run.command_id, "r1", outcome="refused", reason="unknown_agent", step=None)
    with pytest.raises(CommandRefused, match="unknown_agent"):
        run.wait(5)
    with pytest.raises(CommandRefused) as refused:
        run.outcome(5)
    assert refused.value.outcome.reason == "unknown_agent"


def test_a_duplicate_start_finds_the_run_that_is_there(loop: Loop, client: Client) -> None:
    loop.summary("r1", 7, "succeeded", answer="long ago")
    run = client.submit("clerk", run_id="r1")
    loop.outcome(run.command_id, "r1", outcome="duplicate", step=None)
    assert run.outcome(5).outcome == "duplicate"
    assert run.wait(5).answer == "long ago"


def test_runs_of_others_are_found(loop: Loop, client: Client) -> None:
    loop.summary("other", 1)
    loop.summary("other", 4, "succeeded", answer="yes")
    assert client.wait("other", 5).answer == "yes"
    assert client.get("other").step == 4


def test_a_run_of_before_has_a_handle(loop: Loop, client: Client) -> None:
    loop.summary("r1", 3, "waiting", "input", "what else?")
    loop.outcome("start:r1", "r1")
    run = client.run("r1")
    assert run.get().answer == "what else?"
    assert run.wait(5, idle).step == 3
    assert run.outcome(5).outcome == "accepted"
    loop.outcome(run.input("thanks", command_id="c1"), "r1", "input", step=4)
    assert client.outcome("c1", 5).step == 4
    with pytest.raises(RunUnknown):
        client.run("nobody").get()
    with pytest.raises(BadCommand):
        client.run("a b")


def test_many_threads_may_wait_for_one_run(loop: Loop, client: Client) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(client.wait("r1", 10).status)) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    loop.summary("r1", 1, "succeeded")
    for thread in threads:
        thread.join()
    assert found == ["succeeded"] * 8


def test_an_old_summary_written_late_changes_nothing(loop: Loop, client: Client) -> None:
    loop.summary("r1", 5, "succeeded")
    loop.summary("r1", 2, "running")
    assert client.get("r1").step == 5
    assert client.wait("r1", 5).step == 5


def test_a_forgotten_run_is_unknown(loop: Loop, client: Client) -> None:
    loop.summary("r1", 5, "succeeded")
    loop.forget("r1")
    with pytest.raises(RunUnknown):
        client.get("r1")
    with pytest.raises(BadCommand):
        client.get("no such id")


def test_time_is_bounded_and_says_what_is_known(loop: Loop, client: Client) -> None:
    loop.summary("r1", 1, "waiting", "input")
    with pytest.raises(TimedOut, match=r"waited 0\.2 s in vain for run .r1.: it is waiting, waiting for input"):
        client.wait("r1", 0.2)
    with pytest.raises(TimeoutError, match="nothing is known"):
        client.wait("r2", 0.1)
    with pytest.raises(TimedOut, match="is the loop running"):
        client.outcome("c1", 0.1)


def test_waiting_until_it_waits_for_its_user(loop: Loop, client: Client) -> None:
    loop.summary("r1", 1, "waiting", "input")
    assert client.wait("r1", 5, idle).step == 1
    assert not ended(client.get("r1"))


def test_asking_waits_for_the_answer_to_this_question(loop: Loop, client: Client) -> None:
    loop.summary("r1", 1, "waiting", "input", "first")
    client.wait("r1", 5, idle)

    def reply() -> None:
        while not (sent := loop.commands()):
            time.sleep(0.01)
        loop.outcome(sent[0].command_id, "r1", "input", step=2)
        loop.summary("r1", 2, "running", "model")
        loop.summary("r1", 3, "waiting", "input", "second")

    threading.Thread(target=reply).start()
    assert client.ask("r1", "and then?", timeout_s=10).answer == "second"


def test_outcomes_of_before_are_found(loop: Loop, client: Client) -> None:
    loop.outcome("old", "r1", "cancel")
    assert client.outcome("old", 5).kind == "cancel"


def test_many_runs_in_flight_are_told_to_the_listener(loop: Loop, client: Client) -> None:
    done: list[str] = []
    enough = threading.Event()

    def listen(summary: RunSummary) -> None:
        if ended(summary):
            done.append(summary.run_id)
            if len(done) == 500:
                enough.set()
            if len(done) == 1:
                raise RuntimeError("a listener may fail")

    client.on_update(listen)
    handles = client.submit_many(StartRequest("clerk", run_id=f"r{i}") for i in range(500))
    assert len(loop.commands()) == 500
    for handle in handles:
        loop.summary(handle.run_id, 1, "succeeded")
    assert enough.wait(20)
    assert len(set(done)) == 500


def test_a_listener_may_submit_the_next_run(loop: Loop, client: Client) -> None:
    client.on_update(
        lambda summary: client.submit("clerk", run_id="next", acknowledged=False) if summary.run_id == "first" else None
    )
    client.submit("clerk", run_id="first")
    loop.summary("first", 1, "succeeded")
    client.wait("first", 5)
    end = time.monotonic() + 5
    while len(loop.commands()) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert [command.run_id for command in loop.commands() if command.run_id == "next"] == ["next"]


def test_what_is_not_acknowledged_in_time_may_be_sent_again(loop: Loop, client: Client) -> None:
    with loop.cluster.lock:
        loop.cluster.memory.hold("t.commands")
    with pytest.raises(NotAcknowledged, match="sending it again with the same id is safe"):
        client.submit("clerk", run_id="r1", timeout_s=0.2)
    with loop.cluster.lock:
        loop.cluster.memory.release()
    client.submit("clerk", run_id="r1")
    assert {command.command_id for command in loop.commands()} == {"start:r1"}


def test_an_installation_without_topics_is_told_at_once() -> None:
    client = Client(ThreadedCluster(), Codec(), "t.")
    with pytest.raises(NotConnected, match="turnlog topics create"):
        client.submit("clerk")
    client.close()


def test_a_closed_client_says_so_to_whoever_waits(loop: Loop) -> None:
    client = Client(loop.cluster, loop.codec, "t.")
    seen: list[BaseException] = []

    def waiting() -> None:
        try:
            client.wait("r1", 30)
        except NotConnected as problem:
            seen.append(problem)

    thread = threading.Thread(target=waiting)
    thread.start()
    time.sleep(0.2)
    client.close()
    thread.join(5)
    assert [str(problem) for problem in seen] == ["the client is closed"]
    with pytest.raises(NotConnected):
        client.submit("clerk")


def test_events_are_followed_from_the_first_to_the_end(loop: Loop, client: Client) -> None:
    loop.writer.fence_all()
    loop.writer.whole("other")
    mark = client.mark("r1")
    loop.writer.start("r1")
    loop.writer.void("r1")
    loop.writer.repeat("r1")
    loop.writer.answer("r1")
    kinds = ["run_started", "turn_started", "model_answered", "run_succeeded"]
    assert [recorded.event.kind for recorded in client.events("r1", timeout_s=5)] == kinds
    followed = list(client.events("r1", since=mark, timeout_s=5))
    assert [recorded.event.kind for recorded in followed] == kinds
    assert [recorded.last for recorded in followed] == [False, True, False, True]


def test_events_of_a_run_that_goes_on_end_with_the_time(loop: Loop, client: Client) -> None:
    loop.writer.fence_all()
    loop.writer.start("r1")
    seen: list[str] = []
    with pytest.raises(TimedOut):
        seen.extend(recorded.event.kind for recorded in client.events("r1", timeout_s=0.3))
    assert seen == ["run_started", "turn_started"]


def test_listing_has_the_newest_of_every_run(loop: Loop, client: Client) -> None:
    loop.summary("a", 1)
    loop.summary("a", 2, "succeeded")
    loop.summary("b", 1)
    loop.summary("gone", 1)
    loop.forget("gone")
    assert {s.run_id: s.step for s in client.runs()} == {"a": 2, "b": 1}


def test_a_cluster_that_does_not_answer_is_one_that_is_not_connected(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def topics(self, names: object = None, *, timeout_s: float) -> object:
            assert timeout_s == CONTACT_S
            raise Retryable("the cluster at nowhere:1 does not answer", "_TIMED_OUT")

        def close(self) -> None: ...

    monkeypatch.setattr(loop.cluster, "admin", Silent)
    with (
        Client(loop.cluster, loop.codec, "t.") as client,
        pytest.raises(NotConnected, match="nowhere:1 does not answer"),
    ):
        client.submit("clerk", run_id="r1")


def test_without_a_named_cluster_the_broker_of_this_folder_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    settings = Settings(state_dir=tmp_path)
    assert embedded(settings) is None
    state = StateDir(tmp_path / "broker")
    state.prepare()
    me = ProcessName.of(os.getpid())
    assert me is not None
    state.served_by(Identity("x" * 22, "4.0.0"), RunningBroker(me.pid, me.started, 7, "127.0.0.1:7"), "4.0.0")
    assert embedded(settings) == "127.0.0.1:7"
    state.forget_running()  # it is down: whoever listens at the default port is somebody else
    assert embedded(settings) == "127.0.0.1:7"
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "elsewhere:9092")
    assert embedded(settings) is None


def test_connecting_says_which_variable_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TURNLOG_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("TURNLOG_PREFIX", "other.")
    Client.connect("127.0.0.1:1").close()
    assert "TURNLOG_PREFIX is read by nobody: is TURNLOG_TOPIC_PREFIX meant?" in caplog.text
