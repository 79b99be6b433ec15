"""J8 to J12, each rule by name: snapshots and the floor, restore, parking, inputs, known runs."""

from __future__ import annotations

import pytest

from services.loop.known_runs import KnownRuns, state_headers
from tests.simulation.loop_process import GROUP, TOPICS, LoopProcess
from tests.simulation.loop_stage import COMMANDS, JOURNAL, RESULTS, STATES, Stage, answers, one_call
from turnlog.core.events import ModelAnswer, ModelFailure
from turnlog.core.transcript import ModelRequest
from turnlog.kafka.fenced import Pointer
from turnlog.kafka.opening import look, restore
from turnlog.kafka.port import Partition, Received, Retryable

EFFECTS = (TOPICS.run_state, TOPICS.ledger, TOPICS.outcomes, TOPICS.dead_letters, "tool-requests.work")


def takeover(stage: Stage, old: LoopProcess, name: str = "loop-1") -> LoopProcess:
    """Kill the old process; another one opens its partitions."""
    old.crash()
    stage.clock.advance(6_000)
    return stage.live(name)


def chatty(request: ModelRequest) -> ModelAnswer | ModelFailure:
    return ModelAnswer(f"answer {request.turn} " + "x" * 300, (), "stop")


# ---------------------------------------------------------------- J8


def test_j08_the_floor_is_the_least_base_of_the_runs_that_go_on() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100)
    base = stage.journal("r1")[0].offset
    for n in range(2, 6):
        stage.run(f"r{n}")
    stage.spin(process, ms=100, rounds=8)
    pointer = stage.pointer()
    assert pointer is not None
    assert pointer.floor == base
    assert pointer.effects == pointer.end == len(list(stage.cluster.log(JOURNAL)))
    stage.cancel("r1")
    stage.spin(process, ms=100, rounds=8)
    assert stage.pointer().floor == stage.pointer().end == pointer.end + 1  # type: ignore[union-attr]


def test_j08_an_unacknowledged_effect_holds_the_floor() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.cluster.hold(TOPICS.outcomes)
    stage.run("r1")
    stage.spin(process, ms=100, rounds=8)
    first = stage.journal("r1")[0].offset
    for n in range(2, 6):
        stage.run(f"r{n}")
    stage.spin(process, ms=100, rounds=8)
    pointer = stage.pointer()
    assert pointer is not None
    assert (pointer.floor, pointer.effects) == (first, first)
    stage.cluster.release()
    stage.spin(process, ms=100, rounds=8)
    assert stage.pointer().effects == stage.pointer().end  # type: ignore[union-attr]


def test_j08_what_a_restore_has_still_to_send_holds_the_floor_while_runs_are_loaded() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.cluster.hold(TOPICS.outcomes)
    for n in range(4):
        stage.run(f"r{n}", agent="talk")
    stage.spin(process, ms=100, rounds=8)
    mark = stage.journal("r0")[0].offset
    process.crash()
    stage.cluster.release()
    stage.clock.advance(6_000)
    second = stage.start("loop-1")
    stage.until(second, lambda: bool(second.service.owners) and second.service.owners[0].table is not None)
    stage.table(second).memory._recent.clear()  # every run has to be read again
    second.job()
    stage.spin(second, ms=100, rounds=6, jobs=False)
    assert stage.stage_of(second) == "live"
    assert stage.pointer().effects <= mark  # type: ignore[union-attr]
    third = takeover(stage, second, "loop-2")
    stage.spin(third, ms=100, rounds=6)
    assert len({outcome.run_id for outcome in stage.outcomes()}) == 4


def test_j08_the_pointer_does_not_run_ahead_of_a_gap() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.cluster.hold(TOPICS.journal)
    stage.run("r1", agent="talk")
    stage.spin(process, rounds=2)
    stage.append(b"void", stage.fences()[0].header._replace(kind="step", fence=b"z" * 16, step=0), b"x")
    stage.move("land")
    stage.move("ack")
    stage.spin(process, rounds=4, ms=100, jobs=False)
    table = stage.table(process)
    assert table._ownership.unsure
    assert stage.pointer().floor < table._ownership.expected - 1  # type: ignore[union-attr]
    stage.cluster.release()
    second = takeover(stage, process)
    stage.spin(second, rounds=6, ms=100)
    assert [dict(record.headers)["step"] for record in stage.cluster_steps("r1")] == [b"0", b"1"], "one step 0 only"
    assert stage.state(second, "r1").phase == "input"  # type: ignore[union-attr]


def test_j08_a_run_is_snapshotted_when_its_steps_outgrow_four_times_its_base() -> None:
    stage = Stage(chatty, snapshot_bytes=100)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100)
    for _ in range(20):
        stage.input("r1", "y" * 200)
        stage.spin(process, ms=100)
        stage.resume("r1")
        stage.spin(process, ms=100)
    kinds = [entry.header.kind for entry in stage.journal("r1")]
    assert 1 <= kinds.count("snapshot") <= 6
    trail = stage.table(process).slots["r1"].trail
    assert trail is not None
    assert trail.since_bytes <= 4 * trail.base_bytes + 2_000
    second = takeover(stage, process)
    stage.input("r1")
    stage.spin(second, ms=100)
    assert stage.table(second).slots["r1"].problem == ""


def test_j08_the_floor_moves_beside_a_run_that_waits_for_ever() -> None:
    stage = Stage(answers, floor_bytes=4_000, park_after_ms=600)
    process = stage.live()
    stage.run("waits", agent="talk")
    stage.spin(process, ms=100)
    for n in range(60):
        stage.run(f"r{n}")
        stage.spin(process, ms=100)
    pointer = stage.pointer()
    assert pointer is not None
    assert pointer.floor > stage.journal("waits")[0].offset
    behind = sum(len(entry.raw.value or b"") for entry in stage.journal() if entry.offset >= pointer.floor)
    assert behind < 12_000
    second = takeover(stage, process)
    stage.input("waits")
    stage.spin(second, ms=100, rounds=8)
    assert stage.kinds("waits")[-1] == "input_awaited"


def test_j08_a_large_state_is_in_the_blob_store_before_the_record_that_names_it() -> None:
    stage = Stage(chatty, snapshot_bytes=100, blob_bytes=1_000)
    process = stage.live()
    stage.run("r1", agent="talk")
    for _ in range(12):
        stage.input("r1", "y" * 600)
        stage.spin(process, ms=100)
    snapshots = [entry.record.snapshot for entry in stage.journal("r1") if entry.record.snapshot]
    assert snapshots
    assert all(s.state is None and s.blob in stage.blobs.blobs for s in snapshots)
    second = takeover(stage, process)
    stage.input("r1")
    stage.spin(second, ms=100)
    assert stage.state(second, "r1").run_id == "r1"  # type: ignore[union-attr]


def test_j08_a_blob_store_that_is_full_costs_the_snapshot_and_not_the_run() -> None:
    class Full:
        def put(self, data: bytes) -> str:
            raise OSError("no space left")

    stage = Stage(chatty, snapshot_bytes=100, blob_bytes=1_000)
    process = stage.live()
    process.shell.blobs = Full()  # type: ignore[assignment]
    stage.run("r1", agent="talk")
    for _ in range(12):
        stage.input("r1", "y" * 600)
        stage.spin(process, ms=100)
    assert "snapshot" not in [entry.header.kind for entry in stage.journal("r1")]
    assert stage.stage_of(process) == "live"


# ---------------------------------------------------------------- J9


def test_j09_every_commit_carries_the_pointer() -> None:
    stage = Stage(one_call)
    process = stage.live()
    seen = 0
    for n in range(12):
        stage.run(f"r{n}")
        stage.spin(process, ms=60)
        for request in stage.requests()[seen:]:
            stage.answer(request)
            seen += 1
        position = stage.cluster.group(GROUP).positions.get(COMMANDS)
        assert position is not None
        assert Pointer.decode(position.metadata) is not None


def test_j09_a_restore_reads_from_the_floor_and_not_what_lies_before() -> None:
    stage = Stage(answers)
    process = stage.live()
    for n in range(30):
        stage.run(f"r{n}")
        stage.spin(process, ms=50)
    stage.run("open", agent="talk")
    stage.spin(process, ms=100, rounds=6)
    floor = stage.pointer().floor  # type: ignore[union-attr]
    assert floor > 30
    process.crash()
    stage.clock.advance(6_000)
    second = stage.start("loop-1")
    read: list[int] = []
    reader, real = second.shell.clients.reader, second.shell.clients.reader.read

    def spy(partition: Partition, start: int, end: int, **named: float) -> object:
        read.append(start)
        return real(partition, start, end, **named)

    reader.read = spy  # type: ignore[method-assign, assignment]
    stage.until(second, lambda: stage.stage_of(second) == "live")
    assert read == [floor]
    assert list(stage.table(second).slots) == ["open"]


def test_j09_the_token_in_the_pointer_is_the_one_in_force_at_the_floor() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100)
    token = stage.journal("r1")[0].header.fence
    second = takeover(stage, process)
    stage.run("r2", agent="talk")
    stage.spin(second, ms=100, rounds=6)
    assert stage.pointer().token == token  # type: ignore[union-attr]
    third = takeover(stage, second, "loop-2")
    assert set(stage.table(third).slots) == {"r1", "r2"}


def test_j09_effects_that_never_left_are_sent_again_and_requests_only_where_unanswered() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.cluster.hold(*EFFECTS)
    for n in range(3):
        stage.run(f"r{n}")
    stage.spin(process, rounds=8, ms=100)
    assert not stage.requests()
    process.crash()
    for move in [m for m in stage.cluster.choices(faults=True) if m.kind == "vanish"]:
        while move in stage.cluster.choices(faults=True):
            stage.cluster.do(move)
    stage.cluster.release()
    stage.clock.advance(500)
    second = stage.live("loop-0")
    stage.spin(second, ms=100, rounds=6)
    assert sorted(request.run_id for request in stage.requests()) == ["r0", "r1", "r2"]
    assert {outcome.outcome for outcome in stage.outcomes()} == {"accepted"}
    for request in stage.requests():
        stage.answer(request)
    stage.spin(second, ms=100, rounds=8)
    before = len(stage.requests())
    third = takeover(stage, second)
    stage.spin(third, ms=100, rounds=8)
    assert len(stage.requests()) == before, "answered ones are not asked for again"


def test_j09_effects_of_steps_that_a_snapshot_overtook_are_sent_again() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100, rounds=6)
    stage.cluster.hold(TOPICS.ledger)
    stage.answer(stage.requests()[0])
    stage.spin(process, ms=100, rounds=6)
    settled = stage.journal("r1")[-2].offset
    stage.table(process).memory.snapshot(stage.table(process).slots["r1"])
    stage.spin(process, ms=100, rounds=6)
    assert stage.journal("r1")[-1].header.kind == "snapshot"
    assert stage.pointer().floor <= settled  # type: ignore[union-attr]
    process.crash()
    for move in [m for m in stage.cluster.choices(faults=True) if m.kind == "vanish"]:
        stage.cluster.do(move)
    stage.cluster.release()
    stage.clock.advance(6_000)
    second = stage.live("loop-1")
    stage.spin(second, ms=100, rounds=6)
    assert len(list(stage.cluster.log(Partition(TOPICS.ledger, 0)))) == 1
    assert stage.pointer().effects == stage.pointer().end  # type: ignore[union-attr]


def test_j09_without_offsets_the_last_fence_tells_positions_and_epoch() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    second = takeover(stage, process)  # its fence names position 1
    stage.run("r2")
    stage.spin(second, ms=100, rounds=6)
    second.crash()
    stage.cluster.forget(GROUP)
    stage.clock.advance(6_000)
    third = stage.start("loop-2")
    stage.until(third, lambda: stage.stage_of(third) == "live")
    stage.spin(third, ms=100, rounds=4)
    refs = {ref.topic: ref.offset for ref in stage.fences()[-1].record.opening.positions}  # type: ignore[union-attr]
    assert refs[TOPICS.commands] == 1
    assert stage.committed(COMMANDS) == 2
    assert {o.outcome for o in stage.outcomes() if o.run_id == "r1"} == {"accepted"}, "what lies before was not read again"


def test_j09_without_metadata_everything_is_read_and_nothing_is_lost() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    process.crash()
    stage.cluster.forget_metadata(GROUP)
    stage.clock.advance(6_000)
    second = stage.live("loop-1")
    stage.answer(stage.requests()[0])
    stage.spin(second, ms=100, rounds=6)
    assert stage.kinds("r1")[-1] == "run_succeeded"
    assert Pointer.decode(stage.cluster.group(GROUP).positions[COMMANDS].metadata) is not None


def test_j09_a_log_trimmed_while_it_is_read_is_no_cut() -> None:
    stage = Stage(answers)
    process = stage.live()
    for n in range(6):
        stage.run(f"r{n}", agent="talk")
    stage.spin(process, ms=100, rounds=6)
    looked = look(process.shell.clients, TOPICS.places, 0, process.service.owners[0].read_fence)
    stage.cluster.log(JOURNAL).drop_before(looked.pointer.floor + 2)  # type: ignore[union-attr]
    with pytest.raises(Retryable):
        restore(process.shell.clients.reader, JOURNAL, looked, looked.end - 1, b"")


# ---------------------------------------------------------------- J10


def test_j10_an_idle_run_leaves_memory_and_comes_back() -> None:
    stage = Stage(answers, park_after_ms=600)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100)
    assert stage.state(process, "r1") is not None
    stage.spin(process, ms=200, rounds=8)
    assert stage.state(process, "r1") is None
    before = len(list(stage.cluster.log(Partition(TOPICS.outcomes, 0))))
    stage.input("r1")
    stage.spin(process, ms=10, rounds=6)
    assert stage.kinds("r1")[-1] == "input_awaited"
    assert len(list(stage.cluster.log(Partition(TOPICS.outcomes, 0)))) == before + 1, "loading sends nothing again"
    assert process.shell.counters.loads == 1


def test_j10_a_run_with_effects_under_way_is_not_parked() -> None:
    stage = Stage(one_call, park_after_ms=600)
    process = stage.live()
    stage.cluster.hold("tool-requests.work")
    stage.run("r1")
    stage.spin(process, ms=200, rounds=8)
    assert stage.state(process, "r1") is not None
    stage.cluster.release()
    stage.spin(process, ms=200, rounds=8)
    assert stage.state(process, "r1") is None


def test_j10_timers_of_parked_runs_fire() -> None:
    stage = Stage(one_call, park_after_ms=600)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=200, rounds=8)
    assert stage.state(process, "r1") is None
    stage.spin(process, ms=200, rounds=15)  # the call's deadline is 3 s
    assert "timer_fired" in stage.kinds("r1")


def test_j10_loading_checks_the_hashes_of_the_chain() -> None:
    stage = Stage(answers, park_after_ms=600)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=200, rounds=8)
    log = stage.cluster.log(JOURNAL)
    at = stage.journal("r1")[0].offset
    tampered = [r._replace(value=(r.value or b"").replace(b"hello", b"hallo")) if r.offset == at else r for r in log]
    log._keep(tampered)
    told = stage.input("r1")
    stage.spin(process, ms=10, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["refused"]
    assert "hash" in stage.outcomes(told)[0].reason


# ---------------------------------------------------------------- J11


def test_j11_the_committed_offset_is_the_lowest_message_not_dealt_with() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.cluster.hold(TOPICS.dead_letters)
    stage.producer.produce(TOPICS.commands, b"garbage", key=b"x", partition=0)
    stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    assert stage.kinds("r1")[-1] == "run_succeeded"
    assert stage.committed(COMMANDS) == 0, "the dead letter is not acknowledged"
    stage.cluster.release()
    stage.spin(process, ms=100, rounds=6)
    assert stage.committed(COMMANDS) == 2


def test_j11_what_stands_in_the_runs_steps_is_ignored_when_it_comes_again() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.cluster.hold(TOPICS.dead_letters)
    stage.producer.produce(TOPICS.commands, b"garbage", key=b"x", partition=0)
    told = [stage.run("r1", agent="talk"), stage.input("r1")]
    stage.spin(process, ms=100, rounds=6)
    kinds = stage.kinds("r1")
    second = takeover(stage, process)  # everything is read again from offset 0
    stage.cluster.release()
    stage.spin(second, ms=100, rounds=6)
    assert stage.kinds("r1") == kinds
    assert stage.committed(COMMANDS) == 3
    assert {o.outcome for command_id in told for o in stage.outcomes(command_id)} == {"accepted"}


def test_j11_the_word_about_a_repetition_survives_its_owner() -> None:
    """A repetition makes no event, but its outcome may be lost with the owner that decided a later message of the run."""
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100, rounds=6)
    stage.cluster.hold(TOPICS.outcomes)
    again, later = stage.run("r1", agent="talk"), stage.input("r1")
    stage.spin(process, ms=100, rounds=6)
    process.crash()
    for move in [m for m in stage.cluster.choices(faults=True) if m.kind == "vanish"]:
        while move in stage.cluster.choices(faults=True):
            stage.cluster.do(move)
    stage.cluster.release()
    stage.clock.advance(6_000)
    second = stage.live("loop-1")
    stage.spin(second, ms=100, rounds=6)
    assert [o.outcome for o in stage.outcomes(again)] == ["duplicate"]
    assert {o.outcome for o in stage.outcomes(later)} == {"accepted"}


def test_j11_a_command_id_already_seen_is_a_duplicate() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1", agent="talk")
    told = stage.input("r1")
    stage.spin(process, ms=100, rounds=4)
    stage.input("r1", command_id=told)
    stage.spin(process, ms=100, rounds=4)
    assert [o.outcome for o in stage.outcomes(told)] == ["accepted", "duplicate"]
    assert stage.kinds("r1").count("input_received") == 1


def test_j11_a_result_already_noted_makes_nothing_happen() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1", agent="talk")
    stage.spin(process, ms=100)
    for _ in range(3):
        stage.answer(stage.requests()[0])
        stage.spin(process, ms=100)
    assert stage.kinds("r1").count("outcome_received") == 1
    assert "late_outcome_noted" not in stage.kinds("r1")
    assert process.shell.counters.repeats == 2
    assert stage.committed(RESULTS) == 3
    assert not stage.letters()


# ---------------------------------------------------------------- J12


def test_j12_a_start_for_a_run_that_exists_or_ended_makes_nothing_happen_but_an_outcome() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("r1")
    stage.run("r2", agent="talk")
    stage.spin(process, ms=100)
    told = [stage.run("r1"), stage.run("r2")]
    stage.spin(process, ms=100)
    second = takeover(stage, process)
    told += [stage.run("r1"), stage.run("r2")]
    stage.spin(second, ms=100, rounds=6)
    assert [o.outcome for command_id in told for o in stage.outcomes(command_id)] == ["duplicate"] * 4
    assert stage.kinds("r1").count("run_started") == stage.kinds("r2").count("run_started") == 1


def test_j12_a_run_is_known_from_its_end_on_although_its_summary_was_not_read_back_yet() -> None:
    stage = Stage(answers)
    process = stage.live()
    known = process.service.owners[0].known
    assert known is not None
    stage.run("r1")
    stage.spin(process, rounds=6)  # no time passes: nothing of run-state is read
    assert "r1" not in stage.table(process).slots
    told = stage.run("r1")
    stage.spin(process, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["duplicate"]
    assert stage.kinds("r1").count("run_started") == 1


def test_j12_until_known_runs_are_streamed_everything_of_unknown_runs_waits_in_order() -> None:
    stage = Stage(answers)
    process = stage.live()
    stage.run("old")
    stage.spin(process, ms=100, rounds=6)
    process.crash()
    stage.clock.advance(6_000)
    stage.run("old")
    stage.run("new", agent="talk")
    stage.input("new")
    second = stage.start("loop-1")
    reader = second.shell.clients.reader
    real, reader.poll = reader.poll, lambda *_: []  # type: ignore[method-assign]
    stage.spin(second, ms=100, rounds=20)
    assert stage.stage_of(second) == "backlog"
    assert set(stage.table(second).waiting) == {"old", "new"}
    assert not stage.journal("new")
    reader.poll = real  # type: ignore[method-assign]
    stage.spin(second, ms=100, rounds=8)
    assert stage.kinds("new")[:1] == ["run_started"]
    assert "input_received" in stage.kinds("new")
    assert stage.kinds("old").count("run_started") == 1


def test_j12_late_results_are_noted_until_no_call_can_be_answered_then_dead_letters() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    stage.cancel("r1")
    stage.spin(process, ms=100)
    request = stage.requests()[0]
    assert "r1" in stage.table(process).slots, "a call is outstanding: the run stays open for the record"
    stage.answer(request)
    stage.spin(process, ms=100)
    assert stage.kinds("r1")[-1] == "late_outcome_noted"
    assert "r1" not in stage.table(process).slots
    stage.answer(request, content="once more")
    stage.spin(process, ms=100)
    assert [letter.reason for letter in stage.letters()] == ["late"]
    assert stage.committed(RESULTS) == 2


def test_j12_a_run_is_let_go_when_its_last_call_can_be_answered_no_more() -> None:
    stage = Stage(one_call)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100)
    stage.cancel("r1")
    stage.spin(process, ms=100)
    second = takeover(stage, process)
    assert "r1" in stage.table(second).slots
    stage.spin(second, ms=1_000, rounds=70)
    assert "r1" not in stage.table(second).slots
    assert stage.pointer().floor == stage.pointer().end  # type: ignore[union-attr]


def test_j12_an_id_is_free_again_after_run_id_keep_and_its_summary_gone() -> None:
    stage = Stage(answers, journal_keep_ms=10_000, trim_every_ms=60_000)
    process = stage.live()
    stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    week = 7 * 24 * 3_600_000
    stage.spin(process, ms=200_000, rounds=week // 200_000 + 5)
    assert [r.value for r in stage.cluster.log(STATES)][-1] is None
    told = stage.run("r1")
    stage.spin(process, ms=100, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["accepted"]


def test_j12_a_command_for_nobody_is_refused_and_a_result_for_nobody_a_dead_letter() -> None:
    stage = Stage(answers)
    process = stage.live()
    told = stage.input("nobody")
    stage.spin(process, ms=100)
    assert [o.outcome for o in stage.outcomes(told)] == ["refused"]
    assert stage.committed(COMMANDS) == 1


def test_j12_known_runs_are_those_with_a_record_and_those_just_let_go() -> None:
    known = KnownRuns(end=2, start=0)
    before = known.streamed
    known.take(Received("run-state", 0, 0, b"a", b"v", tuple(state_headers(3, 9)), 0))
    known.take(Received("run-state", 0, 1, b"b", b"v", tuple(state_headers(1, None)), 0))
    known.ended(b"c")
    assert (before, known.streamed) == (False, True)
    assert all(run in known for run in ("a", "b", "c"))
    known.take(Received("run-state", 0, 2, b"a", None, (), 0))
    assert "a" not in known
