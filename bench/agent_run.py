"""What Turnlog makes of the standard work, beside the limit of the same hops: `./dev bench agent_run [--json]`.

The standard work: 5 turns and 8 calls, 13 units; turns 0 to 3 ask for two parallel calls each, turn 4 answers. The model answers
at once inside the loop, the tools do nothing in a worker; broker, loop, worker and client are processes of their own.

    seq        one run at a time
    load       many at a time; processor time and memory of all processes
    recover    runs under way, kill -9 the loop, start it again with its instance id
    takeover   the same, but another loop that was already running takes over (after the session timeout)
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from bench import _client
from bench._audit import audit, valid_steps
from bench._figures import Figures, Meter, latencies, machine, middle, progress, quiet_clients, ratio, recoveries, table
from bench._installation import (
    AGENT,
    TOOLSET,
    bootstrap_in,
    cluster_of,
    define_agents,
    journal_end,
    make_topics,
    own_prefix,
    remove_topics,
    service_environment,
    state_directory,
)
from bench._remote import Remote
from bench.limit import PREFIX as LIMIT_PREFIX
from bench.limit import Limit, arguments, topics_for_limit
from turnlog.codec import Codec
from turnlog.kafka.port import Partition
from turnlog.kafka.topics import topic_name
from turnlog.local.service import Service, ServiceSpec
from turnlog.local.supervisor import System, stopping_on_signals

PREFIX = own_prefix("bench")
UNITS = 13
PHASES = ("seq", "load", "recover", "takeover")
_DRAIN_S = 120.0
_SPREAD_S = 30.0

Action = Callable[[], None]


class Product:
    """A running Turnlog, and what is measured of it. Use in a `with` block."""

    def __init__(self, system: System, partitions: int, processes: int, warm_up: int) -> None:
        self._system = system
        self._partitions = partitions
        self._cluster = cluster_of(system.bootstrap)
        self._admin = self._cluster.admin()
        self._loads = self._kills = 0
        define_agents(self._cluster, Codec(), PREFIX, [AGENT])
        self._loops = [f"loop-{ordinal}" for ordinal in range(processes)]
        system.add(*(_loop(name, ordinal) for ordinal, name in enumerate(self._loops)), _worker())
        self._client = Remote("client", _client.client, system.bootstrap, PREFIX)
        self._client.wait_ready()
        self._client.ask("load", "warm", warm_up, 100)
        self._client.ask("seq", 1 + warm_up // 20)

    def _pids(self) -> dict[str, int]:
        pids = {service.name: service.pid for service in self._system.services}
        pids["client"] = self._client.pid
        if self._system.broker is not None:
            pids["broker"] = self._system.broker.pid
        return pids

    def seq(self, runs: int) -> Figures:
        """One run at a time."""
        before = journal_end(self._admin, PREFIX, self._partitions)
        found = latencies(self._client.ask("seq", runs))
        records = journal_end(self._admin, PREFIX, self._partitions) - before
        return {"runs": runs, **found, "journal_records_per_run": round(records / runs, 2)}

    def load(self, runs: int, in_flight: int) -> Figures:
        """Many at a time."""
        self._loads += 1
        meter, before = Meter(self._pids()), journal_end(self._admin, PREFIX, self._partitions)
        seconds, each = self._client.ask("load", f"load{self._loads}", runs, in_flight)
        records = journal_end(self._admin, PREFIX, self._partitions) - before
        return {
            "runs": runs,
            "in_flight": in_flight,
            "runs_per_s": round(runs / seconds, 1),
            "units_per_s": round(runs * UNITS / seconds),
            "journal_records_per_s": round(records / seconds),
            "journal_records_per_run": round(records / runs, 2),
            **latencies(each),
            **meter.read(runs),
        }

    def recover(self, in_flight: int) -> Figures:
        """Kill every loop process, start it again at once."""
        self._kills += 1
        loops = [self._system.child(name) for name in self._loops]

        def kill() -> None:
            for each in loops:
                each.kill()

        def restart() -> None:
            for each in loops:
                each.start(wait=False)

        return self._killed(f"recover{self._kills}", in_flight, kill, restart)

    def takeover(self, in_flight: int) -> Figures:
        """Kill one loop process; another one, of another instance, was there before and takes what it held."""
        self._system.add(_loop("loop-second", 0, "bench-second"))
        first, second = self._system.child(self._loops[0]), self._system.child("loop-second")
        _wait_for_partitions(first, second)
        return self._killed("takeover", in_flight, first.kill, lambda: None)

    def _killed(self, name: str, in_flight: int, kill: Action, then: Action) -> Figures:
        """Runs under way, something killed, the runs brought to their ends; and what the journal says of all of them."""
        requests = self._requests()
        self._client.ask("feed", name, in_flight, in_flight)
        killed = time.monotonic()
        kill()
        then()
        under_way = self._client.ask("stop_feeding")
        done, last_end, run_ids = self._client.ask("drain", _DRAIN_S)
        steps = valid_steps(self._cluster.reader("audit"), Codec(), PREFIX, self._partitions, f"{name}-")
        return {
            "in_flight": under_way,
            "seconds": round(last_end - killed, 2) if done else None,
            **audit(run_ids, steps),
            "requests_sent_again": self._requests() - requests - 8 * len(run_ids),
        }

    def _requests(self) -> int:
        topic = topic_name(PREFIX, "tool-requests", TOOLSET)
        count = self._admin.topics([topic])[topic].partitions
        return sum(end for _, end in self._admin.ends([Partition(topic, index) for index in range(count)]).values())

    def __enter__(self) -> Product:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.stop()


def _loop(name: str, ordinal: int, instance: str = "bench") -> ServiceSpec:
    arguments = ("-m", "services.loop", "--processes", "1", "--ordinal", str(ordinal))
    return ServiceSpec(name, arguments, {"TURNLOG_INSTANCE": instance})


def _worker() -> ServiceSpec:
    return ServiceSpec("worker", ("-m", "services.tool_worker", "bench._tools:tools"))


def _wait_for_partitions(*services: Service) -> None:
    """Until each of them has some and is ready."""
    until = time.monotonic() + _SPREAD_S
    while not all(_partitions_of(each) and each.readiness()[0] for each in services):
        if time.monotonic() > until:
            raise RuntimeError("the partitions were not shared within 30 s")
        time.sleep(0.2)


def _partitions_of(service: Service) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.health_port}/metrics", timeout=5) as answer:
        found = re.search(r"^\w*_partitions(?:{[^}]*})? ([0-9.]+)$", answer.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else 0


def measure(options: Namespace) -> Figures:
    """Everything that was asked for, as one object."""
    before = machine()
    with stopping_on_signals(), state_directory() as state, _system(state, options) as system:
        found = _rounds(system, options)
        if system.broker is None:
            remove_topics(system.bootstrap, [PREFIX, LIMIT_PREFIX])
    return {
        **found,
        "settings": _settings(options),
        "machine": {**machine(), "load_average_before": before["load_average"]},
    }


def _system(state: Path, options: Namespace) -> System:
    def prepare(environment: Mapping[str, str]) -> None:
        admin = cluster_of(bootstrap_in(environment)).admin()
        make_topics(admin, PREFIX, options.partitions, fsync=options.fsync)
        admin.close()
        topics_for_limit(bootstrap_in(environment), options.partitions, fsync=options.fsync)

    environment = service_environment(PREFIX, options.partitions)
    return System.start(state, prepare=prepare, env=environment, port=0, progress=progress)


def _rounds(system: System, options: Namespace) -> Figures:
    """Rounds of product and limit in turns, then what ends with a kill."""
    broker = system.broker.pid if system.broker is not None else None
    found: Figures = {}
    with Product(system, options.partitions, options.processes, options.warm_up) as product:
        repeated = [phase for phase in ("seq", "load") if phase in options.phases]
        if repeated:
            with Limit(system.bootstrap, broker, options.warm_up) as limit:
                found = _alternate(product, limit, repeated, options)
        if "recover" in options.phases:
            found["recover"] = recoveries([_after_kill(product.recover, options) for _ in range(options.rounds)])
        if "takeover" in options.phases:
            found["takeover"] = _after_kill(product.takeover, options)
    return found


def _after_kill(act: Callable[[int], Figures], options: Namespace) -> Figures:
    progress(f"{act.__name__}: {options.recover_in_flight} runs under way, kill -9")
    return act(options.recover_in_flight)


def _alternate(product: Product, limit: Limit, phases: Sequence[str], options: Namespace) -> Figures:
    ours: dict[str, list[Figures]] = {phase: [] for phase in phases}
    theirs: dict[str, list[Figures]] = {phase: [] for phase in phases}
    for number in range(options.rounds):
        for phase in phases:
            progress(f"round {number + 1} of {options.rounds}: {phase}")
            size = (options.seq_runs,) if phase == "seq" else (options.runs, options.in_flight)
            theirs[phase].append(getattr(limit, phase)(*size))
            ours[phase].append(getattr(product, phase)(*size))
    found: Figures = {phase: middle(ours[phase]) for phase in phases}
    found["limit"] = {phase: middle(theirs[phase]) for phase in phases}
    found["ratio"] = {
        f"{phase}_{figure}": ratio([each[figure] for each in ours[phase]], [each[figure] for each in theirs[phase]])
        for phase, figure in (("seq", "p50_ms"), ("load", "runs_per_s"), ("load", "cpu_s_per_run"))
        if phase in phases
    }
    return found


def _settings(options: Namespace) -> Figures:
    return {name: getattr(options, name) for name in ("partitions", "processes", "fsync", "rounds")}


def main() -> None:
    parser = arguments()
    parser.description = __doc__
    parser.add_argument("--processes", type=int, default=1, help="loop processes (1)")
    parser.add_argument("--recover-in-flight", type=int, default=500, help="runs under way at the kill (500)")
    parser.add_argument("--phases", default=",".join(PHASES), help=f"which to run ({','.join(PHASES)})")
    options = parser.parse_args()
    quiet_clients()
    options.phases = options.phases.split(",")
    found = measure(options)
    print(json.dumps(found) if options.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
