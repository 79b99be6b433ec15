"""A tiny run of the benchmarks on a real Kafka: every process starts, every figure that is promised is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.broker_fixture import SharedBroker
from tests.tidy.checkout import ROOT
from turnlog.local.supervisor import BOOTSTRAP_VARIABLE

TINY = ["--runs", "30", "--seq-runs", "3", "--rounds", "2", "--in-flight", "10", "--warm-up", "20"]


def _run(broker: SharedBroker, name: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *TINY, *arguments, "--json"],
        cwd=ROOT,
        env={**os.environ, BOOTSTRAP_VARIABLE: broker.bootstrap},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_the_standard_work_is_measured_beside_its_limit(broker: SharedBroker) -> None:
    found = _run(broker, "agent_run", "--recover-in-flight", "20", "--phases", "seq,load,recover")
    assert found["seq"]["p50_ms"] > 0
    assert found["load"]["runs_per_s"] > 0
    assert found["load"]["units_per_s"] == pytest.approx(13 * found["load"]["runs_per_s"], rel=0.1)
    assert {"loop-0", "worker", "client"} <= set(found["load"]["cpu_ms_per_run_by_process"])
    assert found["load"]["cpu_s_per_run"] > 0
    assert found["load"]["peak_mb"] > 100
    assert found["limit"]["seq"]["p50_ms"] > 0
    assert found["limit"]["load"]["runs_per_s"] > 0
    assert found["ratio"]["seq_p50_ms"] > 0
    assert found["recover"]["in_flight"] == 20
    assert found["recover"]["seconds"] > 0
    assert (found["recover"]["lost"], found["recover"]["doubled"]) == (0, 0)


@pytest.mark.slow
def test_the_limit_runs_alone(broker: SharedBroker) -> None:
    found = _run(broker, "limit", "--fsync")
    assert found["fsync"] is True
    assert found["load"]["appends_per_s"] > 0
