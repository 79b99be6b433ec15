"""Plays recorded conversations through real Kafka and says whether everything came out as recorded.

./dev play RUNS.jsonl --truth TRUTH.jsonl [--chaos SEED] [--json]
"""

import argparse
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from examples.airline_retail.agents import agents_for, publish
from examples.airline_retail.chaos import Chaos
from examples.airline_retail.driver import Driver, Played
from examples.airline_retail.judge import compare, count_requests, effect_counts, read_journal
from examples.airline_retail.oracle import derive_truths
from examples.airline_retail.recording import (
    DATA_DIR,
    BadRecording,
    Recording,
    Truth,
    load_recordings,
    load_truths,
)
from examples.airline_retail.stage import ModelFailed, Plan, stage
from examples.airline_retail.world import World
from turnlog.client import Client
from turnlog.client.connect import connected
from turnlog.local.errors import LocalError
from turnlog.local.supervisor import Stopped, System, stopping_on_signals
from turnlog.settings import Settings

PROBLEMS_SHOWN = 20
CHAOS_LATENCY = "uniform:20:200"
"""Without some thinking time a handful of runs would be over before anything is killed."""


@dataclass
class Report:
    """What a play came to. It is `good` only if every run ended as recorded and everything is equal and happened once."""

    play: str
    runs: int
    finished: int = 0
    results_compared: int = 0
    results_equal: int = 0
    databases_equal: int = 0
    mutating_calls: int = 0
    double_effects: int = 0
    repeated_executions: int = 0
    model_requests: int = 0
    model_calls_repeated: int = 0
    model_answers_lost: int = 0
    model_requests_refused: int = 0
    broken_chains: int = 0
    truth: str = "file"
    seconds: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    unasked_restarts: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        whole = self.finished == self.databases_equal == self.runs and self.results_equal == self.results_compared
        once = not (self.double_effects or self.model_calls_repeated or self.model_requests_refused)
        return whole and once and not self.broken_chains and not self.problems


@dataclass(frozen=True)
class Script:
    """What is to be played, and its truth."""

    recordings: list[Recording]
    truths: Mapping[str, Truth]
    derived: bool

    @property
    def calls(self) -> int:
        return sum(len(self.truths[recording.id].calls) for recording in self.recordings)


def load(runs: Path, truth: Path | None, only: Sequence[str] = ()) -> Script:
    """Reads the files and checks that they belong together. Without a truth file the tools tell the truth, executed directly.

    Raises BadRecording, OSError.
    """
    recordings = load_recordings(runs)
    if missing := [name for name in only if name not in recordings]:
        raise BadRecording(f"{runs} has no recording {', '.join(missing)}")
    chosen = [recording for recording in recordings.values() if not only or recording.id in only]
    truths = load_truths(truth) if truth is not None else derive_truths(chosen)
    for recording in chosen:
        wanted = [call.name for _, _, call in recording.calls()]
        if recording.id not in truths or [call.name for call in truths[recording.id].calls] != wanted:
            raise BadRecording(f"{truth} does not tell the truth of the calls of {recording.id}")
    return Script(chosen, truths, truth is None)


def play(
    script: Script,
    plan: Plan,
    options: argparse.Namespace,
    tell: "Teller",
    afterwards: Callable[[System], None] = lambda _: None,
) -> Report:
    """Puts the system up, plays everything, compares, and takes the system down. `afterwards` is called before it goes down.

    Raises LocalError, ModelFailed.
    """
    report = Report(options.play, len(script.recordings), truth="derived" if script.derived else "file")
    with stage(plan, tell.line) as system:
        began = time.monotonic()
        played, chaos = converse(system, script, options, tell)
        report.seconds = round(time.monotonic() - began, 3)
        report.finished = sum(not one.problem for one in played)
        report.problems = [f"{one.run_id}: {one.problem}" for one in played if one.problem]
        if chaos is not None:
            report.kills, report.unasked_restarts = dict(chaos.kills), dict(chaos.unasked)
            if chaos.failure is not None:
                report.problems.append(f"chaos ended early: {chaos.failure}")
        _judge(report, system, script, plan)
        afterwards(system)
    return report


def converse(
    system: System, script: Script, options: argparse.Namespace, tell: "Teller"
) -> tuple[list[Played], Chaos | None]:
    """Publishes the agents and plays everything against a running system, with chaos if the options say so."""
    settings = Settings()
    cluster, codec, prefix = connected(system.bootstrap, settings)
    publish(agents_for(script.recordings), cluster, codec, prefix)
    with Client(cluster, codec, prefix, name="airline-retail") as client:
        driver = Driver(
            client,
            options.play,
            concurrency=options.concurrency,
            timeout_s=options.timeout,
            progress=tell.played,
            check=system.check,
        )
        if options.chaos is None:
            return driver.play(script.recordings), None
        with Chaos(system, options.chaos, tell.line) as chaos:
            played = driver.play(script.recordings)
        return played, chaos


def _judge(report: Report, system: System, script: Script, plan: Plan) -> None:
    with Client.connect(system.bootstrap) as client:
        recorded = read_journal(client.journal(), report.play)
    world = World(plan.world)
    try:
        verdicts = compare(world, recorded, script.recordings, script.truths, report.play)
    finally:
        world.close()
    asked = count_requests(plan.model_log, report.play, recorded)
    report.results_compared, report.results_equal = verdicts.results_compared, verdicts.results_equal
    report.databases_equal, report.broken_chains = verdicts.databases_equal, len(recorded.broken)
    report.model_requests, report.model_calls_repeated = asked.requests, asked.repeated
    report.model_answers_lost, report.model_requests_refused = asked.lost, asked.refused
    for name, count in effect_counts(plan.world, report.play).items():
        setattr(report, name, count)
    report.problems += verdicts.problems


class Teller:
    """Live progress on stderr: one line that is written over on a terminal, else a line now and then."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._done = 0
        self._failed = 0
        self._told_at = 0.0
        self._terminal = sys.stderr.isatty()

    def line(self, text: str) -> None:
        if not self._quiet:
            self._write(f"{text}\n")

    def stopped(self, program: str) -> None:
        """The last line after Ctrl-C. Conversations that it broke off count as not played."""
        failed = f" ({self._failed} of them not as recorded)" if self._failed else ""
        self._write(f"{program}: stopped after {self._done} of {self._total} conversations{failed}\n")

    def played(self, one: Played) -> None:
        self._done += 1
        self._failed += bool(one.problem)
        if self._quiet or (not self._terminal and time.monotonic() - self._told_at < 5 and self._done < self._total):
            return
        self._told_at = time.monotonic()
        failed = f", {self._failed} not as recorded" if self._failed else ""
        end = "\n" if not self._terminal or self._done == self._total else ""
        self._write(f"{self._done}/{self._total} conversations{failed}{end}")

    def _write(self, text: str) -> None:
        start = "\r\033[K" if self._terminal else ""
        print(f"{start}{text}", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all finished and equal, 1 something is not, 2 wrong arguments, 3 the system could not be put up."""
    options = _parser().parse_args(arguments)
    try:
        if options.runs is None:
            options.runs, options.truth = DATA_DIR / "sample.jsonl", options.truth or DATA_DIR / "sample_truth.jsonl"
        script = load(options.runs, options.truth, options.only)
    except (BadRecording, OSError) as error:
        print(f"play: {error}", file=sys.stderr)
        return 2
    tell = Teller(len(script.recordings), options.quiet)
    _log_to(options.state / "logs" / "play.log")
    try:
        with stopping_on_signals():
            report = play(script, _plan(options), options, tell)
    except (KeyboardInterrupt, Stopped):
        tell.stopped("play")
        return 130
    except (LocalError, ModelFailed) as error:
        print(f"play: {error}", file=sys.stderr)
        return 3
    except Exception:  # noqa: BLE001 - whatever it is, a script that reads the last line must see a failure
        traceback.print_exc()
        return 3
    _show(report, options.json)
    return 0 if report.good else 1


def _log_to(path: Path) -> None:
    """What the client's libraries say goes to a file: the terminal is for progress."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _plan(options: argparse.Namespace) -> Plan:
    latency = options.latency or (CHAOS_LATENCY if options.chaos is not None else "0")
    return Plan(
        options.state,
        options.runs,
        options.truth,
        loops=options.loops,
        workers=options.workers,
        look_up=not options.no_look_up,
        restart=options.chaos is not None,
        model_options=("--latency", latency, *options.model_option),
    )


def _show(report: Report, as_json: bool) -> None:
    shown: dict[str, Any] = asdict(report) | {"good": report.good}
    for problem in report.problems[:PROBLEMS_SHOWN]:
        print(problem, file=sys.stderr)
    if len(report.problems) > PROBLEMS_SHOWN:
        print(f"... and {len(report.problems) - PROBLEMS_SHOWN} more", file=sys.stderr)
    if as_json:
        print(json.dumps(shown | {"problems": report.problems[:PROBLEMS_SHOWN]}))
        return
    for name, value in shown.items():
        if name != "problems":
            print(f"{name:24} {value}")
    print("everything is as recorded" if report.good else f"NOT as recorded ({len(report.problems)} problems)")


def _play_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", text):
        raise argparse.ArgumentTypeError("a play id has 1 to 40 of A-Z a-z 0-9 _ -")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev play",
        description=__doc__,
        epilog="Exit status: 0 all finished and equal, 1 something is not, 2 wrong arguments, 3 could not be put up.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("runs", type=Path, nargs="?", metavar="RUNS.jsonl", help="recordings (default: a sample of six)")
    add("--truth", type=Path, metavar="TRUTH.jsonl", help="what their tools must give; else executed directly")
    add("--only", action="append", default=[], metavar="ID", help="play this recording only; may be repeated")
    add("--chaos", type=int, metavar="SEED", help="kill -9 loop, worker and broker at moments drawn from the seed")
    add("--json", action="store_true", help="print one JSON object as the last line")
    add("--quiet", action="store_true", help="no progress")
    add("--state", type=Path, default=Path(".turnlog/play"), help="state directory (default: %(default)s)")
    add(
        "--play",
        type=_play_id,
        default=f"p{int(time.time()):x}{os.getpid():x}",
        metavar="ID",
        help="play id, new for each play",
    )
    add("--concurrency", type=int, default=32, help="conversations at once (default: %(default)s)")
    add("--loops", type=int, default=1, help="loop processes (default: %(default)s)")
    add("--workers", type=int, default=1, help="tool worker processes (default: %(default)s)")
    add("--timeout", type=float, default=900.0, metavar="S", help="bound on the whole play (default: %(default)s)")
    add("--latency", metavar="MS", help=f"the model's (default: 0, with chaos {CHAOS_LATENCY})")
    add("--model-option", action="append", default=[], metavar="OPTION", help="handed to the model server")
    add("--no-look-up", action="store_true", help="tools do not look into the ledger: shows double effects")
    return parser


if __name__ == "__main__":
    sys.exit(main())
