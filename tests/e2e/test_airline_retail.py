"""The main job on real Kafka: recorded conversations through a whole system, calm and with everything killed meanwhile.

Each test has a broker, loops and workers of its own, because it kills them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.airline_retail.play import Report, Script, Teller, converse, load, play
from examples.airline_retail.recording import DATA_DIR
from examples.airline_retail.stage import Plan, stage
from examples.airline_retail.world import double_effects, repeated_executions
from turnlog.client.connect import connected
from turnlog.kafka.port import Partition
from turnlog.local.supervisor import System

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "data"
SAMPLE, SAMPLE_TRUTH = DATA_DIR / "sample.jsonl", DATA_DIR / "sample_truth.jsonl"
FOUR_CANCELLATIONS = "tau-airline-gpt4o-t028-r0"
"""Four of its calls change the database again when they are executed again."""
SHORT = "tau-airline-gpt4o-t041-r0"


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[Path, Path]:
    """All 184 conversations in one file, and their truth in another."""
    files = tmp_path / "runs.jsonl", tmp_path / "truth.jsonl"
    for file, pattern in zip(files, ("tau-*.jsonl", "truth-*.jsonl"), strict=True):
        file.write_bytes(b"".join(path.read_bytes() for path in sorted(CORPUS.glob(pattern))))
    return files


def options(chaos: int | None = None) -> argparse.Namespace:
    return argparse.Namespace(play="test", concurrency=32, timeout=1200.0, chaos=chaos)


def command(system: System, *arguments: str) -> str:
    """Runs a program of ours against the system; what it printed. Fails the test if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments], env=system.environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def readers_agree(system: System) -> None:
    """Every recorded arrival is decided again as it was, and an audit that shares no code with us finds no fault."""
    command(system, "-m", "turnlog.cli.main", "verify", "--all", "--json")
    command(system, "examples/audit_journal.py", system.bootstrap)


def played(script: Script, plan: Plan, chaos: int | None = None) -> Report:
    return play(script, plan, options(chaos), Teller(len(script.recordings), quiet=True), readers_agree)


def assert_good(report: Report, script: Script) -> None:
    assert report.problems == []
    assert report.good
    assert (report.finished, report.databases_equal) == (len(script.recordings), len(script.recordings))
    assert report.results_compared == report.results_equal == script.calls
    assert (report.double_effects, report.repeated_executions, report.model_calls_repeated) == (0, 0, 0)


def test_a_sample_ends_as_recorded(tmp_path: Path) -> None:
    script = load(SAMPLE, SAMPLE_TRUTH)
    report = played(script, Plan(tmp_path, SAMPLE, SAMPLE_TRUTH))
    assert_good(report, script)
    assert (report.model_answers_lost, report.model_requests) == (0, sum(len(r.steps) for r in script.recordings))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7])
def test_a_sample_ends_as_recorded_although_everything_is_killed(tmp_path: Path, seed: int) -> None:
    script = load(SAMPLE, SAMPLE_TRUTH)
    plan = Plan(tmp_path, SAMPLE, SAMPLE_TRUTH, restart=True, model_options=("--latency", "uniform:50:400"))
    report = played(script, plan, seed)
    assert_good(report, script)
    assert report.kills


@pytest.mark.slow
def test_all_recorded_conversations(tmp_path: Path, corpus: tuple[Path, Path]) -> None:
    script = load(*corpus)
    assert (len(script.recordings), script.calls) == (184, 1346)
    assert_good(played(script, Plan(tmp_path, *corpus)), script)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_all_recorded_conversations_although_everything_is_killed(
    tmp_path: Path, corpus: tuple[Path, Path], seed: int
) -> None:
    """Two loops and two workers, so that there is somebody to take over."""
    script = load(*corpus)
    latency = ("--latency", "uniform:50:400")
    plan = Plan(tmp_path, *corpus, loops=2, workers=2, restart=True, model_options=latency)
    report = played(script, plan, seed)
    assert_good(report, script)
    assert set(report.kills) == {"broker", "loop-0", "loop-1", "worker-0", "worker-1"}


@pytest.mark.parametrize("look_up", [True, False])
def test_a_killed_worker_repeats_effects_only_without_the_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_up: bool
) -> None:
    """The worker commits once, after its first call, and not again for an hour. So after kill -9 all other calls are delivered
    again, to a process that remembers nothing."""
    monkeypatch.setenv("TURNLOG_WORKER__COMMIT_EVERY_S", "3600")
    script = load(SAMPLE, SAMPLE_TRUTH, [FOUR_CANCELLATIONS])
    plan = Plan(tmp_path, SAMPLE, SAMPLE_TRUTH, look_up=look_up)
    with stage(plan, lambda _: None) as system:
        runs, _ = converse(system, script, options(), Teller(1, quiet=True))
        assert [run.problem for run in runs] == [""]
        assert double_effects(plan.world) == 0
        results = count_results(system)
        worker = system.child("worker-0")
        worker.kill()
        worker.start()
        wait_until(lambda: count_results(system) >= results + script.calls - 1)
    assert double_effects(plan.world) == (0 if look_up else 4)
    assert repeated_executions(plan.world) == (0 if look_up else script.calls - 1)


def count_results(system: System) -> int:
    """How many results workers have ever reported."""
    cluster, _, prefix = connected(system.bootstrap, None)
    reader = cluster.reader("count")
    try:
        return sum(reader.bounds(Partition(f"{prefix}tool-results", index))[1] for index in range(4))
    finally:
        reader.close()


def wait_until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.1)


def test_the_command_says_in_its_last_line_and_exit_status_what_came_out(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    wrong_hash = json.loads(next(line for line in SAMPLE_TRUTH.read_text().splitlines() if SHORT in line)) | {
        "final_tau2_hash": "0"
    }
    truth.write_text(json.dumps(wrong_hash))
    arguments = [SAMPLE, "--truth", truth, "--only", SHORT, "--state", tmp_path / "state", "--json", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.airline_retail.play", *map(str, arguments)],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1
    assert (report["runs"], report["finished"], report["databases_equal"]) == (1, 1, 0)
    assert report["results_compared"] == report["results_equal"] == len(wrong_hash["calls"])
    assert "its database is not the true one" in done.stderr
