"""`./dev demo`: a whole Turnlog on this machine, some recorded conversations through it, and the journal of one of them.

Afterwards everything is stopped. The state stays, so that `./dev up` shows the same runs again.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from examples.airline_retail.play import Report, Script, Teller, load, play
from examples.airline_retail.recording import DATA_DIR
from examples.airline_retail.stage import ModelFailed, Plan
from turnlog.local.errors import LocalError
from turnlog.local.supervisor import Stopped, System, stopping_on_signals

LATENCY = "uniform:30:150"
"""Models think for a while; without it there would be nothing to watch."""

INTRODUCTION = """\
A whole Turnlog on this machine: a real Apache Kafka, the loop that runs agents, a worker with the tools of an airline and
of a shop, and a recorded model in place of a paid one. {runs} recorded conversations go through it: {calls} tool calls.
"""

SUMMARY = """
{finished} of {runs} conversations ended as recorded, in {seconds:.1f} s.
{results_equal} of {results_compared} tool results and {databases_equal} of {runs} databases are what the recordings say.
{mutating_calls} calls changed a database, {double_effects} of them more than once.
"""

JOURNAL = """
This is the journal of one run, the only truth about it: {run}
"""

FAREWELL = """
Everything is stopped; its state is in {state}.

  ./dev demo --chaos 7                the same while loop, worker and Kafka are killed with -9
  ./dev up                            leaves the system running; then, in another terminal:
  ./dev run turnlog runs list         these runs are still there
  ./dev run turnlog runs show {run} --journal
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 everything as recorded, 1 something is not, 3 the system could not be put up, 130 stopped."""
    options = _options(arguments)
    runs, truth = DATA_DIR / "sample.jsonl", DATA_DIR / "sample_truth.jsonl"
    script = load(runs, truth)
    tell = Teller(len(script.recordings), quiet=False)
    print(INTRODUCTION.format(runs=len(script.recordings), calls=script.calls), flush=True)
    plan = Plan(options.state, runs, truth, model_options=("--latency", LATENCY))
    shown = f"{options.play}.{_shortest(script)}"
    try:
        with stopping_on_signals():
            report = play(script, plan, options, tell, lambda system: _show_journal(system, shown))
    except (KeyboardInterrupt, Stopped):
        tell.stopped("demo")
        return 130
    except (LocalError, ModelFailed) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 3
    _conclude(report, options.state, shown)
    return 0 if report.good else 1


def _shortest(script: Script) -> str:
    """The run to show: the one whose journal fits a screen best, but with tools in it."""
    with_tools = [recording for recording in script.recordings if any(recording.calls())]
    return min(with_tools, key=lambda recording: len(recording.steps)).id


def _show_journal(system: System, run: str) -> None:
    """By the command that everybody uses, so that the demo shows what one would see oneself."""
    print(JOURNAL.format(run=run), flush=True)
    command = [sys.executable, "-m", "turnlog.cli.main", "runs", "show", run, "--journal"]
    subprocess.run(command, env=system.environment, check=False)


def _conclude(report: Report, state: Path, run: str) -> None:
    print(SUMMARY.format(**vars(report)))
    for problem in report.problems:
        print(f"  {problem}")
    print(FAREWELL.format(state=state, run=run))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--state", type=Path, default=Path(".turnlog"), help="state directory (default: %(default)s)")
    parser.add_argument("--chaos", type=int, metavar="SEED", help="kill -9 loop, worker and broker meanwhile")
    options = parser.parse_args(arguments)
    # What `play` wants to know besides. The play's id makes the runs of each demo new ones.
    options.play, options.concurrency, options.timeout = f"demo{int(time.time()):x}", 8, 300.0
    return options


if __name__ == "__main__":
    sys.exit(main())
