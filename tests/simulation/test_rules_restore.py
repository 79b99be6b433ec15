"""J8 and J9, each rule by name: snapshots, the floor, restore."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulation.loop_process import GROUP, TOPICS, LoopProcess
from tests.simulation.loop_stage import COMMANDS, JOURNAL, Stage, answers, one_call
from turnlog.core.events import ModelAnswer, ModelFailure
from turnlog.core.transcript import ModelRequest
from turnlog.kafka.fenced import Pointer
from turnlog.kafka.opening import LOOK_S, look, restore
from turnlog.kafka.port import Partition, Retryable, TopicInfo

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


def test_j09_a_look_that_nobody_answers_is_soon_given_up_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    process = stage.start()
    admin = process.shell.clients.admin
    answer, asked = admin.topics, list[float]()

    def topics(names: Sequence[str], *, timeout_s: float) -> dict[str, TopicInfo]:
        asked.append(timeout_s)
        if len(asked) == 1:
            raise Retryable("the cluster at nowhere:1 does not answer", "_TIMED_OUT")
        return answer(names)

    monkeypatch.setattr(admin, "topics", topics)
    stage.until(process, lambda: "nowhere:1" in (process.service.unready or ""))
    stage.until(process, lambda: stage.stage_of(process) == "live")
    assert asked == [LOOK_S] * 2


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


def test_j09_effects_of_a_repeated_step_are_sent_again() -> None:
    """The writer marks them by the last place of the step, a reader meets the first."""
    stage = Stage(answers)
    process = stage.live()
    stage.run("low", agent="talk")  # keeps the floor below
    stage.spin(process, ms=100, rounds=6)
    stage.cluster.hold(TOPICS.journal, TOPICS.outcomes)
    told = stage.run("r1", agent="talk")
    stage.spin(process, ms=100)
    stage.move("land")
    stage.move("repeat")
    stage.move("ack")
    stage.spin(process, ms=100, rounds=6)
    first, second = [entry.offset for entry in stage.journal("r1")]
    assert stage.pointer().effects == second > first  # type: ignore[union-attr]
    process.crash()
    for move in [m for m in stage.cluster.choices(faults=True) if m.kind == "vanish"]:
        while move in stage.cluster.choices(faults=True):
            stage.cluster.do(move)
    stage.cluster.release()
    stage.clock.advance(6_000)
    stage.spin(stage.live("loop-1"), ms=100, rounds=6)
    assert [o.outcome for o in stage.outcomes(told)] == ["accepted"]


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
    assert {o.outcome for o in stage.outcomes() if o.run_id == "r1"} == {"accepted"}, (
        "what lies before was not read again"
    )


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
