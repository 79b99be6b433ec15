"""The worker's engine on MemoryLog: what becomes of every request, and when its position is committed."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from turnlog.codec import Codec
from turnlog.core.ids import call_key
from turnlog.core.records import DeadLetter, ToolRequest, ToolResult
from turnlog.kafka.port import Fatal, Partition, Refused
from turnlog.obs import Health, Metrics
from turnlog.testing.memory_log import MemoryCluster
from turnlog.tools import ToolContext, ToolFailure, Toolset
from turnlog.tools.desk import WorkerLimits
from turnlog.tools.engine import Worker, WorkerTopics

TOPICS = WorkerTopics("requests", "results", "dead-letters", "group")
CODEC = Codec()
PATIENCE_S = 10.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Bench:
    """A worker on a cluster in memory, stepped by the test."""

    def __init__(self, tools: Toolset, **limits: Any) -> None:
        self.cluster = MemoryCluster(now_ms)
        for name, partitions in (("requests", 2), ("results", 2), ("dead-letters", 1)):
            self.cluster.create(name, partitions)
        self.metrics = Metrics("worker")
        self.health = Health()
        self.limits = WorkerLimits(**{"commit_every_s": 0.001, "drain_s": 2.0, **limits})
        self.tools = tools
        self.sender = self.cluster.producer("sender")
        self.worker = self.another()

    def another(self) -> Worker:
        worker = Worker(
            self.tools,
            TOPICS,
            self.cluster,
            CODEC,
            health=self.health,
            metrics=self.metrics,
            limits=self.limits,
            now_ms=now_ms,
        )
        worker._consumer.subscribe(TOPICS.requests, worker)
        return worker

    def ask(self, tool: str = "echo", arguments: Any = None, **fields: Any) -> ToolRequest:
        run, turn = fields.pop("run_id", "run"), fields.pop("turn", 0)
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        defaults: dict[str, Any] = {
            "call_key": call_key(run, turn, 0, tool, "{}"),
            "attempt": 1,
            "not_after": now_ms() + 60_000,
            "reply_token": b"t1",
            "reply_topic": TOPICS.results,
        }
        request = ToolRequest(
            run_id=run, turn=turn, position=0, tool=tool, arguments=text, takes_text=False,
            reply_partition=1, agent="agent", **{**defaults, **fields},
        )  # fmt: skip
        self.put(request.call_key.encode(), CODEC.encode(request))
        return request

    def put(
        self, key: bytes | None, value: bytes | None, headers: Any = (("traceparent", b"00-1"), ("x", b"y"))
    ) -> None:
        self.sender.produce(TOPICS.requests, value, key=key, partition=0, headers=headers)
        self.sender.poll()

    def results(self) -> list[ToolResult]:
        return [CODEC.decode(record.value, ToolResult) for record in self.cluster.log(Partition("results", 1))]

    def letters(self) -> list[DeadLetter]:
        return [CODEC.decode(record.value, DeadLetter) for record in self.cluster.log(Partition("dead-letters", 0))]

    def until(self, done: Callable[[], bool], *workers: Worker) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < end, f"never: results {self.results()}"
            for worker in workers or (self.worker,):
                worker.step()
            time.sleep(0.001)

    def committed(self) -> int | None:
        found = self.worker._consumer.committed([Partition(TOPICS.requests, 0)])[Partition(TOPICS.requests, 0)]
        return None if found is None else found.offset

    def count(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"turnlog_worker_{name}", {"toolset": self.tools.name}) or 0.0

    def calls(self, tool: str, status: str = "ok") -> float:
        labels = {"toolset": self.tools.name, "tool": tool, "status": status}
        return self.metrics.registry.get_sample_value("turnlog_worker_calls_total", labels) or 0.0


class Doors:
    """What the tools of the tests wait for, and what they saw."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.seen: list[str] = []
        self.fail: list[BaseException] = []


@pytest.fixture
def doors() -> Iterator[Doors]:
    made = Doors()
    yield made
    made.open.set()


@pytest.fixture
def tools(doors: Doors) -> Toolset:
    tools = Toolset("shop", version="1")

    @tools.tool()
    async def echo(ctx: ToolContext, text: str = "x") -> str:
        doors.seen.append(f"{ctx.key}#{ctx.attempt}")
        if doors.fail:
            raise doors.fail.pop(0)
        return text

    @tools.tool(timeout_s=5)
    async def slow(ctx: ToolContext) -> str:
        doors.seen.append(f"{ctx.key}#{ctx.attempt}")
        while not doors.open.is_set():
            await asyncio.sleep(0.002)
        if doors.fail:
            raise doors.fail.pop(0)
        return "slow"

    @tools.tool(timeout_s=5)
    def thread(ctx: ToolContext) -> str:
        doors.seen.append(f"{ctx.key}#{ctx.attempt}")
        doors.open.wait(PATIENCE_S)
        return "thread"

    @tools.tool(timeout_s=0.05)
    async def hasty(ctx: ToolContext) -> str:
        doors.seen.append("started")
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            doors.seen.append("cancelled")
        return "never"

    @tools.tool(timeout_s=0.05)
    def stuck(ctx: ToolContext) -> str:
        doors.seen.append(f"{ctx.key}#{ctx.attempt}")
        doors.open.wait(PATIENCE_S)
        return "at last"

    return tools


@pytest.fixture
def bench(tools: Toolset) -> Iterator[Bench]:
    made = Bench(tools)
    yield made
    made.worker._hurry.set()
    made.worker._leave()


def test_a_request_is_answered_to_its_place_with_its_token_and_trace(bench: Bench) -> None:
    request = bench.ask("echo", {"text": "hé\ud800"})
    bench.until(lambda: len(bench.results()) == 1)
    result = bench.results()[0]
    assert result[:6] == (request.run_id, request.call_key, 1, b"t1", "ok", "hé\ufffd")
    record = next(iter(bench.cluster.log(Partition("results", 1))))
    assert record.key == request.call_key.encode()
    assert record.headers == (("traceparent", b"00-1"),)
    bench.until(lambda: bench.committed() == 1)


def test_many_quick_calls_move_to_the_poll_thread_and_stay_right(bench: Bench) -> None:
    for turn in range(100):
        bench.ask("echo", {"text": str(turn)}, turn=turn)
    bench.until(lambda: len(bench.results()) == 100)
    assert {r.call_key: r.content for r in bench.results()} == {
        call_key("run", turn, 0, "echo", "{}"): str(turn) for turn in range(100)
    }
    for turn in range(100, 110):
        bench.ask("echo", turn=turn)
        bench.until(lambda expected=turn + 1: len(bench.results()) == expected)  # type: ignore[misc]
    assert bench.worker._desk._paces["echo"].inline
    assert bench.calls("echo") == 110


@pytest.mark.parametrize("tool", ["slow", "thread"])
def test_only_the_lowest_position_not_answered_is_committed(bench: Bench, doors: Doors, tool: str) -> None:
    bench.ask(tool)
    for turn in range(1, 6):
        bench.ask("echo", turn=turn)
    bench.until(lambda: len(bench.results()) == 5)
    for _ in range(20):
        bench.worker.step()
    assert not bench.committed(), "the first request is still under way"
    doors.open.set()
    bench.until(lambda: bench.committed() == 6)
    assert len(bench.results()) == 6


def test_nothing_is_committed_before_the_results_acknowledgement(bench: Bench) -> None:
    bench.cluster.hold("results")
    bench.ask("echo")
    for _ in range(50):
        bench.worker.step()
        time.sleep(0.001)
    assert not bench.committed()
    for kind in ("land", "ack"):
        for move in bench.cluster.choices():
            if move.kind == kind:
                bench.cluster.do(move)
    bench.until(lambda: bench.committed() == 1)


def test_a_duplicate_that_comes_later_is_answered_without_a_call(bench: Bench, doors: Doors) -> None:
    bench.ask("echo", {"text": "once"})
    bench.until(lambda: len(bench.results()) == 1)
    bench.ask("echo", {"text": "once"}, attempt=2, reply_token=b"t2")
    bench.until(lambda: len(bench.results()) == 2)
    assert len(doors.seen) == 1
    assert [(r.attempt, r.reply_token, r.content) for r in bench.results()] == [(1, b"t1", "once"), (2, b"t2", "once")]
    assert bench.count("answered_from_known_total") == 1


@pytest.mark.parametrize("tool", ["slow", "thread"])
def test_a_duplicate_that_comes_meanwhile_joins_the_call(bench: Bench, doors: Doors, tool: str) -> None:
    bench.ask(tool)
    bench.until(lambda: len(doors.seen) == 1)
    bench.ask(tool)
    bench.ask(tool, attempt=2, reply_token=b"t2")
    bench.until(lambda: bench.count("joined_total") == 2)
    doors.open.set()
    bench.until(lambda: len(bench.results()) == 3)
    assert len(doors.seen) == 1
    assert sorted((r.attempt, r.reply_token) for r in bench.results()) == [(1, b"t1"), (1, b"t1"), (2, b"t2")]
    bench.until(lambda: bench.committed() == 3)


def test_a_failed_attempt_answers_its_own_duplicates_and_a_new_attempt_runs(bench: Bench, doors: Doors) -> None:
    doors.fail = [ToolFailure("busy", retryable=True)]
    bench.ask("slow")
    bench.until(lambda: len(doors.seen) == 1)
    bench.ask("slow")
    bench.ask("slow", attempt=2, reply_token=b"t2")
    bench.until(lambda: bench.count("joined_total") == 2)
    doors.open.set()
    bench.until(lambda: len(bench.results()) == 3)
    assert sorted((r.attempt, r.status, r.content) for r in bench.results()) == [
        (1, "error", "busy"), (1, "error", "busy"), (2, "ok", "slow"),
    ]  # fmt: skip
    assert [seen.rpartition("#")[2] for seen in doors.seen] == ["1", "2"]
    bench.ask("slow")  # the error is known no more: the success of the other attempt answers
    bench.until(lambda: len(bench.results()) == 4)
    assert bench.results()[-1].content == "slow"


def test_errors_carry_what_the_loop_needs(bench: Bench, doors: Doors) -> None:
    doors.fail = [ValueError("bad"), ConnectionResetError("gone"), ToolFailure("no", fatal=True)]
    for turn in range(3):
        bench.ask("echo", turn=turn)
        bench.until(lambda expected=turn + 1: len(bench.results()) == expected)  # type: ignore[misc]
    bench.ask("echo", '{"nope":1}', turn=3)
    bench.ask("elsewhere", turn=4)
    bench.until(lambda: len(bench.results()) == 5)
    assert [(r.status, r.error, r.retryable, r.fatal) for r in sorted(bench.results(), key=lambda r: r.call_key)] == [
        ("error", "exception", False, False),
        ("error", "unreachable", True, False),
        ("error", "tool_failed", False, True),
        ("error", "bad_arguments", False, False),
        ("error", "unknown_tool", True, False),
    ]
    assert "ValueError: bad" in {r.content for r in bench.results()}


def test_a_late_request_starts_nothing_and_is_passed(bench: Bench, doors: Doors) -> None:
    bench.ask("echo", not_after=now_ms() - 1)
    bench.until(lambda: bench.committed() == 1)
    assert not doors.seen
    assert not bench.results()
    assert bench.count("refused_late_total") == 1


def test_a_request_whose_time_ends_in_the_queue_starts_nothing(tools: Toolset, doors: Doors) -> None:
    bench = Bench(tools, threads=1)
    bench.ask("thread")
    bench.until(lambda: len(doors.seen) == 1)
    bench.ask("thread", turn=1, not_after=now_ms() + 50)
    bench.until(lambda: bench.count("refused_late_total") == 1)
    doors.open.set()
    bench.until(lambda: bench.committed() == 2)
    assert len(doors.seen) == 1
    assert len(bench.results()) == 1
    bench.worker._leave()


def test_an_async_tool_is_cancelled_at_its_deadline(bench: Bench, doors: Doors) -> None:
    bench.ask("hasty")
    bench.until(lambda: len(bench.results()) == 1)
    result = bench.results()[0]
    assert (result.status, result.error, result.retryable) == ("error", "timed_out", True)
    assert "0.05 s" in result.content
    bench.until(lambda: doors.seen == ["started", "cancelled"])
    bench.until(lambda: bench.count("overruns") == 0)
    bench.until(lambda: bench.committed() == 1)


def test_a_thread_past_its_time_is_answered_counted_and_its_late_result_serves_the_next_attempt(
    bench: Bench, doors: Doors
) -> None:
    bench.ask("stuck")
    bench.until(lambda: len(bench.results()) == 1)
    assert bench.results()[0].error == "timed_out"
    assert bench.count("overruns") == 1
    bench.ask("stuck", attempt=2, reply_token=b"t2")
    bench.until(lambda: bench.count("joined_total") == 1)
    doors.open.set()
    bench.until(lambda: len(bench.results()) == 2)
    assert (bench.results()[1].content, bench.results()[1].attempt) == ("at last", 2)
    assert len(doors.seen) == 1, "one effect"
    bench.until(lambda: bench.count("overruns") == 0)


def test_when_every_thread_is_kept_the_worker_is_not_ready(tools: Toolset, doors: Doors) -> None:
    bench = Bench(tools, threads=1)
    bench.ask("stuck")
    bench.until(lambda: "threads shop" in bench.health.ready())
    assert "restart this worker" in bench.health.ready()["threads shop"]
    doors.open.set()
    bench.until(lambda: "threads shop" not in bench.health.ready())
    bench.worker._leave()


def test_what_cannot_be_read_is_a_dead_letter_and_the_partition_goes_on(bench: Bench) -> None:
    bench.put(b"k", b"nonsense")
    bench.put(None, None)
    bench.put(b"k", b"\0" + (7).to_bytes(4, "big") + b"x")
    bench.put(b"other", CODEC.encode(bench.ask("echo")))
    bench.ask("echo", run_id="run2", call_key="run1:t0:c0:x")
    bench.put(b"k" * 100_000, b"\1" * 700_000, headers=(("h", b"z" * 70_000),))
    bench.ask("echo", turn=9)
    bench.until(lambda: bench.committed() == 8)
    assert len(bench.results()) == 2
    letters = bench.letters()
    assert [letter.reason for letter in letters] == [
        "not_avro", "null_value", "unknown_schema_id", "key_mismatch", "key_mismatch", "not_avro",
    ]  # fmt: skip
    assert [letter.source.offset for letter in letters] == [0, 1, 2, 4, 5, 6]
    assert letters[0].value == b"nonsense"
    assert dict(letters[0].headers) == {"traceparent": b"00-1", "x": b"y"}
    assert letters[1].value is None
    assert letters[1].key is None
    big = letters[-1]
    assert (big.size, len(big.value or b""), len(big.key or b""), big.headers) == (700_000, 512 * 1024, 64 * 1024, ())
    assert big.service == "tool_worker"


def test_a_request_cannot_have_its_answer_written_into_another_topic(bench: Bench) -> None:
    bench.ask(reply_topic="journal")
    bench.ask(turn=1)
    bench.until(lambda: len(bench.results()) == 1)
    assert [letter.reason for letter in bench.letters()] == ["bad_reply_topic"]


def test_a_result_that_kafka_refuses_becomes_a_dead_letter(bench: Bench) -> None:
    bench.cluster.refuse_appends("results", Refused("no such partition"))
    bench.ask("echo")
    bench.until(lambda: bench.committed() == 1)
    assert [letter.reason for letter in bench.letters()] == ["reply_refused"]
    bench.cluster.refuse_appends("dead-letters", Refused("no right"))
    bench.ask("echo", turn=1)
    bench.until(lambda: bench.committed() == 2)
    assert bench.count("dead_letters_refused_total") == 1


def test_a_finished_producer_is_replaced_and_nothing_is_lost(bench: Bench) -> None:
    bench.cluster.hold("results")
    for turn in range(5):
        bench.ask("echo", turn=turn)
    for _ in range(30):
        bench.worker.step()
        time.sleep(0.001)
    fail = next(m for m in bench.cluster.choices(faults=True) if m.kind == "fail" and m.partition.topic == "results")
    bench.cluster.do(fail)
    bench.cluster.release()
    bench.until(lambda: bench.committed() == 5)
    assert len({r.call_key for r in bench.results()}) == 5


def test_reading_pauses_at_the_bound_and_goes_on(tools: Toolset, doors: Doors) -> None:
    bench = Bench(tools, under_way=4)
    for turn in range(20):
        bench.ask("slow", turn=turn)
    for _ in range(50):
        bench.worker.step()
        time.sleep(0.001)
    assert len(doors.seen) == 4
    assert bench.worker._gate.closed
    doors.open.set()
    bench.until(lambda: bench.committed() == 20)
    assert len(bench.results()) == 20
    assert bench.count("requests_total") == 20
    bench.worker._leave()


def test_requests_that_expired_unread_do_not_stop_the_partition(bench: Bench) -> None:
    bench.ask("echo")
    bench.until(lambda: bench.committed() == 1)
    for turn in range(1, 6):
        bench.ask("echo", turn=turn)
    bench.cluster.expire(TOPICS.requests, now_ms() + 1000)
    bench.cluster.log(Partition(TOPICS.requests, 0)).drop_before(6)
    bench.ask("echo", turn=7)
    bench.until(lambda: bench.committed() == 7)
    assert bench.results()[-1].call_key == call_key("run", 7, 0, "echo", "{}")


def test_leaving_finishes_what_runs_drops_what_waits_and_commits(tools: Toolset, doors: Doors) -> None:
    bench = Bench(tools, threads=1)
    bench.ask("thread")
    bench.ask("thread", turn=1)
    bench.until(lambda: len(doors.seen) == 1 and bench.count("requests_total") == 2)
    threading.Timer(0.1, doors.open.set).start()
    bench.worker._leave()
    assert len(bench.results()) == 1
    successor = bench.another()
    bench.until(lambda: len(bench.results()) == 2, successor)
    assert [seen.rpartition("#")[0] for seen in doors.seen] == [call_key("run", t, 0, "thread", "{}") for t in (0, 1)]
    successor._leave()


def test_a_drain_has_a_deadline_and_the_next_owner_gets_the_rest(tools: Toolset, doors: Doors) -> None:
    bench = Bench(tools, drain_s=0.1)
    bench.ask("slow")
    bench.until(lambda: len(doors.seen) == 1)
    begun = time.monotonic()
    bench.worker._leave()
    assert time.monotonic() - begun < 3.5
    doors.open.set()
    successor = bench.another()
    bench.until(lambda: len(bench.results()) >= 1, successor)
    assert len(doors.seen) == 2, "at least once: it was not answered in time"
    successor._leave()


def test_a_consumer_that_is_finished_ends_the_worker(tools: Toolset, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tools)

    def finished(*_: Any) -> Any:
        raise Fatal("the instance id was taken", "_FATAL")

    monkeypatch.setattr(bench.worker._consumer, "poll", finished)
    with pytest.raises(Fatal):
        bench.worker.run()


def test_every_request_has_exactly_one_end(bench: Bench, doors: Doors) -> None:
    doors.open.set()
    for turn in range(60):
        match turn % 6:
            case 0:
                bench.ask("slow", turn=turn)
            case 1:
                bench.ask("thread", turn=turn)
            case 2:
                bench.ask("slow", turn=turn - 2)  # a duplicate
            case 3:
                bench.ask("echo", turn=turn, not_after=0)
            case 4:
                bench.put(b"k", b"?")
            case _:
                bench.ask("echo", turn=turn)
    bench.until(lambda: bench.committed() == 60)
    assert len(bench.results()) + len(bench.letters()) + bench.count("refused_late_total") == 60
    executed = sum(bench.calls(name) for name in ("slow", "thread", "echo"))
    assert executed + bench.count("joined_total") + bench.count("answered_from_known_total") == len(bench.results())
    assert bench.count("under_way") == 0
