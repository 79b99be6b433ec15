"""J1 to J7, each rule by name: what counts, who owns, what may leave when. `test_rule_mutants` takes every rule out once."""

from __future__ import annotations

import itertools
from hashlib import sha256
from typing import Any

import pytest

from services.loop.owner import DAY_MS
from tests.simulation.loop_process import GROUP, REQUESTS, TOPICS
from tests.simulation.loop_stage import COMMANDS, JOURNAL, RESULTS, Stage, answers, one_call, two_calls
from turnlog.kafka.fenced import FENCE, SNAPSHOT, STEP, PartitionFold, RecordHeader, Verdict, header_of, headers_of
from turnlog.kafka.ownership import End, FencedWriter, Ownership
from turnlog.kafka.port import Fatal, LogError, NotOwner, Partition, Rebalancing, Received
from turnlog.testing import MemoryCluster

A, B = b"a" * 16, b"b" * 16


class Log:
    """Journal records in a row, for the reader's rule alone."""

    def __init__(self) -> None:
        self.offsets = itertools.count()
        self.fold = PartitionFold()

    def put(
        self,
        kind: str,
        token: bytes,
        step: int = -1,
        prev: bytes | None = None,
        value: bytes = b"",
        key: str = "r",
        end: int = -1,
    ) -> Verdict:
        headers = tuple(headers_of(RecordHeader(kind, token, step, prev, 0, end)))
        return self.fold.take(
            Received("journal", 0, next(self.offsets), key.encode() if kind != FENCE else None, value, headers, 0)
        )


def digest(value: bytes) -> bytes:
    return sha256(value).digest()


# ---------------------------------------------------------------- J1, J2


def test_j01_a_record_counts_under_the_fence_in_force_only() -> None:
    log = Log()
    assert log.put(STEP, A, 0, value=b"0") is Verdict.VOID  # no fence yet
    assert log.put(FENCE, A) is Verdict.FENCE
    assert log.put(STEP, A, 0, value=b"0") is Verdict.STEP
    assert log.put(FENCE, B) is Verdict.FENCE
    assert log.put(STEP, A, 1, digest(b"0"), b"1") is Verdict.VOID
    assert log.put(STEP, B, 1, digest(b"0"), b"1'") is Verdict.STEP


def test_j01_a_step_names_number_and_hash_of_the_one_before() -> None:
    for step, prev in ((2, digest(b"0")), (1, digest(b"x")), (1, None), (0, None)):
        log = Log()
        log.put(FENCE, A)
        log.put(STEP, A, 0, value=b"0")
        assert log.put(STEP, A, step, prev, b"other") is Verdict.BROKEN
        assert log.put(STEP, A, 1, digest(b"0"), b"1") is Verdict.BROKEN, "a run that broke stays stopped"
        assert log.put(STEP, A, 0, value=b"s", key="s") is Verdict.STEP, "and no other run with it"


def test_j01_a_snapshot_fits_the_step_it_stands_at() -> None:
    log = Log()
    log.put(FENCE, A)
    log.put(STEP, A, 0, value=b"0")
    assert log.put(SNAPSHOT, A, 0, digest(b"0"), b"s") is Verdict.SNAPSHOT
    assert log.put(SNAPSHOT, A, 0, digest(b"x"), b"s") is Verdict.BROKEN


def test_j01_a_broken_run_is_stopped_and_says_so_and_its_partition_goes_on() -> None:
    stage = Stage(answers)
    first = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(first, ms=100)
    token = stage.journal()[-1].header.fence
    stage.append(b"no", RecordHeader(STEP, token, 7, b"\0" * 32, 0, -1), b"r1")
    first.crash()
    stage.clock.advance(6_000)
    second = stage.live()
    told = stage.input("r1")
    stage.run("r2")
    stage.spin(second, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["refused"]
    assert "neither follows nor repeats" in stage.outcomes(told)[0].reason
    assert [letter.reason for letter in stage.letters()] == ["run_stopped"]
    assert stage.summary("r2").status == "succeeded"  # type: ignore[union-attr]
    stage.spin(second, ms=100)
    assert stage.committed(COMMANDS) == 3


def test_j02_a_repeat_is_skipped_and_counted() -> None:
    log = Log()
    log.put(FENCE, A)
    log.put(STEP, A, 0, value=b"0")
    assert log.put(STEP, A, 0, value=b"0") is Verdict.REPEAT
    assert log.put(STEP, A, 1, digest(b"0"), b"1") is Verdict.STEP
    assert log.put(STEP, A, 1, digest(b"0"), b"1") is Verdict.REPEAT
    assert (log.fold.counts[Verdict.REPEAT], log.fold.trails["r"].step) == (2, 1)


def test_j02_a_run_goes_on_behind_repeats_of_its_steps() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.cluster.hold(TOPICS.journal)
    stage.run("r1", agent="talk")
    for _ in range(6):
        stage.spin(process, rounds=2)
        stage.move("land")
        stage.move("repeat")
        stage.move("ack")
    stage.spin(process)
    assert stage.kinds("r1")[-1] == "input_awaited"
    fold = PartitionFold()
    verdicts = [fold.take(record) for record in stage.cluster.log(JOURNAL)]
    assert verdicts.count(Verdict.REPEAT) >= 2
    assert Verdict.BROKEN not in verdicts
    assert stage.table(process).slots["r1"].trail.step == fold.trails["r1"].step  # type: ignore[union-attr]
    assert process.service.owners[0].shell.counters.ownership_ends == {}, "repeats of our own end nothing"


def test_j02_the_journals_producer_writes_nothing_else() -> None:
    stage = Stage()
    process = stage.live()
    stage.run("r1")
    stage.spin(process)
    stage.answer(stage.requests()[0])
    stage.spin(process)
    assert stage.kinds("r1")[-1] == "run_succeeded"
    for producer in stage.cluster.producers:
        topics = {where.topic for where in producer.lanes}
        assert producer.name != "journal" or topics == {TOPICS.journal}
        assert producer.name == "journal" or TOPICS.journal not in topics


# ---------------------------------------------------------------- J3, J4


def test_j03_the_owner_reads_all_inbound_topics_of_its_partition_and_stops_in_the_same_call() -> None:
    stage = Stage()
    process = stage.live()
    cursor = process.inner._cursor.positions
    assert set(cursor) == {COMMANDS, RESULTS}
    second = stage.start("loop-1")
    process.host.freeze()
    stage.clock.advance(6_000)
    stage.spin(second, rounds=2)
    process.host.thaw()
    stage.spin(process, rounds=1)
    assert set(cursor) == set()
    assert not process.service.owners


def test_j03_positions_are_committed_again_daily_also_unmoved() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.spin(process, ms=200)
    assert stage.committed(RESULTS) == 0
    stage.cluster.forget(GROUP, RESULTS)
    stage.spin(process, ms=200, rounds=5)
    assert stage.committed(RESULTS) is None
    stage.spin(process, ms=200_000, rounds=DAY_MS // 200_000 + 5)  # a member that does not poll for 300 s is put out
    assert stage.committed(RESULTS) == 0


def test_j03_who_lost_its_instance_id_ends_every_ownership_and_goes() -> None:
    stage = Stage()
    first = stage.live()
    second = stage.start("loop-x", instance="loop-0")
    stage.spin(first, rounds=1)
    assert first.gone == "its instance id was taken"
    assert not first.service.owners
    stage.until(second, lambda: bool(second.service.owners) and second.service.unready is None)


def test_j04_nothing_names_a_token_before_its_fence_is_acknowledged() -> None:
    stage = Stage()
    stage.cluster.hold(TOPICS.journal)
    stage.run("r1")
    process = stage.start()
    stage.spin(process, rounds=10, ms=50)
    assert stage.stage_of(process) == "opening"
    assert not stage.journal()
    stage.move("land")
    stage.spin(process, rounds=10, ms=50)
    assert [entry.header.kind for entry in stage.journal()] == ["fence"], "landed is not acknowledged"
    assert stage.stage_of(process) == "opening"
    stage.move("ack")
    stage.until(process, lambda: stage.stage_of(process) == "live")
    stage.move("land")
    assert [entry.header.kind for entry in stage.journal()] == ["fence", "step"]
    assert stage.journal()[1].header.fence == stage.journal()[0].header.fence


@pytest.mark.parametrize(
    "error", [NotOwner("no", "UNKNOWN_MEMBER_ID"), NotOwner("no", "FENCED_INSTANCE_ID")], ids=lambda e: e.code
)
def test_j04_a_fence_without_an_accepted_commit_opens_nothing(error: LogError) -> None:
    stage = Stage()
    process = stage.start()
    stage.cluster.refuse_commits(GROUP, error)
    stage.spin(process, rounds=8)
    assert len(stage.fences()) == 1
    assert stage.stage_of(process) == "closed"
    stage.until(
        process, lambda: stage.stage_of(process) == "live"
    )  # the group never took it away: asked again, before a fence
    assert len(stage.fences()) == 2


def test_j04_a_commit_refused_by_a_rebalance_is_asked_again() -> None:
    stage = Stage()
    process = stage.start()
    stage.cluster.refuse_commits(
        GROUP, Rebalancing("wait", "REBALANCE_IN_PROGRESS"), Rebalancing("wait", "ILLEGAL_GENERATION")
    )
    stage.until(process, lambda: stage.stage_of(process) == "live")
    assert len(stage.fences()) == 1


def test_j04_who_lost_the_partition_while_its_fence_was_under_way_does_not_open() -> None:
    stage = Stage()
    stage.cluster.hold(TOPICS.journal)
    first = stage.start("loop-0")
    stage.spin(first, rounds=3)
    first.freeze()
    stage.clock.advance(6_000)
    stage.cluster.release()
    second = stage.live("loop-1")
    first.thaw(deaf=True)  # it still believes that the partition is its own
    stage.spin(first, rounds=10)
    assert stage.stage_of(first) != "backlog"
    assert first.service.owners[0].table is None
    assert stage.stage_of(second) == "live"


# ---------------------------------------------------------------- J5, J6


def test_j05_one_unacknowledged_record_a_run_and_what_waited_is_decided_together() -> None:
    stage = Stage(one_call, latency_ms=100.0)
    process = stage.live()
    stage.cluster.hold(TOPICS.journal)
    stage.run("r1", agent="talk")
    stage.run("r2", agent="talk")
    stage.spin(process)
    for _ in range(3):
        stage.input("r1")
        stage.spin(process)
    lane = next(p for p in stage.cluster.producers if p.name == "journal" and p.lanes).lanes[JOURNAL]
    assert [sent.key for sent in lane.sent] == [b"r1", b"r2"], "one a run, others are not held up"
    stage.move("land", times=2)
    stage.move("ack", times=2)
    stage.spin(process)
    assert [sent.key for sent in lane.sent] == [b"r1"]
    stage.cluster.release()
    stage.spin(process)
    assert [event.kind for event in stage.journal("r1")[1].record.events] == ["input_received"] * 3


def test_j05_a_snapshot_counts_as_the_runs_record() -> None:
    stage = Stage(answers, snapshot_bytes=10, latency_ms=100.0)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, rounds=6, ms=50)
    stage.cluster.hold(TOPICS.journal)
    slot = stage.table(process).slots["r1"]
    slot.trail.since_bytes = 1 << 20  # type: ignore[union-attr]  # the next step is followed by a snapshot
    stage.input("r1", "x")
    stage.spin(process)
    stage.move("land")
    stage.move("ack")
    stage.spin(process)
    stage.input("r1", "y")
    stage.spin(process)
    lane = next(p for p in stage.cluster.producers if p.name == "journal" and p.lanes).lanes[JOURNAL]
    kinds = [dict(sent.headers)["kind"] for sent in lane.sent]
    assert kinds == [b"snapshot"]


class Teller:
    """An owner that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.ends: list[End] = []

    def valid(self, ticket: str, offset: int) -> None:
        self.told.append((ticket, offset))

    def over(self, end: End, reason: str) -> None:
        del reason
        self.ends.append(end)


class Scene:
    """One FencedWriter on a held journal; gap reads wait in `gaps`."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(lambda: 0)
        self.cluster.create("journal", 2)
        self.gaps: list[tuple[Partition, int, int, Any]] = []
        self.writer = FencedWriter(self.cluster, "journal", lambda *gap: self.gaps.append(gap))
        self.teller = Teller()
        self.own = self.open(A)
        self.cluster.hold()

    def open(self, token: bytes, index: int = 0, teller: Teller | None = None) -> Ownership[str]:
        found: list[int | None] = []
        self.writer.append_fence(index, b"fence", token, lambda offset, error: found.append(offset))
        self.settle()
        assert found[0] is not None
        return self.writer.open(index, token, found[0], teller or self.teller)

    def settle(self) -> None:
        self.writer.poll(0)
        self.writer.settle()

    def append(self, name: str, own: Ownership[str] | None = None) -> None:
        own = own or self.own
        self.writer.append(own, name, name.encode(), name.encode(), RecordHeader(STEP, own.token, 0, None, 0, -1))

    def move(self, kind: str, times: int = 1) -> None:
        for _ in range(times):
            self.cluster.do(next(m for m in self.cluster.choices(faults=True) if m.kind == kind))
        self.settle()

    def other(self, kind: str, token: bytes) -> None:
        headers = tuple(headers_of(RecordHeader(kind, token, 0, None, 0, -1)))
        self.cluster.log(JOURNAL).append(b"x", b"x", headers, 0)

    def read_gap(self) -> None:
        where, start, end, then = self.gaps.pop(0)
        then([r for r in self.cluster.log(where) if start <= r.offset < end], None)


def test_j06_nothing_is_told_valid_before_its_acknowledgement() -> None:
    scene = Scene()
    scene.append("one")
    scene.move("land")
    assert not scene.teller.told
    scene.move("ack")
    assert scene.teller.told == [("one", 1)]


def test_j06_requests_and_projections_wait_for_the_acknowledgement() -> None:
    stage = Stage()
    process = stage.live()
    stage.cluster.hold(TOPICS.journal)
    started = stage.run("r1")
    stage.spin(process, ms=200)
    stage.move("land")
    stage.spin(process, ms=200)
    assert not stage.outcomes(started)
    stage.move("ack")
    stage.spin(process, ms=200)
    assert [o.outcome for o in stage.outcomes(started)] == ["accepted"]
    stage.move("land")  # the model's answer
    stage.spin(process, ms=200)
    assert not stage.requests()
    stage.move("ack")
    stage.spin(process, ms=200)
    assert len(stage.requests()) == 1


def test_j06_model_calls_are_not_held_back() -> None:
    asked = []
    stage = Stage(lambda request: asked.append(request) or answers(request))  # type: ignore[func-returns-value]
    process = stage.live()
    stage.cluster.hold(TOPICS.journal)
    stage.run("r1")
    stage.spin(process)
    assert len(asked) == 1
    assert not stage.journal("r1")


def test_j06_a_higher_offset_releases_nothing_until_the_gap_is_read() -> None:
    scene = Scene()
    scene.append("one")
    scene.other(STEP, B)
    scene.move("land")
    scene.move("ack")
    assert not scene.teller.told
    assert scene.own.unsure
    assert scene.own.told == 1, "nobody may say that the log is known beyond the gap"
    scene.append("two")  # a later, contiguous acknowledgement waits as well
    scene.move("land")
    scene.move("ack")
    assert not scene.teller.told
    scene.read_gap()
    assert scene.teller.told == [("one", 2), ("two", 3)]
    assert (scene.own.ignored, scene.own.told) == (1, 4)


def test_j06_a_gap_met_while_one_is_read_is_read_too() -> None:
    scene = Scene()
    scene.append("one")
    scene.other(STEP, B)
    scene.move("land")
    scene.move("ack")
    scene.append("two")
    scene.other(FENCE, B)
    scene.move("land")
    scene.move("ack")
    scene.read_gap()
    assert not scene.teller.told, "the second gap is not read yet"
    scene.read_gap()
    assert not scene.teller.told
    assert scene.teller.ends == [End.FOREIGN_FENCE]


def test_j06_a_foreign_fence_in_a_gap_ends_the_ownership_and_a_void_step_does_not() -> None:
    scene = Scene()
    scene.append("one")
    scene.other(FENCE, B)
    scene.other(STEP, B)
    scene.move("land")
    scene.move("ack")
    scene.read_gap()
    assert (scene.teller.told, scene.teller.ends) == ([], [End.FOREIGN_FENCE])


def test_j06_the_own_fence_repeated_is_no_foreign_one() -> None:
    scene = Scene()
    scene.other(FENCE, A)
    scene.append("one")
    scene.move("land")
    scene.move("ack")
    scene.read_gap()
    assert (scene.teller.told, scene.teller.ends) == ([("one", 2)], [])


def test_j06_a_gap_that_cannot_be_read_ends_the_ownership() -> None:
    scene = Scene()
    scene.other(STEP, B)
    scene.append("one")
    scene.move("land")
    scene.move("ack")
    scene.gaps.pop()[3](None, LogError("no"))
    assert (scene.teller.told, scene.teller.ends) == ([], [End.PRODUCER])


def test_j06_a_report_belongs_to_the_ownership_it_was_produced_under() -> None:
    scene = Scene()
    scene.append("old")
    scene.move("land")
    scene.writer.leave(scene.own)
    later = Teller()
    scene.cluster.release()
    own = scene.open(B, teller=later)
    scene.settle()
    assert (scene.teller.told, later.told) == ([], [])
    scene.append("new", own)
    scene.settle()
    assert later.told == [("new", own.fence_offset + 1)]


def test_j06_a_stopped_process_that_wakes_between_append_and_acknowledgement_releases_nothing() -> None:
    """SIGSTOP after the append, a takeover meanwhile, and the acknowledgement is there when it wakes."""
    stage = Stage(two_calls)
    first = stage.live("loop-0")
    stage.cluster.hold(TOPICS.journal)
    stage.run("r1")
    stage.spin(first)
    stage.move("land")
    stage.move("ack")
    stage.spin(first)  # the answer with its calls is under way
    first.freeze()
    stage.clock.advance(6_000)
    second = stage.start("loop-1")
    stage.spin(second, rounds=4)
    fence = [m for m in stage.cluster.choices() if m.kind == "land" and m.producer != _journal_of(stage, first)]
    stage.cluster.do(fence[0])  # the new owner's fence lands before the old step
    stage.cluster.release()
    stage.until(second, lambda: stage.stage_of(second) == "live")
    before = len(stage.requests())
    first.thaw(deaf=True)
    stage.spin(first, rounds=8, ms=100)
    assert len(stage.requests()) == before
    assert first.service.owners[0].table is None
    assert first.shell.counters.ownership_ends == {"foreign_fence": 1}
    for request in stage.requests():
        stage.answer(request)
    stage.until(second, lambda: stage.kinds("r1")[-1] == "run_succeeded")


def _journal_of(stage: Stage, process: Any) -> int:
    number: int = process.shell.writer._producer.number
    return number


# ---------------------------------------------------------------- J7


@pytest.mark.parametrize("fault", ["ack_unknown", "fail"])
def test_j07_an_unknown_fate_ends_every_ownership_of_the_producer(fault: str) -> None:
    scene = Scene()
    scene.cluster.release()
    scene.cluster._holding_all = False
    other = Teller()
    second = scene.open(B, 1, other)
    scene.cluster.hold()
    scene.append("one")
    scene.move("land")
    producer = scene.writer._producer
    scene.move(fault)
    assert scene.teller.ends == other.ends == [End.PRODUCER]
    assert not scene.teller.told
    assert scene.writer._producer is not producer
    assert second.ended is End.PRODUCER
    with pytest.raises(Fatal):
        producer.produce("journal", b"closed", partition=0)


def test_j07_what_a_dead_producer_still_reports_counts_for_nothing() -> None:
    scene = Scene()
    fences: list[int | None] = []
    scene.append("one")
    scene.writer.append_fence(1, b"fence", B, lambda offset, error: fences.append(offset))
    scene.cluster.release()
    scene.writer.poll(0)  # both are acknowledged, and nobody has looked yet
    scene.writer.renew("another record's fate is unknown")
    scene.writer.settle()
    assert (scene.teller.told, scene.teller.ends, fences) == ([], [End.PRODUCER], [None])


def test_j07_the_partition_is_opened_again_and_nothing_is_lost() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.cluster.hold(TOPICS.journal)
    stage.run("r1")
    stage.spin(process)
    stage.move("land")
    stage.move("ack_unknown")
    stage.spin(process, rounds=1)
    assert stage.stage_of(process) == "closed"
    assert not stage.summary("r1")
    stage.cluster.release()
    stage.until(process, lambda: stage.stage_of(process) == "live")
    stage.spin(process, ms=200)
    assert stage.kinds("r1")[-1] == "run_succeeded"
    assert len(stage.fences()) == 2


def test_j07_who_met_a_foreign_fence_asks_whether_it_owns_before_the_next_fence() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.foreign_fence()
    stage.run("r1")
    stage.spin(process, rounds=3)
    assert stage.stage_of(process) == "closed"
    assert process.shell.counters.ownership_ends == {"foreign_fence": 1}
    stage.cluster.refuse_commits(GROUP, NotOwner("no", "UNKNOWN_MEMBER_ID"))
    fences = len(stage.fences())
    stage.spin(process, rounds=10, ms=200)
    assert len(stage.fences()) == fences, "it did not own it, and must not void who does"
    stage.until(process, lambda: stage.stage_of(process) == "live")  # confirmed: nobody else would serve the partition
    stage.until(process, lambda: stage.kinds("r1")[-1:] == ["run_succeeded"])


def test_j07_the_pause_before_opening_again_is_by_chance() -> None:
    waits = set()
    for seed in range(4):
        stage = Stage(answers)
        process = stage.live(seed=seed)
        stage.foreign_fence()
        stage.run("r1")
        stage.spin(process, rounds=3)
        waits.add(process.service.owners[0]._retry_at - stage.clock.monotonic())
    assert len(waits) == 4
    assert min(waits) > 0.1


def test_j07_ends_without_progress_are_seen_in_health() -> None:
    stage = Stage(answers)
    process = stage.start()
    stage.cluster.refuse_commits(GROUP, *[NotOwner("no", "UNKNOWN_MEMBER_ID")] * 50)
    stage.spin(process, rounds=20, ms=300)
    assert "another member" in (process.service.unready or "")


def test_j03_commits_of_the_group_hold_the_topics_of_the_owner_only() -> None:
    stage = Stage()
    process = stage.live()
    stage.run("r1")
    stage.spin(process, rounds=6, ms=100)
    stage.answer(stage.requests()[0])
    stage.spin(process, rounds=6, ms=100)
    assert set(stage.cluster.group(GROUP).positions) == {COMMANDS, RESULTS}
    assert (stage.committed(COMMANDS), stage.committed(RESULTS)) == (1, 1)
    assert header_of(next(iter(stage.cluster.log(Partition(REQUESTS, 0)))).headers) is None
