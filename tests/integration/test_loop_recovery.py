"""What a loop finds again: after kill -9 at any moment, after parking, from a snapshot, from the floor (docs/journal.md, J8 to J10)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.broker_fixture import SharedBroker
from tests.integration.loop_stage import PATIENCE_S, LoopProcess, Stage, until
from turnlog.client import StartRequest
from turnlog.client.watch import idle

LONG = {"TURNLOG_SESSION_TIMEOUT_MS": "60000"}
PARKS = {**LONG, "TURNLOG_PARK_AFTER_S": "0.6"}
SMALL = {**PARKS, "TURNLOG_SNAPSHOT_BYTES": "2048", "TURNLOG_FLOOR_BYTES": "65536"}


@pytest.fixture
def narrow(broker: SharedBroker, tmp_path: Path) -> Iterator[Stage]:
    """An installation of one partition."""
    with closing(Stage(broker.bootstrap, tmp_path, partitions=1)) as made:
        yield made


# ---------------------------------------------------------------- kill -9


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_and_doubles_nothing(stage: Stage) -> None:
    """50 runs in flight, killed six times. Whatever lay between a valid step and its effects is made good."""
    seed = random.randrange(10_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    loop = stage.loop(env=LONG).until_ready()
    runs: list[str] = []
    for kill in range(6):
        runs += stage.submit_work(25, f"kill{kill}")
        wait_for_a_moment(stage, loop, chance)
        loop.child.kill()
        loop = stage.loop(env=LONG)
    loop.until_ready()
    stage.until_succeeded(runs, 180)
    assert loop.metric("ownership_ends_total") == 0
    audit = stage.check(runs)
    for run_id in runs:
        run = audit.runs[run_id]
        assert (run.count("model_answered"), len(run.ledger)) == (5, 8)
        assert {request.call_key for request in stage.hands.of(run_id)} == set(run.ledger)


def wait_for_a_moment(stage: Stage, loop: LoopProcess, chance: random.Random) -> None:
    """After some more calls, or in the middle of an opening; the process may have come up just now."""
    if chance.random() < 0.3:
        until(lambda: loop.metric("partitions") > 0, "partitions are assigned")
        return
    wanted = len(stage.hands.requests) + chance.randrange(1, 100)
    until(lambda: len(stage.hands.requests) >= wanted, lambda: f"{wanted} requests: {loop.reasons()} {loop.said()}")


def test_what_a_step_caused_is_sent_again_when_it_may_not_have_left(stage: Stage) -> None:
    """Requests of every run stand in the log again after a kill, with the same keys: only they are unanswered."""
    loop = stage.loop(env=LONG).until_ready()
    stage.hands.hold()
    runs = stage.submit_work(10, "run")
    until(lambda: len(stage.hands.keys()) == 20, "all asked")
    asked = stage.hands.keys()
    loop.child.kill()
    stage.loop(env=LONG).until_ready()
    stage.hands.release()
    stage.until_succeeded(runs)
    audit = stage.check(runs)
    assert asked == {key for key in set(stage.hands.keys()) if ":t0:" in key}
    assert all(run.count("outcome_received") == 8 for run in audit.runs.values())


# ---------------------------------------------------------------- parking


@pytest.mark.slow
def test_parked_runs_come_back(stage: Stage) -> None:
    loop = stage.loop(env=PARKS).until_ready()
    stage.hands.hold()
    work = stage.submit_work(20, "work")
    doomed = stage.client.submit_many([StartRequest("tools", "call bench_a", "doomed", deadline_s=6.0)])[0]
    talk = stage.client.submit("talk", "hello", "talk")
    assert talk.wait(PATIENCE_S, idle).answer == "hello"
    until(lambda: parked(loop, lambda n: talk.ask(f"more {n}").answer), "the conversation was parked and came back")
    assert doomed.wait(PATIENCE_S).reason == "deadline"  # a timer wakes a parked run as well
    loads = loop.metric("loads_total")
    stage.hands.release()
    stage.until_succeeded(work)
    assert loop.metric("loads_total") >= loads + len(work), "they were loaded again"
    talk.input("good-bye", final=True)
    assert talk.wait(PATIENCE_S).status == "succeeded"
    stage.check([*work, "talk"])


def parked(loop: LoopProcess, say: Callable[[int], object]) -> bool:
    """Leave the run alone for a second, then say something: was it loaded for that?"""
    before = loop.metric("loads_total")
    time.sleep(1)
    say(int(before))
    return loop.metric("loads_total") > before


# ---------------------------------------------------------------- snapshots and the floor


@pytest.mark.slow
def test_a_restore_begins_at_the_floor(narrow: Stage) -> None:
    """A run that waits for ever does not hold the floor: it is snapshotted, and what lies before is read no more."""
    loop = narrow.loop(env=SMALL).until_ready()
    talk = narrow.client.submit("talk", "hello", "talk")
    talk.wait(PATIENCE_S, idle)
    first = step_zero(narrow, "talk")
    text = "x" * 20_000
    rounds = iter(range(10_000))

    def moved() -> bool:
        run_id = f"filler-{next(rounds)}"
        narrow.client.submit("echo", text, run_id).wait(PATIENCE_S)
        pointer = narrow.pointers().get(0)
        return pointer is not None and pointer.floor > first

    until(moved, "the floor is behind the first run's first step")
    assert loop.metric("snapshots_total") > 0
    loop.child.kill()
    floor = narrow.pointers()[0].floor
    again = narrow.loop(env=SMALL).until_ready()
    assert talk.ask("still there?").answer == "still there?"
    again.stop()
    assert narrow.pointers()[0].floor >= floor
    narrow.loop(env=SMALL).until_ready()
    talk.input("good-bye", final=True)
    assert talk.wait(PATIENCE_S).answer == "still there?"
    audit = narrow.check(["talk", "filler-0"])
    assert audit.counts.snapshots > 0


def test_a_large_state_goes_to_the_blob_store_and_comes_back(narrow: Stage) -> None:
    loop = narrow.loop(env=SMALL).until_ready()
    talk = narrow.client.submit("talk", "hello", "talk")
    talk.wait(PATIENCE_S, idle)
    for n in range(3):
        assert talk.ask(f"{n}" * 150_000).answer == f"{n}" * 150_000
    blobs = narrow.folder / "blobs"
    until(lambda: blobs.is_dir() and any(path.is_file() for path in blobs.rglob("*")), "a blob")
    loop.child.kill()
    narrow.loop(env=SMALL).until_ready()
    assert talk.ask("short").answer == "short"
    talk.input("good-bye", final=True)
    assert talk.wait(PATIENCE_S).answer == "short"
    audit = narrow.check(["talk"])
    assert audit.counts.snapshots > 0


def step_zero(stage: Stage, run_id: str) -> int:
    """The offset of a run's first step."""
    return next(entry.offset for entry in stage.client.journal().run(run_id) if entry.run_id == run_id)
