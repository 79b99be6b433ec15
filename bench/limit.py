"""The limit of the standard work on this broker and machine: the same hops, no work. `./dev bench limit [--json]`.

Whatever runs agents through these topics cannot be faster than this; `agent_run` runs it in alternating rounds beside the
product, so that the ratio counts whatever else the machine does. See `_hops.py` for the hops.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from bench import _hops
from bench._figures import Figures, Meter, latencies, machine, middle, progress, quiet_clients, table
from bench._installation import (
    TOOLSET,
    bootstrap_in,
    cluster_of,
    make_topics,
    own_prefix,
    remove_topics,
    state_directory,
)
from bench._remote import Remote
from turnlog.kafka.topics import topic_name
from turnlog.local.supervisor import System, stopping_on_signals

PREFIX = own_prefix("limit")


class Limit:
    """The three processes, ready to be measured. Use in a `with` block."""

    def __init__(self, bootstrap: str, broker_pid: int | None, warm_up: int) -> None:
        wires = _hops.Wires(
            bootstrap,
            topic_name(PREFIX, "commands"),
            topic_name(PREFIX, "tool-requests", TOOLSET),
            topic_name(PREFIX, "tool-results"),
            topic_name(PREFIX, "journal"),
            topic_name(PREFIX, "run-state"),
        )
        self._client = Remote("limit-client", _hops.client, wires)
        self._all = [
            self._client,
            Remote("limit-loop", _hops.loop, wires),
            Remote("limit-worker", _hops.worker, wires),
        ]
        for each in self._all:
            each.wait_ready()
        self.pids = {each.name.removeprefix("limit-"): each.pid for each in self._all}
        if broker_pid is not None:
            self.pids["broker"] = broker_pid
        self._client.ask("load", warm_up, 100)
        self._client.ask("seq", 1 + warm_up // 20)

    def seq(self, runs: int) -> Figures:
        """One run at a time."""
        return {"runs": runs, **latencies(self._client.ask("seq", runs))}

    def load(self, runs: int, in_flight: int) -> Figures:
        """Many at a time."""
        meter = Meter(self.pids)
        seconds, each = self._client.ask("load", runs, in_flight)
        return {
            "runs": runs,
            "in_flight": in_flight,
            "runs_per_s": round(runs / seconds, 1),
            "appends_per_s": round(runs * _hops.APPENDS / seconds),
            **latencies(each),
            **meter.read(runs),
        }

    def __enter__(self) -> Limit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._all:
            each.stop()


def topics_for_limit(bootstrap: str, partitions: int, *, fsync: bool) -> None:
    admin = cluster_of(bootstrap).admin()
    try:
        make_topics(admin, PREFIX, partitions, fsync=fsync)
    finally:
        admin.close()


def arguments() -> argparse.ArgumentParser:
    """What both `limit` and `agent_run` take."""
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="runs of `load` in a round (2000)")
    parser.add_argument("--seq-runs", type=int, default=200, help="runs of `seq` in a round (200)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the figures are their medians (3)")
    parser.add_argument("--in-flight", type=int, default=200, help="runs under way in `load` (200)")
    parser.add_argument("--partitions", type=int, default=4, help="partitions of the co-partitioned topics (4)")
    parser.add_argument(
        "--warm-up", type=int, default=1000, help="runs before anything counts: the broker compiles (1000)"
    )
    parser.add_argument(
        "--fsync", action="store_true", help="force every append of the journal to disk (flush.messages=1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def _system(state: Path, options: argparse.Namespace) -> System:
    def prepare(environment: Mapping[str, str]) -> None:
        topics_for_limit(bootstrap_in(environment), options.partitions, fsync=options.fsync)

    return System.start(state, prepare=prepare, port=0, progress=progress)


def _rounds(system: System, options: argparse.Namespace) -> tuple[list[Figures], list[Figures]]:
    seq, load = [], []
    broker = system.broker.pid if system.broker is not None else None
    with Limit(system.bootstrap, broker, options.warm_up) as limit:
        for number in range(options.rounds):
            progress(f"round {number + 1} of {options.rounds}")
            seq.append(limit.seq(options.seq_runs))
            load.append(limit.load(options.runs, options.in_flight))
    return seq, load


def main() -> None:
    parser = arguments()
    parser.description = __doc__
    options = parser.parse_args()
    quiet_clients()
    with stopping_on_signals(), state_directory() as state, _system(state, options) as system:
        seq, load = _rounds(system, options)
        if system.broker is None:
            remove_topics(system.bootstrap, [PREFIX])
    found = {"seq": middle(seq), "load": middle(load), "fsync": options.fsync, "machine": machine()}
    print(json.dumps(found) if options.json else "\n".join(table(found, "limit")))


if __name__ == "__main__":
    main()
