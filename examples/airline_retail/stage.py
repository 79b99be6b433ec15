"""Puts everything up that a play needs: the recorded model, then Kafka, loops and tool workers, with their settings.

The model comes first, since the loops must be told where it is, and it is never killed: it is the outside world.
"""

import contextlib
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.airline_retail.agents import PROVIDER
from examples.airline_retail.recording import DOMAINS
from examples.airline_retail.toolset import LOOK_UP_VARIABLE, WORLD_VARIABLE
from turnlog.cli.up import create_topics
from turnlog.local.last_words import last_words
from turnlog.local.ports import LOOPBACK, free_ports
from turnlog.local.process import Child
from turnlog.local.service import ServiceSpec
from turnlog.local.supervisor import System

MODEL_READY_S = 30.0
MODEL_STOP_S = 10.0
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Plan:
    """What to put up. `model_options` go to the model server (latency, faults)."""

    state_dir: Path
    runs: Path
    truth: Path | None
    loops: int = 1
    workers: int = 1
    look_up: bool = True
    restart: bool = False
    """Whether services that die unasked are started again, as a supervisor would; else their death ends the play."""
    model_options: Sequence[str] = ()

    @property
    def world(self) -> Path:
        return self.state_dir / "world.sqlite"

    @property
    def model_log(self) -> Path:
        return self.state_dir / "model-requests.jsonl"


class ModelFailed(Exception):
    """The model server did not start; the message has the end of its log."""


@contextlib.contextmanager
def stage(plan: Plan, progress: Callable[[str], None]) -> Iterator[System]:
    """The running system; everything is stopped in order when the block is left. Raises LocalError, ModelFailed."""
    plan.state_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        base_url = stack.enter_context(_model(plan))
        system = System.start(
            plan.state_dir,
            services(plan),
            prepare=create_topics,
            env=environment(plan, base_url),
            restart=plan.restart,
            progress=progress,
        )
        yield stack.enter_context(system)


def services(plan: Plan) -> list[ServiceSpec]:
    """Loops and workers, each with an identity of its own: one that was killed goes on at once when it is back."""
    toolsets = [f"examples.airline_retail.toolset:{domain}" for domain in DOMAINS]
    loops = [
        ServiceSpec(f"loop-{number}", ("-m", "services.loop", "--ordinal", str(number))) for number in range(plan.loops)
    ]
    workers = [
        ServiceSpec(
            f"worker-{number}",
            ("-m", "services.tool_worker", *toolsets),
            {"TURNLOG_WORKER__INSTANCE_ID": f"airline-retail-{number}"},
        )
        for number in range(plan.workers)
    ]
    return [*loops, *workers]


def environment(plan: Plan, base_url: str) -> dict[str, str]:
    """Settings of the services beyond the system's own."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),  # the examples are not installed
        f"TURNLOG_MODELS__{PROVIDER.upper()}__KIND": "openai",
        f"TURNLOG_MODELS__{PROVIDER.upper()}__BASE_URL": base_url,
        WORLD_VARIABLE: str(plan.world.absolute()),
        LOOK_UP_VARIABLE: "yes" if plan.look_up else "no",
    }


@contextlib.contextmanager
def _model(plan: Plan) -> Iterator[str]:
    """The model server's base URL."""
    port = free_ports(1)[0]
    log = plan.state_dir / "logs" / "model.log"
    log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "examples.airline_retail.model_server", "--port", str(port), *plan.model_options]
    command += ["--runs", str(plan.runs.absolute()), "--log", str(plan.model_log.absolute())]
    if plan.truth is not None:
        command += ["--truth", str(plan.truth.absolute())]
    child = Child.start(command, name="model", output=log, cwd=ROOT)
    try:
        _await_model(child, f"http://{LOOPBACK}:{port}/healthz", log)
        yield f"http://{LOOPBACK}:{port}/v1"
    finally:
        child.stop(MODEL_STOP_S)


def _await_model(child: Child, url: str, log: Path) -> None:
    deadline = time.monotonic() + MODEL_READY_S
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while child.alive and time.monotonic() < deadline:
        with contextlib.suppress(OSError), direct.open(url, timeout=1.0):
            return
        time.sleep(0.05)
    raise ModelFailed(f"the recorded model did not start; {log} ends with:\n{last_words(log)}")
