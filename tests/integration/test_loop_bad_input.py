"""Bad input to a loop process on real Kafka: each record has its clear outcome, and its partition goes on (issue 3, 7.5).

One loop serves all tests of this file; some restart it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from services.loop.tokens import ReplyTokens
from tests.broker_fixture import SharedBroker
from tests.cli_journal import respelt
from tests.integration.bare_producer import append
from tests.integration.loop_stage import CODEC, PATIENCE_S, ROOT, SECRET, LoopProcess, Stage, result_for, until
from turnlog.client import BadCommand
from turnlog.core.agents import AgentSpec
from turnlog.core.events import Cancel, Event, RunCancelled
from turnlog.core.ids import call_key
from turnlog.core.records import (
    CancelRun,
    Command,
    Fence,
    InputRef,
    JournalRecord,
    SendInput,
    StartRun,
    ToolRequest,
    ToolResult,
)  # fmt: skip
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.fenced import RecordHeader, headers_of
from turnlog.kafka.port import Delivered, Partition, TooLarge
from turnlog.local.process import Child
from turnlog.testing.http_replay import Received as HttpRequest
from turnlog.testing.http_replay import ReplayServer, Reply

PARTITIONS = 2
MIB = 1024 * 1024
TOKENS = ReplyTokens([SECRET.encode()])
NUMBERS = itertools.count()

AWKWARD: dict[str, dict[str, Any]] = {
    "text": {"content": "half \ud83d of a pair"},
    "arguments": {
        "tool_calls": [
            {"id": "a\udc00", "type": "function", "function": {"name": "say", "arguments": '{"text":"\ud83d"}'}}
        ]
    },
    "name": {"tool_calls": [{"id": "b", "type": "function", "function": {"name": "sa\udc80y", "arguments": "{}"}}]},
    "not a number": {
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "say", "arguments": '{"text":NaN}'}}]
    },
}
"""What the stub of a model says when its user says these words. Sent as JSON, where each lone surrogate is an escape."""


def stub(request: HttpRequest) -> Reply:
    """A model of OpenAI's API: the first answer by the user's words, then what the tools said."""
    messages = json.loads(request.body)["messages"]
    last = messages[-1]
    message: dict[str, Any] = {"role": "assistant", "content": None}
    message |= {"content": f"heard: {last['content']}"} if last["role"] == "tool" else AWKWARD[last["content"]]
    choice = {"index": 0, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop", "message": message}
    body = {"id": "id-\udc00", "object": "chat.completion", "model": "m\ud800", "choices": [choice]}
    return Reply((json.dumps(body).encode(),))


class Installation(Stage):
    """A stage with one loop, a worker of the toolset `odd`, and a model that says awkward things."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        super().__init__(bootstrap, folder, partitions=PARTITIONS, command_bytes=8 * MIB)
        self.model = ReplayServer(stub)
        self.environment |= {
            "TURNLOG_MODELS__STUB__KIND": "openai",
            "TURNLOG_MODELS__STUB__BASE_URL": f"{self.model.url}/v1",
        }
        for name, model in (("odd", "scripted/echo"), ("stub", "stub/some-model")):
            agent = AgentSpec(name, "1", "Be awkward.", model, tools=("odd/*",), model_attempts=1)
            self.put("agents", name.encode(), CODEC.encode(agent))
        self.running = self.loop()
        self._worker()
        self.running.until_ready()

        self.command_partitions = [Partition(f"{self.prefix}commands", index) for index in range(PARTITIONS)]

    def _worker(self) -> None:
        command = [sys.executable, "-m", "services.tool_worker", "tests.integration.loop_tools:tools"]
        env = {**os.environ, **self.environment}
        self.processes.append(Child.start(command, name="worker", output=self.folder / "worker.log", env=env, cwd=ROOT))

    def restart(self) -> LoopProcess:
        """Another process of the same instance, after the first one stopped in order."""
        self.running.stop()
        self.running = self.loop().until_ready()
        return self.running

    def close(self) -> None:
        super().close()
        self.model.close()

    def send(self, command: Command, *, partition: int | None = None) -> InputRef:
        return self.put("commands", command.run_id.encode(), CODEC.encode(command), partition=partition)

    def send_large(self, command: Command, partition: int) -> InputRef:
        return self.put_large(command.run_id.encode(), CODEC.encode(command), partition)

    def put_large(self, key: bytes, value: bytes, partition: int) -> InputRef:
        """Append to `commands`, which takes more than it should, with a client that sends more than ours."""
        large = {"message.max.bytes": str(8 * MIB)}
        producer = KafkaCluster(
            {"bootstrap.servers": self.environment["TURNLOG_KAFKA__BOOTSTRAP_SERVERS"], **large}
        ).producer("large")
        reports: list[Delivered] = []
        producer.produce(f"{self.prefix}commands", value, key=key, partition=partition, on_delivery=reports.append)
        assert producer.flush(PATIENCE_S) == 0
        producer.close()
        offset = reports[0].offset
        assert offset is not None, reports[0].error
        return InputRef(f"{self.prefix}commands", partition, offset)

    def call(self) -> ToolRequest:
        """The request of a run that made one call, which is answered unless answers are held back."""
        run_id = self.run_id(next(NUMBERS) % PARTITIONS, "calls")
        self.client.submit("tools", 'call bench_a {"n":1}', run_id)
        return until(lambda: self.hands.of(run_id), f"the request of {run_id}")[0]

    def waiting_call(self) -> ToolRequest:
        """The request of a run that waits for it: nothing is answered until `hands.release`."""
        self.hands.hold()
        return self.call()

    def result(self, result: ToolResult) -> InputRef:
        """Send a result to where its run is at home."""
        home = self.home(result.run_id)
        return self.put("tool-results", result.call_key.encode(), CODEC.encode(result), partition=home)


@pytest.fixture(scope="module")
def place(broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with closing(Installation(broker.bootstrap, tmp_path_factory.mktemp("loop"))) as made:
        yield made


@pytest.fixture(autouse=True)
def answered(place: Installation) -> Iterator[None]:
    """Whatever a test held back is answered after it."""
    yield
    place.hands.release()


def start_command(run_id: str, agent: str = "echo", text: str = "hello", command_id: str = "") -> Command:
    return Command(command_id or f"c-{next(NUMBERS)}", run_id, "start", start=StartRun(agent, None, text))


# ---------------------------------------------------------------- bytes


GOOD = CODEC.encode(start_command("good"))

BYTES: dict[str, tuple[bytes | None, str]] = {
    "nothing": (b"", "not_avro"),
    "noise": (b"\xff\xfe" * 50, "not_avro"),
    "text": (b'{"run_id": "r"}', "not_avro"),
    "cut": (GOOD[:-3], "bad_bytes"),
    "longer": (GOOD + b"\0", "bad_bytes"),
    "huge length": (GOOD[:5] + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "bad_bytes"),
    "surrogate bytes": (GOOD.replace(b"hello", b"he\xed\xa0\x80"), "bad_bytes"),
    "unknown number": (b"\0" + (0x40FFFFFF).to_bytes(4, "big") + GOOD[5:], "unknown_schema_id"),
    "unknown registry id": (b"\0\0\0\x30\x39" + GOOD[5:], "unknown_schema_id"),
    "another record": (CODEC.encode(AgentSpec("a", "1", "", "m")), "wrong_record"),
    "null": (None, "null_value"),
}


@pytest.mark.parametrize("topic", ["commands", "tool-results"])
@pytest.mark.parametrize("what", BYTES)
def test_unreadable_records_become_dead_letters(place: Installation, topic: str, what: str) -> None:
    value, reason = BYTES[what]
    if topic == "tool-results" and reason == "bad_bytes":
        reason = "wrong_record"  # it is a command
    source = place.put(topic, b"some key", value, headers=[("traceparent", b"x"), ("empty", None)])
    letter = place.letter(source)
    assert (letter.reason, letter.key, letter.value, letter.service) == (reason, b"some key", value, "loop")
    assert (letter.size, letter.sha256) == (len(value or b""), hashlib.sha256(value or b"").digest())
    assert [tuple(header) for header in letter.headers] == [("traceparent", b"x"), ("empty", None)]
    place.good_run(source.partition)


def test_headers_that_are_no_text_cost_nothing_but_themselves(place: Installation) -> None:
    """A client in C may name a header by any bytes (`kcat -H` in a terminal that is not UTF-8 does)."""
    bootstrap, run_id = place.environment["TURNLOG_KAFKA__BOOTSTRAP_SERVERS"], place.run_id(0, "odd")
    odd = [(b"fine", b"1"), (b"\xff\xfe", b"2")]
    for topic in ("tool-results", "run-state", "agents", "tool-manifests"):
        append(bootstrap, f"{place.prefix}{topic}", 0, b"some key", b"noise", odd)
    append(bootstrap, f"{place.prefix}commands", 0, run_id.encode(), CODEC.encode(start_command(run_id)), odd)
    assert place.client.wait(run_id, PATIENCE_S).status == "succeeded"
    place.good_run(0)


# ---------------------------------------------------------------- commands


class Wrong(NamedTuple):
    command: Command
    reason: str
    said: str
    outcome: bool = False
    key: bytes | str | None = "run"


COMMANDS = {
    "empty run id": Wrong(start_command(""), "bad_run_id", "run_id is empty"),
    "long run id": Wrong(start_command("r" * 10_000), "bad_run_id", "has 10000 characters"),
    "run id with a colon": Wrong(start_command("a:b"), "bad_run_id", "outside A-Z"),
    "run id beyond ASCII": Wrong(start_command("löp"), "bad_run_id", "outside A-Z"),
    "another key": Wrong(start_command("right"), "key_mismatch", "must be its run_id", key=b"wrong"),
    "no key": Wrong(start_command("right"), "key_mismatch", "must be its run_id", key=None),
    "key that is no text": Wrong(start_command("right"), "key_mismatch", "must be its run_id", key=b"\xff\xfe"),
    "no command id": Wrong(Command("", "r", "cancel", cancel=CancelRun()), "bad_command_id", "1 to 256"),
    "long command id": Wrong(start_command("r", command_id="c" * 257), "bad_command_id", "1 to 256"),
    "no body": Wrong(Command("no-body", "r", "start"), "bad_command", "exactly the field", True),
    "another body": Wrong(Command("other-body", "r", "start", cancel=CancelRun()), "bad_command", "exactly the field", True),
    "two bodies": Wrong(
        Command("two-bodies", "r", "start", start=StartRun("echo"), cancel=CancelRun()), "bad_command", "exactly the field", True
    ),
    "unknown kind": Wrong(Command("odd-kind", "r", "explode"), "bad_command", "exactly the field", True),
    "negative limit": Wrong(
        Command("negative", "r", "start", start=StartRun("echo", turn_limit=-1)), "too_large", "must not be negative", True
    ),
    "large labels": Wrong(
        Command("labels", "r", "start", start=StartRun("echo", labels=(("a", "b" * 20_000),))), "too_large", "labels", True
    ),
    "empty labels without number": Wrong(
        Command("nothing", "r", "start", start=StartRun("echo", labels=(("", ""),) * 400_000)), "too_large", "labels", True
    ),
    "large input": Wrong(Command("large", "r", "input", input=SendInput("x" * 300_000)), "too_large", "262144 bytes", True),
}  # fmt: skip


@pytest.mark.parametrize("what", COMMANDS)
def test_commands_that_are_none_become_dead_letters(place: Installation, what: str) -> None:
    wrong = COMMANDS[what]
    run_id = wrong.command.run_id
    key = run_id.encode() if wrong.key == "run" else wrong.key
    assert not isinstance(key, str)
    source = place.put("commands", key, CODEC.encode(wrong.command), partition=place.home(run_id))
    letter = place.letter(source)
    assert letter.reason == wrong.reason
    assert wrong.said in letter.detail
    if wrong.outcome:
        outcome = place.outcome(wrong.command.command_id)
        assert (outcome.outcome, outcome.run_id, outcome.kind) == ("refused", run_id, wrong.command.kind)
        assert outcome.reason == letter.detail
    place.good_run(source.partition)


REFUSED: dict[str, tuple[Callable[[str], Command], str]] = {
    "unknown agent": (lambda run_id: start_command(run_id, "nobody"), "no agent named 'nobody' (known: "),
    "another version": (
        lambda run_id: Command(f"v-{run_id}", run_id, "start", start=StartRun("echo", "7")),
        "agent 'echo' is at version '1', not '7'",
    ),
    "input to nobody": (
        lambda run_id: Command(f"i-{run_id}", run_id, "input", input=SendInput("hi")),
        "there is no run",
    ),
    "cancel of nobody": (
        lambda run_id: Command(f"x-{run_id}", run_id, "cancel", cancel=CancelRun()),
        "there is no run",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_commands_that_cannot_be_followed_are_refused(place: Installation, what: str) -> None:
    make, said = REFUSED[what]
    command = make(place.run_id(0, "refused"))
    source = place.send(command)
    outcome = place.outcome(command.command_id)
    assert (outcome.outcome, outcome.step) == ("refused", None)
    assert said in outcome.reason
    assert not place.letters(source)
    place.good_run(source.partition)


def test_a_command_in_the_wrong_partition_is_sent_on_once(place: Installation) -> None:
    before = place.running.metric("rerouted_total")
    run_id = place.run_id(0, "astray")
    wrong = place.send(start_command(run_id, text="found"), partition=1)
    assert place.client.wait(run_id, PATIENCE_S).answer == "found"
    assert place.running.metric("rerouted_total") == before + 1
    assert not place.letters(wrong)
    command = start_command(place.run_id(0, "lost"))
    again = place.put(
        "commands", command.run_id.encode(), CODEC.encode(command), partition=1, headers=[("rerouted", b"1")]
    )
    letter = place.letter(again)
    assert letter.reason == "misrouted"
    assert "belongs to partition 0, also after one re-routing" in letter.detail
    assert place.running.metric("rerouted_total") == before + 1
    place.good_run(0)
    place.good_run(1)


# ---------------------------------------------------------------- starting twice


def test_a_second_start_is_a_duplicate_whenever_it_comes(place: Installation) -> None:
    request = place.waiting_call()
    run_id = request.run_id
    first = f"start:{run_id}"
    assert place.outcome(first).outcome == "accepted"

    def again(times: int) -> None:
        """The same command once more, and another one that starts the same run."""
        place.client.submit("tools", "another text", run_id)
        other = start_command(run_id, "echo")
        place.send(other)
        assert place.outcome(other.command_id).outcome == "duplicate"
        assert "exists already" in place.outcome(other.command_id).reason
        until(lambda: said().count("duplicate") >= times, lambda: f"an outcome for each: {said()}")
        assert set(said()) == {"accepted", "duplicate"}  # after a restart what was said of a step may be said again

    def said() -> list[str]:
        return [each.outcome for each in place.outcomes(first)]

    again(1)  # while it runs
    place.restart()
    again(2)  # while it runs, known from the journal
    place.hands.release()
    assert place.client.wait(run_id, PATIENCE_S).status == "succeeded"
    again(3)  # after its end
    place.restart()
    again(4)  # after its end, known from run-state
    audit = place.audit()
    assert audit.findings == []
    assert audit.runs[run_id].count("run_started") == 1
    assert len(place.hands.keys() & audit.runs[run_id].ledger.keys()) == 1
    place.good_run(place.home(run_id))


# ---------------------------------------------------------------- large


def test_a_large_command_is_refused_before_anything_is_sent(place: Installation) -> None:
    ends = place.admin.ends(place.command_partitions)
    many = {f"l{i}": "y" * 200_000 for i in range(10)}
    for text, labels in (("x" * 2 * MIB, None), ("", many)):
        with pytest.raises(BadCommand, match=r"has \d+ bytes, at most \d+ are allowed"):
            place.client.submit("echo", text, labels=labels)
    assert place.admin.ends(place.command_partitions) == ends


def test_kafka_refuses_what_a_client_of_its_own_sends(place: Installation) -> None:
    """The topics take 1 MiB; ours refuse it on the client's side, a foreign client hears it of the broker."""
    with pytest.raises(TooLarge):
        place.put("tool-results", b"k", b"x" * 2 * MIB)
    bootstrap = place.environment["TURNLOG_KAFKA__BOOTSTRAP_SERVERS"]
    producer = KafkaCluster({"bootstrap.servers": bootstrap, "message.max.bytes": str(8 * MIB)}).producer("foreign")
    reports: list[Delivered] = []
    producer.produce(f"{place.prefix}tool-results", b"x" * 2 * MIB, key=b"k", partition=0, on_delivery=reports.append)
    assert producer.flush(PATIENCE_S) == 0
    producer.close()
    assert isinstance(reports[0].error, TooLarge)
    place.good_run(0)


def test_a_large_command_that_reaches_the_loop(place: Installation) -> None:
    """Somebody gave the topic a larger bound than it is made with."""
    run_id = place.run_id(0, "large")
    command = start_command(run_id, text="x" * 2 * MIB)
    letter = place.letter(place.send_large(command, 0))
    assert (letter.reason, letter.size) == ("too_large", len(CODEC.encode(command)))
    assert letter.value == CODEC.encode(command)[: 512 * 1024]
    assert letter.sha256 == hashlib.sha256(CODEC.encode(command)).digest()
    assert place.outcome(command.command_id).outcome == "refused"
    letter = place.letter(place.send_large(command, 1))  # also in a partition that is not its own
    assert (letter.reason, letter.size) == ("too_large", len(CODEC.encode(command)))
    cancel = Command(f"x-{run_id}", run_id, "cancel", cancel=CancelRun("y" * 2 * MIB))
    astray = place.letter(place.send_large(cancel, 1))
    assert astray.reason == "misrouted"
    assert "could not be sent on" in astray.detail
    noise = secrets.token_bytes(2 * MIB)
    letter = place.letter(place.put_large(b"k" * 200_000, noise, 1))
    assert (letter.reason, letter.size) == ("not_avro", 2 * MIB)
    assert letter.key == b"k" * 64 * 1024
    place.good_run(0)
    place.good_run(1)


def test_a_large_cancel_is_followed(place: Installation) -> None:
    request = place.waiting_call()
    cancel = Command(f"x-{request.run_id}", request.run_id, "cancel", cancel=CancelRun("y" * 2 * MIB))
    place.send_large(cancel, place.home(request.run_id))
    assert place.client.wait(request.run_id, PATIENCE_S).status == "cancelled"
    place.hands.release()
    place.good_run(place.home(request.run_id))


# ---------------------------------------------------------------- results


def test_a_result_with_a_wrong_token_changes_nothing(place: Installation) -> None:
    request = place.waiting_call()
    right = result_for(request, "right")
    other = TOKENS.token(request.call_key, request.attempt + 1)
    for token in (b"", b"guessed", request.reply_token[:-1], other, TOKENS.token(f"{request.run_id}:t0:c1:0", 1)):
        letter = place.letter(place.result(right._replace(reply_token=token, content="forged")))
        assert letter.reason == "bad_reply_token"
    for attempt in (0, -1, 1_000_000, 2):
        assert place.letter(place.result(right._replace(attempt=attempt, content="forged"))).reason == "bad_reply_token"
    assert place.letter(place.result(right._replace(status="fine", content="forged"))).reason == "bad_result"
    place.result(right)
    assert place.client.wait(request.run_id, PATIENCE_S).answer == "bench_a says: right"
    place.hands.release()
    place.good_run(place.home(request.run_id))


def test_results_that_belong_to_nothing(place: Installation) -> None:
    request = place.waiting_call()
    right = result_for(request, "right")
    home = place.home(request.run_id)

    def forged(run_id: str, key: str, record_key: str | None = None) -> str:
        made = right._replace(run_id=run_id, call_key=key, reply_token=TOKENS.token(key, 1))
        source = place.put("tool-results", (record_key or key).encode(), CODEC.encode(made), partition=home)
        return place.letter(source).reason

    nobody = call_key("nobody", 0, 0, "t", "{}")
    assert forged("nobody", nobody) == "unknown_run"
    assert forged("", ":t0:c0:0123") == "unknown_run"
    assert forged("r" * 10_000, f"{'r' * 10_000}:t0:c0:0123") == "unknown_run"
    assert forged(request.run_id, request.call_key, "another key") == "key_mismatch"
    assert forged("nobody", request.call_key) == "key_mismatch"
    for key in (f"{request.run_id}:t0:c1:0123", f"{request.run_id}:t7:c0:0123", f"{request.run_id}:", request.run_id):
        assert forged(request.run_id, key) == "unknown_call"
    place.result(right)
    assert place.client.wait(request.run_id, PATIENCE_S).answer == "bench_a says: right"
    place.hands.release()
    place.good_run(home)


def test_results_after_the_end(place: Installation) -> None:
    """One for a call that was still out is noted; for a run that waits for nothing it is a dead letter."""
    request = place.waiting_call()
    run_id = request.run_id
    place.client.cancel(run_id)
    assert place.client.wait(run_id, PATIENCE_S).status == "cancelled"
    place.result(result_for(request, "too late"))
    until(lambda: place.audit().runs[run_id].count("late_outcome_noted") == 1, "noted")
    place.hands.release()
    other = place.call()
    assert place.client.wait(other.run_id, PATIENCE_S).status == "succeeded"
    late = result_for(other, "another")

    def too_late() -> str:
        """Until the run is let go, the same result is a repetition, and no letter."""
        source = place.result(late)
        place.good_run(source.partition)
        return place.letters(source)[0].reason if place.letters(source) else ""

    assert until(too_late, "the dead letter") == "late"


# ---------------------------------------------------------------- surrogates and NaN


def test_lone_surrogates_in_commands(place: Installation) -> None:
    run_id = place.run_id(0, "half")
    with pytest.raises(BadCommand, match=r"lone surrogate \(U\+D83D\) at character 5"):
        place.client.submit("echo", "half \ud83d", run_id)
    escaped = r"an escape \ud83d is six characters"
    assert place.client.submit("echo", escaped, run_id).wait(PATIENCE_S).answer == escaped


def test_lone_surrogates_in_arguments_and_results(place: Installation) -> None:
    """In the arguments' JSON an escape is one character to the tool; as a result it cannot be carried and is replaced."""
    text = 'call say {"text":"\\ud83d!"}\ncall length {"text":"\\ud83d!"}'
    run = place.client.submit("odd", text, place.run_id(1, "half"))
    assert run.wait(PATIENCE_S).answer == "say says: \ufffd!\nlength says: 2"
    request = place.waiting_call()
    value = CODEC.encode(result_for(request, "half"))
    source = place.put(
        "tool-results",
        request.call_key.encode(),
        value.replace(b"half", b"h\xed\xa0\xbd"),
        partition=place.home(request.run_id),
    )
    assert place.letter(source).reason == "bad_bytes"
    place.hands.release()
    assert place.client.wait(request.run_id, PATIENCE_S).status == "succeeded"
    place.good_run(source.partition)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("text", "half \ufffd of a pair"),
        ("arguments", "heard: \ufffd"),
        ("name", "there is no tool"),
        ("not a number", "are not valid JSON"),
    ],
)
def test_a_model_that_says_awkward_things(place: Installation, words: str, answer: str) -> None:
    run_id = place.run_id(1, "awkward")
    summary = place.client.submit("stub", words, run_id).wait(PATIENCE_S)
    assert summary.status == "succeeded"
    assert answer.lower() in (summary.answer or "").lower()
    assert place.audit().findings == []
    place.good_run(1)


def test_not_a_number_in_arguments_and_results(place: Installation) -> None:
    run = place.client.submit("odd", 'call say {"text":NaN}\ncall nothing', place.run_id(0, "nan"))
    said, nothing = (run.wait(PATIENCE_S).answer or "").splitlines()
    assert said.startswith("say failed:")
    assert "are not valid JSON" in said
    assert nothing.startswith("nothing failed:")
    assert "not JSON" in nothing
    place.good_run(0)


# ---------------------------------------------------------------- the journal


def test_a_step_of_a_newer_build_stops_its_run_and_nothing_else(place: Installation) -> None:
    """Another build owned the partition, wrote a kind of event that this one does not know, and gave the partition back."""
    talks, waits = place.run_id(0, "newer"), place.run_id(0, "older")
    for run_id in (talks, waits):
        assert (
            place.client.submit("talk", "hello", run_id).wait(PATIENCE_S, lambda s: s.waits_for == "input").answer
            == "hello"
        )
    place.running.stop()
    run = place.audit().runs[talks]
    token = secrets.token_bytes(16)
    fence = JournalRecord(
        "fence", token, "", -1, None, run.state.at, "newer", 0, 0, (), (), Fence("host/newer-0", (), 0, ())
    )
    place.put(
        "journal",
        None,
        CODEC.encode(fence),
        partition=0,
        headers=headers_of(RecordHeader("fence", token, -1, None, 0, -1)),
    )
    events = (
        Event("cancel_requested", run.state.at, payload=Cancel("c")),
        Event("run_cancelled", run.state.at, payload=RunCancelled("cancelled")),
    )
    step = JournalRecord("step", token, talks, run.step + 1, run.head, run.state.at, "newer", 1, 0, (), events)
    value = respelt(CODEC.encode(step), "run_cancelled", "run_teleport1")
    place.put(
        "journal",
        talks.encode(),
        value,
        partition=0,
        headers=headers_of(RecordHeader("step", token, step.step, step.prev, 0, -1)),
    )
    place.running = place.loop().until_ready()

    command_id = place.client.input(talks, "are you there?")
    outcome = place.outcome(command_id)
    assert outcome.outcome == "refused"
    assert f"run {talks} is stopped: unknown_event_kind" in outcome.reason
    letters = [letter for letter in place.all_letters() if letter.reason == "run_stopped"]
    assert [letter.key for letter in letters] == [talks.encode()]
    place.client.input(waits, "you are", final=True)
    assert place.client.wait(waits, PATIENCE_S).status == "succeeded"
    place.good_run(0)
    place.restart()
    assert place.outcome(place.client.input(talks, "and now?")).outcome == "refused"
    place.good_run(0)
    assert [(f.kind, f.run_id) for f in place.audit().findings] == [("unreadable", talks)]


def test_nothing_of_all_this_ended_an_ownership(place: Installation) -> None:
    assert place.running.metric("ownership_ends_total") == 0
    assert place.running.metric("producers_renewed_total") == 0
    assert place.running.metric("divergences_total") == 0
    assert "Traceback" not in "".join(path.read_text() for path in place.folder.glob("loop-*.log"))
