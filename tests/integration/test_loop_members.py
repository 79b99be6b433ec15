"""Loop processes that share an installation: stopped, killed, told to go, joined by others, started twice (docs/journal.md, J3 and J7)."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.loop.__main__ import EXIT_TAKEN
from tests.integration.loop_stage import PATIENCE_S, LoopProcess, Stage, until
from turnlog.local.ports import free_ports, is_free
from turnlog.local.process import ProcessName

LONG_SESSION_S = 90
LONG = {"TURNLOG_SESSION_TIMEOUT_MS": str(LONG_SESSION_S * 1000)}
"""Whoever waits for such a session to end does not pass: every wait here is shorter."""
SHORT = {"TURNLOG_SESSION_TIMEOUT_MS": "6000"}


def in_flight(stage: Stage, count: int, word: str) -> list[str]:
    """So many runs that each wait for their first two calls, whose answers are held back."""
    stage.hands.hold()
    before = len(stage.hands.keys())
    runs = stage.submit_work(count, word)
    until(lambda: len(stage.hands.keys()) == before + 2 * count, "every run has asked for its first calls")
    return runs


def two_loops(stage: Stage, environment: dict[str, str]) -> tuple[LoopProcess, LoopProcess]:
    """Two instances that have half of the partitions each."""
    pair = (stage.loop("a", env=environment), stage.loop("b", env=environment))
    for process in pair:
        process.until_ready().until_it_serves(2)
    return pair


def at_rest(process: LoopProcess) -> bool:
    """It serves its partitions, or has gone."""
    return not process.child.alive or (process.metric("partitions") == 2 and process.reasons() is None)


@pytest.mark.slow
def test_a_loop_that_slept_finds_its_partitions_taken_and_does_no_harm(stage: Stage) -> None:
    a, b = two_loops(stage, SHORT)
    runs = in_flight(stage, 40, "before")
    a.child.pause()
    stage.hands.release()
    stage.until_succeeded(runs)  # those of the sleeper's partitions by the other, once its session is over
    b.until_it_serves(4)
    a.child.resume()
    more = stage.submit_work(20, "meanwhile")
    until(lambda: at_rest(a), lambda: f"the woken one leaves or serves: {a.reasons()}\n{a.said()}")
    if not a.child.alive:  # fenced by its own return: its supervisor starts it again
        assert a.ended() == EXIT_TAKEN, a.said()
        a = stage.loop("a", env=SHORT).until_ready()
    b.until_it_serves(2)
    more += stage.submit_work(20, "after")
    stage.until_succeeded(more)
    stage.check(runs + more)


def test_a_killed_loop_goes_on_at_once_when_it_is_back(stage: Stage) -> None:
    a = stage.loop("a", env=LONG).until_ready().until_it_serves(4)
    runs = in_flight(stage, 20, "run")
    a.child.kill()
    stage.hands.release()
    begun = time.monotonic()
    back = stage.loop("a", env=LONG).until_ready().until_it_serves(4)
    stage.until_succeeded(runs)
    assert time.monotonic() - begun < LONG_SESSION_S / 2, "the session was waited for"
    assert back.metric("ownership_ends_total") == 0
    audit = stage.check(runs)
    assert audit.fences == 8, "each partition was opened once by either"


def test_sigterm_hands_over_without_waiting_for_the_session(stage: Stage) -> None:
    a, b = two_loops(stage, LONG)
    runs = in_flight(stage, 20, "run")
    begun = time.monotonic()
    a.stop()
    b.until_it_serves(4)
    stage.hands.release()
    stage.until_succeeded(runs)
    assert time.monotonic() - begun < LONG_SESSION_S / 2, "the session was waited for"
    b.stop()
    stage.check(runs)


def test_runs_go_on_while_another_loop_joins(stage: Stage) -> None:
    a = stage.loop("a", env=LONG).until_ready().until_it_serves(4)
    runs: list[str] = []
    rounds = itertools.count()
    b = stage.loop("b", env=LONG)

    def shared() -> bool:
        runs.extend(stage.submit_work(2, f"round{next(rounds)}"))
        return a.metric("partitions") == 2 and b.metric("partitions") == 2

    until(shared, "both have their share")
    runs += stage.submit_work(10, "last")
    stage.until_succeeded(runs)
    audit = stage.check(runs)
    openings = sorted(len(owners) for owners in audit.owners.values())
    assert openings == [1, 1, 2, 2], f"what a loop keeps in a rebalance it does not open again: {audit.owners}"
    assert a.metric("ownership_ends_total") == b.metric("ownership_ends_total") == 0


def test_of_two_processes_with_one_name_the_first_leaves(stage: Stage) -> None:
    first = stage.loop("a", env=LONG).until_ready().until_it_serves(4)
    runs = in_flight(stage, 10, "run")
    second = stage.loop("a", env=LONG)
    assert first.ended() == EXIT_TAKEN
    assert "another process runs with this instance id" in first.everything_said
    second.until_ready().until_it_serves(4)
    stage.hands.release()
    stage.until_succeeded(runs)
    stage.check(runs)
    second.stop()


def test_processes_of_one_host_share_the_partitions(stage: Stage) -> None:
    port = two_ports()
    loops = stage.loop("host", "--processes", "2", port=port)
    for nth in (0, 1):
        loops.until_it_serves(2, nth)
    runs = stage.submit_work(20, "run")
    stage.until_succeeded(runs)
    assert [loops.metric("steps_total", nth) > 0 for nth in (0, 1)] == [True, True]
    loops.stop()
    stage.check(runs)


@pytest.mark.parametrize("victim", ["a process", "their supervisor"])
def test_processes_of_one_host_share_their_fate(stage: Stage, victim: str) -> None:
    """None is left behind, and they go on where they were when they are started again."""
    port = two_ports()
    loops = stage.loop("host", "--processes", "2", port=port, env=LONG)
    for nth in (0, 1):
        loops.until_it_serves(2, nth)
    processes = children(loops.child.pid)
    assert len(processes) == 2
    runs = in_flight(stage, 10, "run")
    os.kill(processes[0] if victim == "a process" else loops.child.pid, signal.SIGKILL)
    assert loops.ended() != 0
    until(lambda: not any(ProcessName.of(pid) for pid in processes), "both processes are gone")
    again = stage.loop("host", "--processes", "2", port=port, env=LONG)
    for nth in (0, 1):
        again.until_it_serves(2, nth)
    stage.hands.release()
    stage.until_succeeded(runs)
    stage.check(runs)
    again.stop()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def two_ports() -> int:
    """The first of two free ports in a row."""
    take: Callable[[], int] = lambda: free_ports(1)[0]  # noqa: E731
    return until(lambda: next((p for p in (take(),) if p < 65_535 and is_free(p + 1)), 0), "two free ports", PATIENCE_S)
