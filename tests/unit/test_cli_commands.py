"""The command line by typer's runner, on MemoryLog with a journal written by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.cli_cluster import ThreadedCluster
from tests.cli_journal import JournalWriter
from turnlog.cli.errors import Exit
from turnlog.cli.main import app, run_app
from turnlog.cli.runs import TIMELINE_COLUMNS
from turnlog.cli.wiring import Session
from turnlog.codec import Codec
from turnlog.core.events import Cancel
from turnlog.core.records import Command, CommandOutcome, DeadLetter, Header, InputRef, ToolManifest
from turnlog.kafka.port import Headers, Partition

TOPICS = (
    "commands",
    "run-state",
    "command-outcomes",
    "journal",
    "agents",
    "dead-letters",
    "tool-results",
    "tool-manifests",
)


class World:
    """An installation in memory, and the command line on it."""

    def __init__(self) -> None:
        self.cluster = ThreadedCluster()
        for name in TOPICS:
            self.cluster.create(f"t.{name}", 1 if name == "dead-letters" else 2)
        self.codec = Codec()
        self._producer = self.cluster.producer("test")
        self.writer = JournalWriter(self.codec, 2, self._journal)
        self.writer.fence_all()

    def _journal(self, partition: int, key: bytes | None, value: bytes, headers: Headers) -> None:
        self._producer.produce("t.journal", value, key=key, partition=partition, headers=headers)

    def put(self, topic: str, key: str, record: Any) -> None:
        self._producer.produce(f"t.{topic}", self.codec.encode(record), key=key.encode())

    def publish(self, run_id: str) -> None:
        """The run's summary, as the loop would write it."""
        self.put("run-state", run_id, self.writer.summary(run_id))

    def settle(self, command_id: str, run_id: str, kind: str, outcome: str = "accepted", reason: str = "") -> None:
        self.put("command-outcomes", command_id, CommandOutcome(command_id, run_id, kind, outcome, reason, 1, 1))

    @contextmanager
    def answering(self, outcome: str = "accepted", refused: str = "") -> Iterator[None]:
        """Within the block every command gets this outcome (a run named `refused` is refused with that reason)."""
        done, stop = len(self.commands()), threading.Event()

        def answer() -> None:
            known = done
            while not stop.wait(0.01):
                sent = self.commands()
                if len(sent) > known:
                    known = len(sent)
                    for command in sent:  # all of them: an outcome may come twice
                        reply = ("refused", refused) if command.run_id == "refused" else (outcome, "")
                        self.settle(command.command_id, command.run_id, command.kind, *reply)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        here = Session(prefix="t.", cluster=self.cluster)
        return CliRunner().invoke(app, list(arguments), obj=here, input=stdin, catch_exceptions=True)

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        """What `--json` prints, a value a line."""
        result = self.run(*arguments, "--json")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return [json.loads(line) for line in result.stdout.splitlines()]

    def commands(self) -> list[Command]:
        reader = self.cluster.reader("test")
        found = []
        for index in range(2):
            partition = Partition("t.commands", index)
            for batch in reader.read(partition, *reader.bounds(partition)):
                found += [self.codec.decode(record.value, Command) for record in batch]
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("TURNLOG_STATE_DIR", str(tmp_path))
    return World()


def test_a_run_is_started_and_its_id_printed(world: World) -> None:
    with world.answering():
        result = world.run(
            "run", "clerk", "--input", "hello", "--run-id", "case-1", "--label", "tenant=acme", "--deadline", "2m"
        )
    assert (result.exit_code, result.stdout) == (0, "case-1\n"), result.output
    (command,) = world.commands()
    assert command.start is not None
    assert (command.start.input, command.start.labels, command.start.deadline_ms) == (
        "hello",
        (("tenant", "acme"),),
        120_000,
    )


def test_input_may_come_from_standard_input(world: World) -> None:
    with world.answering():
        assert world.run("run", "clerk", "-i", "-", "--run-id", "case-1", stdin="from a pipe").exit_code == 0
    start = world.commands()[0].start
    assert start is not None
    assert start.input == "from a pipe"


def test_following_shows_events_and_the_answer(world: World) -> None:
    world.writer.whole("case-1")
    world.publish("case-1")
    with world.answering("duplicate"):
        result = world.run("run", "clerk", "--run-id", "case-1", "--follow")
    assert result.exit_code == 0, result.output
    assert "nothing was started" in result.stderr
    assert "call_settled" in result.stdout
    assert "Ada was a mathematician." in result.stdout
    with world.answering("duplicate"):
        items = world.lines("run", "clerk", "--run-id", "case-1", "--follow")
    assert [item["kind"] for item in items[:2]] == ["run_started", "turn_started"]
    assert items[-1]["status"] == "succeeded"


def test_a_failed_run_has_its_exit_code(world: World) -> None:
    world.writer.start("case-1")
    world.writer.say("case-1", Cancel("c1", "no more"))
    world.publish("case-1")
    assert world.run("runs", "show", "case-1", "--follow").exit_code == Exit.BAD


def test_the_words_of_a_cancel_are_shown(world: World) -> None:
    world.writer.start("case-1")
    world.writer.say("case-1", Cancel("c1", "customer hung up"))
    world.publish("case-1")
    assert "reason      customer hung up" in world.run("runs", "show", "case-1").stdout


def test_a_run_that_is_there_and_refuses_is_no_unknown_run(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.writer.whole("refused")
    world.publish("refused")
    with world.answering(refused="it has ended"):
        arguments = ["runs", "cancel", "refused"]
        assert run_app(arguments, Session(prefix="t.", cluster=world.cluster)) == Exit.REFUSED
    assert "it has ended" in capsys.readouterr().err


def test_following_ends_when_the_run_waits_for_its_user(world: World) -> None:
    from tests.cli_journal import AGENT

    world.writer.start("talk", agent=AGENT._replace(conversation=True))
    world.writer.answer("talk")
    world.publish("talk")
    result = world.run("runs", "show", "talk", "--follow")
    assert result.exit_code == 0, result.output
    assert "input_awaited" in result.stdout


def test_runs_are_listed_and_filtered(world: World) -> None:
    for run_id in ("a", "b"):
        world.writer.start(run_id)
    world.writer.answer("b")
    for run_id in ("a", "b"):
        world.publish(run_id)
    assert [item["run_id"] for item in world.lines("runs", "list")] == ["b", "a"]
    assert [item["run_id"] for item in world.lines("runs", "list", "--status", "running")] == ["a"]
    assert world.lines("runs", "list", "--label", "tenant=other") == []
    assert [item["labels"] for item in world.lines("runs", "list", "--label", "tenant=acme", "-n", "1")] == [
        {"tenant": "acme"}
    ]
    shown = world.run("runs", "list")
    assert "succeeded" in shown.stdout
    assert "2 of 2 runs" in shown.stderr


def test_a_journal_is_shown_as_a_timeline(world: World) -> None:
    world.writer.whole("case-1")
    world.writer.void("case-1")
    result = world.run("runs", "show", "case-1", "--journal")
    assert result.exit_code == 0, result.output
    for text in ("owned by host/loop-0", "run_started", "turn:0:call:1", "t0:c0:", "run_succeeded"):
        assert text in result.stdout
    assert "void" not in result.stdout
    assert (
        "written under a fence that is not in force" in world.run("runs", "show", "case-1", "--journal", "--all").stdout
    )
    items = world.lines("runs", "show", "case-1", "--journal")
    assert items[0]["kind"] == "run_started"
    assert items[0]["payload"]["agent"]["name"] == "clerk"
    assert {item["verdict"] for item in items} == {"step"}


def test_a_journal_that_goes_to_no_terminal_has_a_bounded_width(world: World) -> None:
    world.writer.start("case-1", "word " * 500)
    (key,) = world.writer.ask_tool("case-1", "x" * 500)
    world.writer.tool_says("case-1", key, "word " * 500)
    lines = world.run("runs", "show", "case-1", "--journal").stdout.splitlines()
    assert max(map(len, lines)) == TIMELINE_COLUMNS
    assert any(line.endswith(key.partition(":")[2]) for line in lines), "ids are whole"


def test_a_terminal_is_safe_from_what_runs_say(world: World) -> None:
    world.writer.start("case-1", "\x1b]0;owned\x07[red]bold[/red]")
    world.writer.answer("case-1", "\x1b[2J")
    world.publish("case-1")
    for arguments in (["runs", "show", "case-1"], ["runs", "show", "case-1", "--journal"], ["replay", "case-1"]):
        result = world.run(*arguments)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.stdout
        assert "\x07" not in result.stdout
    assert "[red]bold[/red]" in world.run("runs", "show", "case-1", "--journal").stdout


def test_what_a_run_waits_for(world: World) -> None:
    world.writer.start("case-1")
    assert world.lines("runs", "explain", "case-1")[0]["waits"][0]["what"] == "the model's answer"
    first, second = world.writer.ask_tool("case-1", "Ada", "Grace")
    world.writer.tool_says("case-1", first)
    (said,) = world.lines("runs", "explain", "case-1")
    (wait,) = said["waits"]
    assert (wait["what"], wait["tool"], wait["key"], wait["attempt"]) == ("a tool's result", "lookup", second, 1)
    assert said["timers"][0]["timer"] == "call_deadline"
    assert said["owner"]["name"] == "host/loop-0"
    assert (said["groups"][0]["group"], said["groups"][0]["lag"]) == ("t.tools.office", None)
    text = world.run("runs", "explain", "case-1").stdout
    assert "waits for a tool's result, lookup (office), turn:0:call:1, attempt 1, since" in text
    assert "is a worker running?" in text


def test_a_run_that_its_owner_stopped_says_so(world: World) -> None:
    """The journal does not know of it: the run would look as if it waited for a tool for ever."""
    world.writer.start("case-1")
    (call,) = world.writer.ask_tool("case-1", "Ada")
    told = letter(b"result")._replace(reason="run_stopped", detail="run case-1 is stopped: the rules failed")
    world.put("dead-letters", "case-1", told._replace(key=call.encode(), at=0))
    assert world.lines("runs", "explain", "case-1")[0]["turned_away"] == "", "it went on since"
    world.put("dead-letters", "case-1", told._replace(key=call.encode(), at=2**53))
    world.put("dead-letters", "case-1", told._replace(key=b"case-10", at=2**53, detail="another"))
    assert world.lines("runs", "explain", "case-1")[0]["turned_away"] == told.detail
    assert f"turned away: {told.detail}" in world.run("runs", "explain", "case-1").stdout


def test_the_lag_of_a_toolset_is_told(world: World) -> None:
    world.cluster.create("tool-requests.office", 1)
    for _ in range(3):
        world._producer.produce("tool-requests.office", b"x", key=b"k")
    from turnlog.kafka.port import Position

    world.cluster.admin().reset_positions("t.tools.office", {Partition("tool-requests.office", 0): Position(1)})
    world.writer.start("case-1")
    world.writer.ask_tool("case-1", "Ada")
    (said,) = world.lines("runs", "explain", "case-1")
    assert said["groups"][0]["lag"] == 2
    assert (
        "2 requests behind on tool-requests.office, what a worker has begun included: is one"
        in world.run("runs", "explain", "case-1").stdout
    )


@pytest.mark.parametrize(
    ("prepare", "what"),
    [("fail_model", "the time to ask the model again"), ("answer", "")],
)
def test_other_things_a_run_waits_for(world: World, prepare: str, what: str) -> None:
    world.writer.start("case-1")
    getattr(world.writer, prepare)("case-1")
    waits = world.lines("runs", "explain", "case-1")[0]["waits"]
    assert [wait["what"] for wait in waits] == ([what] if what else [])
    text = world.run("runs", "explain", "case-1").stdout
    assert ("overloaded: try later" in text) == bool(what)


def test_steering_commands_tell_their_outcome(world: World) -> None:
    with world.answering(refused="unknown_run"):
        done = world.run("runs", "input", "case-1", "hello", "--final", "--command-id", "c1")
        assert world.run("runs", "cancel", "case-1", "--reason", "no").stdout == "accepted at step 1\n"
        assert world.lines("runs", "resume", "case-1", "--turns", "3")[0]["outcome"] == "accepted"
    assert (done.exit_code, done.stdout) == (0, "accepted at step 1\n"), done.output
    said, cancelled, resumed = sorted(
        world.commands(), key=lambda command: ("input", "cancel", "resume").index(command.kind)
    )
    assert said.input is not None
    assert said.input.final
    assert cancelled.cancel is not None
    assert resumed.resume is not None
    assert (cancelled.cancel.reason, resumed.resume.turns) == ("no", 3)


def test_replay_prints_any_step(world: World) -> None:
    world.writer.whole("case-1")
    (state,) = world.lines("replay", "case-1", "--step", "1")
    assert (state["step"], state["phase"], state["turn"]) == (1, "calls", 0)
    assert state["agent"]["name"] == "clerk"
    assert world.lines("replay", "case-1")[0]["status"] == "succeeded"
    assert "turn:0:call:0 lookup" in world.run("replay", "case-1", "--step", "2").stdout


def test_verify_finds_nothing_in_good_runs_and_names_what_is_bad(world: World) -> None:
    world.writer.whole("case-1")
    world.writer.repeat("case-1")
    result = world.run("verify", "--all")
    assert (result.exit_code, result.stdout.strip()) == (
        0,
        "1 run, 5 steps, 12 events: no fault (skipped: 1 repeat)",
    )
    world.writer.start("case-2")
    world.writer.chains["case-2"].step += 1
    world.writer.answer("case-2")
    broken = world.run("verify", "--all")
    assert broken.exit_code == Exit.BAD
    assert "broken_chain: run case-2, step 2" in broken.stdout
    items = world.lines("verify", "case-2")
    assert items[0]["kind"] == "broken_chain"
    assert items[-1]["findings"] == 1
    assert world.run("verify", "case-1").exit_code == 0


AGENT_FILE = """
name: airline
version: 3
model: openai/gpt-4o
model_settings: {temperature: 0}
instructions: Help.
tools: [airline/*]
deadline: 15m
model_backoff: 250ms
"""


def test_agents_are_published_listed_and_shown(world: World, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(AGENT_FILE)
    assert world.run("agents", "apply", str(path)).stdout == "agent airline 3: published\n"
    (agent,) = world.lines("agents", "list")
    assert (agent["deadline_ms"], agent["model_backoff_ms"], agent["model_settings"]) == (
        900_000,
        250,
        {"temperature": 0},
    )
    assert "15 m 0 s" in world.run("agents", "show", "airline").stdout
    assert world.run("agents", "list").stdout.splitlines()[1].startswith("airline")
    assert world.run("agents", "apply", "-", "--dry-run", stdin=AGENT_FILE).stdout == "agent airline 3: looks good\n"


def test_an_agent_whose_tools_nobody_announced_is_published_with_a_warning(world: World) -> None:
    tool = ToolManifest(
        "airline", "book", "1", "t.tool-requests.airline", "", '{"type":"object"}', False, False, True, 1_000, 3, 200
    )
    world.put("tool-manifests", "airline/book", tool)
    world.put("tool-manifests", "airline/pay", tool._replace(tool="pay", topic="t.journal"))
    text = AGENT_FILE.replace("[airline/*]", "[airline/*, airline/boook, airlin/*, airline/pay]")
    result = world.run("agents", "apply", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (0, "agent airline 3: published\n")
    assert result.stderr.splitlines() == [
        "warning: agent airline: no tool matches 'airline/boook': toolset 'airline' has book",
        "warning: agent airline: no tool matches 'airlin/*': is a worker of toolset 'airlin' running? Toolsets announced: airline",
        (
            "warning: agent airline: no tool matches 'airline/pay': a definition of it was rejected, `turnlog dead-letters list`"
            " says why; toolset 'airline' has book"
        ),
    ]
    (printed,) = [json.loads(world.run("agents", "apply", "-", "--json", stdin=text).stdout)]
    assert [warning.split("'")[1] for warning in printed["warnings"]] == ["airline/boook", "airlin/*", "airline/pay"]
    (printed,) = [json.loads(world.run("agents", "apply", "-", "--json", stdin=AGENT_FILE).stdout)]
    assert printed["warnings"] == []


def letter(value: bytes, size: int | None = None) -> DeadLetter:
    headers = (Header("kind", b"odd"), Header("kind", None))
    size = len(value) if size is None else size
    return DeadLetter(
        InputRef("t.commands", 1, 7),
        "bad_bytes",
        "no Command",
        b"case-1",
        value,
        size,
        sha256(value).digest(),
        headers,
        "loop",
        5,
    )


def test_dead_letters_are_listed_shown_and_sent_again(world: World) -> None:
    world.put("dead-letters", "case-1", letter(b"\xff\x00"))
    (item,) = world.lines("dead-letters", "list")
    assert (item["id"], item["reason"], item["value"]) == ("0:0", "bad_bytes", "ff00")
    assert world.lines("dead-letters", "list", "--reason", "other") == []
    assert r"\xff\x00" in world.run("dead-letters", "show", "0:0").stdout
    refused = world.run("dead-letters", "retry", "0:0", stdin="n\n")
    assert refused.exit_code == Exit.BAD
    sent = world.run("dead-letters", "retry", "0:0", "--yes")
    assert sent.exit_code == 0, sent.output
    assert "0:0 sent to t.commands[1]@0" in sent.stdout
    (record,) = world.cluster.reader("x").read_at(Partition("t.commands", 1), [0])
    assert (record.key, record.value, record.headers) == (b"case-1", b"\xff\x00", (("kind", b"odd"), ("kind", None)))


def test_a_record_that_is_refused_at_every_start_is_one_line(world: World) -> None:
    first = letter(b"\xff\x00")
    for again in (first, first._replace(at=9), first._replace(reason="wrong_record"), first._replace(at=7)):
        world.put("dead-letters", "case-1", again)
    listed = {item["reason"]: (item["id"], item["times"]) for item in world.lines("dead-letters", "list")}
    assert listed == {"bad_bytes": ("0:1", 3), "wrong_record": ("0:2", 1)}


# ---------------------------------------------------------------- problems, in one line with a remedy


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["runs", "show", "nobody"], Exit.UNKNOWN, "there is no run 'nobody'"),
        (["runs", "show", "nobody", "--journal"], Exit.UNKNOWN, "there is no run"),
        (["runs", "explain", "nobody"], Exit.UNKNOWN, "there is no run"),
        (["replay", "nobody"], Exit.UNKNOWN, "there is no run"),
        (["replay", "good", "--step", "99"], Exit.UNKNOWN, "steps 0 to 4"),
        (["verify", "nobody"], Exit.UNKNOWN, "there is no run"),
        (["verify"], Exit.USAGE, "--all"),
        (["runs", "show", "a b"], Exit.USAGE, "characters outside"),
        (["runs", "show", "good", "--journal", "--follow"], Exit.USAGE, "choose one"),
        (["runs", "show", "good", "--all"], Exit.USAGE, "--all belongs to --journal"),
        (["runs", "input", "good", "x", "--wait", "--timeout", "1x"], Exit.USAGE, "no length of time"),
        (["runs", "input", "good", ""], Exit.USAGE, "input is empty"),
        (["runs", "input", "refused", "x"], Exit.UNKNOWN, "there is no run 'refused' what helps: list what there is: turnlog runs list"),
        (["runs", "cancel", "refused"], Exit.UNKNOWN, "there is no run 'refused'"),
        (["runs", "resume", "refused"], Exit.UNKNOWN, "there is no run 'refused'"),
        (["runs", "resume", "good", "--wait", "--timeout", "0"], Exit.TIMED_OUT, "turnlog runs explain good"),
        (["run", "clerk", "--label", "x"], Exit.USAGE, "NAME=VALUE"),
        (["runs", "list", "--status", "done"], Exit.USAGE, "'done' is no status"),
        (["up", "--worker", "no.such.module:tools"], Exit.USAGE, "no module 'no.such.module'"),
        (["run", "clerk", "--deadline", "soon"], Exit.USAGE, "no length of time"),
        (["run", "clerk", "--run-id", "x" * 10_000], Exit.USAGE, "10000 characters"),
        (["run", "clerk", "--run-id", "refused"], Exit.REFUSED, "the start of run 'refused' was refused: unknown_agent"),
        (["agents", "show", "nobody"], Exit.UNKNOWN, "no agent"),
        (["agents", "apply", "no-such-file"], Exit.USAGE, "No such file"),
        (["dead-letters", "show", "7"], Exit.USAGE, "<partition>:<offset>"),
        (["dead-letters", "show", "0:99"], Exit.UNKNOWN, "no dead letter"),
        (["dead-letters", "retry", "0:0"], Exit.REFUSED, "it was cut"),
        (["--prefix", "other.", "runs", "list"], 0, ""),
        (["topics", "acls"], Exit.USAGE, "who has which role"),
        (["worker", "no.such.module:tools"], Exit.USAGE, "no module"),
        (["worker", "json:tools"], Exit.USAGE, "no Toolset"),
        (["worker", "json"], Exit.USAGE, "MODULE:TOOLSET"),
    ],
)  # fmt: skip
def test_expected_problems_have_a_message_and_a_code(
    world: World, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    world.writer.whole("good")
    world.put("dead-letters", "k", letter(b"cut", 9_000_000))
    with world.answering(refused="unknown_agent"):
        assert run_app(arguments, Session(prefix="t.", cluster=world.cluster)) == code
    printed = capsys.readouterr()
    assert said in " ".join(printed.err.split())
    assert "Traceback" not in printed.err


def test_a_cluster_that_is_not_there_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["--bootstrap", "127.0.0.1:1", "runs", "list"]) == Exit.UNREACHABLE
    printed = capsys.readouterr().err
    assert "no broker answers at 127.0.0.1:1" in printed
    assert "turnlog up" in printed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["runs", "cancel", "case-1"], True), (["topics", "create"], True), (["runs", "list"], False)],
)
def test_verbs_that_change_something_say_which_cluster_nobody_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], told: bool
) -> None:
    monkeypatch.delenv("TURNLOG_KAFKA__BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("TURNLOG_STATE_DIR", str(tmp_path))
    world = World()
    monkeypatch.setattr("turnlog.cli.wiring.knock", lambda bootstrap: None)
    monkeypatch.setattr("turnlog.kafka.client.KafkaCluster", lambda config: world.cluster)
    with world.answering():
        result = CliRunner().invoke(app, ["--prefix", "t.", *arguments])
        assert ("taking 127.0.0.1:9092" in result.stderr) == told, result.output
        named = CliRunner().invoke(app, ["--prefix", "t.", "-b", "127.0.0.1:9092", *arguments])
        assert "taking" not in named.stderr


def test_a_variable_that_nobody_reads_is_told(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setenv("TURNLOG_PREFIX", "other.")
    told = world.run("runs", "list").stderr
    assert told.startswith(
        "warning: the environment variable TURNLOG_PREFIX is read by nobody: is TURNLOG_TOPIC_PREFIX meant?"
    )


def test_a_property_that_the_client_library_refuses_is_told_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("turnlog.cli.wiring.knock", lambda bootstrap: None)
    monkeypatch.setenv("TURNLOG_KAFKA__SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("TURNLOG_KAFKA__SASL_MECHANISM", "PLAIN")
    assert run_app(["-b", "127.0.0.1:1", "runs", "list"]) == Exit.USAGE
    assert "(TURNLOG_KAFKA__SASL_USERNAME, TURNLOG_KAFKA__SASL_PASSWORD)" in " ".join(capsys.readouterr().err.split())


def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TURNLOG_PARTITIONS", "many")
    assert run_app(["runs", "list"]) == Exit.USAGE
    assert "TURNLOG_PARTITIONS" in capsys.readouterr().err
    monkeypatch.setenv("TURNLOG_KAFKA", "broker:9092")
    assert run_app(["runs", "list"]) == Exit.USAGE
    assert "TURNLOG_KAFKA, or one that begins with TURNLOG_KAFKA__, is not the JSON" in capsys.readouterr().err


def test_settings_are_listed_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["settings", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"TURNLOG_PARTITIONS", "TURNLOG_MODELS__<NAME>__<SETTING>"} <= {row["name"] for row in rows}


def test_help_keeps_examples_apart_and_gives_flags_no_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["runs", "list", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "\n   turnlog runs list --status running" in shown
    assert "<bool>" not in shown


def test_every_verb_explains_itself_with_an_example() -> None:
    import typer.main

    def walk(command: Any, path: str) -> Iterator[tuple[str, str]]:
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}")
        if not hasattr(command, "commands"):
            yield path, command.help or ""

    found = dict(walk(typer.main.get_command(app), "turnlog"))
    assert len(found) > 15
    plain_ones = {
        "turnlog settings",
        "turnlog agents list",
        "turnlog agents show",
        "turnlog dead-letters show",
        "turnlog topics adopt",
        "turnlog agents apply",
    }
    for path, text in found.items():
        assert text, path
        assert path in plain_ones or path in text, f"{path} has no example"
