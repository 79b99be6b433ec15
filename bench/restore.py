"""What a restore reads and costs: `./dev bench restore [--json]`. A real loop on a real Kafka, one partition.

1. runs in conversation that wait for their user ("parked"), runs that finish, runs whose tool never answers ("open")
2. meanwhile and after: how the floor moves although the oldest run waits for ever (a small `floor_bytes`)
3. kill -9 the loop, start it again: what it reads of the journal (from the pointer in its committed position), how long until it is ready
4. in this process: the journal scanned from its very start, every run folded and decided again, the index of known runs streamed
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench._figures import Figures, machine, progress, quiet_clients, table
from bench._installation import (
    TOOLSET,
    bootstrap_in,
    cluster_of,
    define_agents,
    make_topics,
    own_prefix,
    remove_topics,
    service_environment,
    state_directory,
)
from services.loop.known_runs import KnownRuns
from services.loop.runs import load
from turnlog.blobs import DirectoryBlobs
from turnlog.client import Client
from turnlog.client.commands import StartRequest
from turnlog.client.watch import ended, idle
from turnlog.codec import Codec
from turnlog.core.agents import AgentSpec
from turnlog.core.records import JournalRecord, RunSummary, ToolManifest
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.fenced import PartitionFold, Pointer, Trail, Verdict
from turnlog.kafka.port import Partition, Reader, Received
from turnlog.kafka.topics import topic_name
from turnlog.local.service import ServiceSpec
from turnlog.local.supervisor import System, stopping_on_signals
from turnlog.schema_check import check_arguments

PREFIX = own_prefix("restore")
JOURNAL, COMMANDS, STATE = (topic_name(PREFIX, name) for name in ("journal", "commands", "run-state"))
GROUP = f"{PREFIX}loop"
NEVER_ANSWERED = "call never_answered {}"
"""What the scripted model `echo` makes a call of; no worker serves its toolset."""
AGENTS = [
    AgentSpec("parked", "1", "Talk.", "scripted/echo", conversation=True),
    AgentSpec("finished", "1", "Answer.", "scripted/echo"),
    AgentSpec("open", "1", "Call.", "scripted/echo", tools=(f"{TOOLSET}/*",)),
]
LONG_TEXT = "word " * 200
"""Input of the runs that finish: with its answer such a run has about the bytes of the standard work."""
FLOOR_BYTES, PARK_AFTER_S = 256 * 1024, 1.2
_STUCK_S = 600.0
_SETTLE_S = 300.0


class Cut(NamedTuple):
    """The journal and the pointer at a moment: a restore would read from `floor` to `end`."""

    floor: int
    end: int
    token: bytes | None
    """The fence in force at the floor."""


class Clock:
    """Time on the wall and of this process's processors: on a busy machine only the second says what work costs."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self.seconds = self.cpu_s = 0.0

    def stop(self) -> Clock:
        self.seconds, self.cpu_s = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return self

    def read(self, what: str, count: int) -> Figures:
        """Figures for so many of `what`."""
        if not self.seconds:
            self.stop()
        return {
            f"{what}s": count,
            "seconds": round(self.seconds, 3),
            f"{what}s_per_s": round(count / self.seconds),
            f"cpu_us_per_{what}": round(self.cpu_s / max(1, count) * 1e6, 1),
        }


class Installation:
    """The loop and its client, with one partition."""

    def __init__(self, system: System) -> None:
        self.cluster = cluster_of(system.bootstrap)
        self.admin = self.cluster.admin()
        self.codec = Codec()
        define_agents(self.cluster, self.codec, PREFIX, AGENTS)
        self._announce()
        self.system = system
        system.add(ServiceSpec("loop", ("-m", "services.loop", "--processes", "1")))
        self.client = Client(self.cluster, self.codec, PREFIX, name="bench-client")

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def _announce(self) -> None:
        """A tool that no worker serves."""
        topic = topic_name(PREFIX, "tool-requests", TOOLSET)
        schema, hour_ms = '{"type":"object"}', 3_600_000
        manifest = ToolManifest(TOOLSET, "never_answered", "1", topic, "", schema, False, False, True, hour_ms, 1, 200)
        producer = self.cluster.producer("bench-manifest")
        key = f"{TOOLSET}/never_answered".encode()
        producer.produce(topic_name(PREFIX, "tool-manifests"), self.codec.encode(manifest), key=key)
        producer.flush(10.0)
        producer.close()

    def start(self, agent: str, runs: int, text: str = "go") -> None:
        """So many runs, and wait until each is where it stays: over, waiting for its user, or for its tool."""
        if not runs:
            return
        progress(f"{runs} runs of agent {agent!r}")
        settled = threading.Semaphore(0)
        seen: set[str] = set()

        def take(summary: RunSummary) -> None:
            stays = ended(summary) or idle(summary) or summary.waits_for == "tools"
            if summary.agent == agent and stays and summary.run_id not in seen:
                seen.add(summary.run_id)
                settled.release()

        self.client.on_update(take)
        self.client.submit_many([StartRequest(agent, text, f"{agent}-{number}") for number in range(runs)])
        for _ in range(runs):
            if not settled.acquire(timeout=_STUCK_S):
                raise RuntimeError(f"only {len(seen)} of {runs} runs of agent {agent!r} got anywhere")

    def cut(self) -> Cut:
        """Where a restore would begin now, and where it would end."""
        partition = Partition(COMMANDS, 0)
        position = self.admin.group_positions(GROUP, [partition])[partition]
        pointer = Pointer.decode(position.metadata) if position is not None else None
        end = self.admin.ends([Partition(JOURNAL, 0)])[Partition(JOURNAL, 0)][1]
        return Cut(0, end, None) if pointer is None else Cut(pointer.floor, end, pointer.token)

    def settled(self) -> Cut:
        """The cut once it moves no more: snapshots are taken a few at a time."""
        until, last, same = time.monotonic() + _SETTLE_S, self.cut(), 0
        while same < 6 and time.monotonic() < until:
            time.sleep(0.5)
            now = self.cut()
            same, last = (same + 1 if now == last else 0), now
        return last


class FloorWatch:
    """Samples of the cut while something goes on. Use in a `with` block."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._over = threading.Event()
        self.samples: list[Cut] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(0.5):
            self.samples.append(self._installation.cut())

    def __enter__(self) -> FloorWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def restart(installation: Installation, cut: Cut) -> Figures:
    """Kill the loop, start it again, wait until its partition is live (by its log: health is ready before the group has answered)."""
    loop = installation.system.child("loop")
    progress("kill -9 the loop, start it again")
    before = len(_lives(loop.log_path))
    began = time.monotonic()
    loop.kill()
    loop.start(wait=False)
    while len(lives := _lives(loop.log_path)) == before:
        if time.monotonic() - began > _STUCK_S:
            raise RuntimeError("the loop did not come back")
        time.sleep(0.02)
    ready_s = time.monotonic() - began
    open_runs, restored_s = lives[-1]
    return {
        "journal_records": cut.end,
        "floor": cut.floor,
        "records_read": cut.end - cut.floor + 1,  # and the new fence
        "share_read": round((cut.end - cut.floor + 1) / (cut.end + 1), 4),
        "open_runs": int(open_runs),
        "restored_s": float(restored_s),
        "kill_to_live_s": round(ready_s, 2),
    }


def _lives(log: Path) -> list[tuple[str, str]]:
    """What the loop has said of each opening of the partition: open runs, seconds."""
    return re.findall(r"is live: (\d+) open runs, restored in ([0-9.]+) s", log.read_text())


def scanned(reader: Reader, start: int, token: bytes | None) -> Figures:
    """Read and judge from `start` to the end: headers and hashes only, as a restore does."""
    partition = Partition(JOURNAL, 0)
    _, end = reader.bounds(partition)
    fold = PartitionFold(token)
    clock = Clock()
    for batch in reader.read(partition, start, end, timeout_s=_STUCK_S):
        for record in batch:
            fold.take(record)
    return {"open_runs": len(fold.trails), **clock.read("record", end - start)}


def folded(reader: Reader, codec: Codec, blobs: Path) -> Figures:
    """Every run of the journal loaded as an owner does when something arrives for it: read, hashes checked, decided again."""
    runs = _chains(reader)
    store = DirectoryBlobs(blobs)
    clock = Clock()
    for run_id, (trail, records) in runs.items():
        load(run_id, trail, records, codec, check_arguments, store, 0, 0)
    timed = clock.stop()
    steps = sum(len(records) for _, records in runs.values())
    decoded = (codec.decode(record.value, JournalRecord) for _, records in runs.values() for record in records)
    events = sum(len(record.events) for record in decoded)
    return {"runs": len(runs), "steps": steps, **timed.read("event", events)}


def _chains(reader: Reader) -> dict[str, tuple[Trail, Sequence[Received]]]:
    """Each run's trail and its records from the base on."""
    partition = Partition(JOURNAL, 0)
    first, end = reader.bounds(partition)
    fold = PartitionFold(keep_ended_from=0)
    kept: dict[int, Received] = {}
    for batch in reader.read(partition, first, end, timeout_s=_STUCK_S):
        for record in batch:
            if fold.take(record) in (Verdict.STEP, Verdict.SNAPSHOT):
                kept[record.offset] = record
    return {key: (trail, [kept[offset] for offset in trail.offsets]) for key, trail in fold.trails.items()}


def known_runs(reader: Reader) -> Figures:
    """The index of ended runs, streamed from `run-state`."""
    partition = Partition(STATE, 0)
    first, end = reader.bounds(partition)
    known = KnownRuns(partition, first, end)
    clock = Clock()
    for batch in reader.read(partition, first, end, timeout_s=_STUCK_S):
        for record in batch:
            known.take(record)
    timed = clock.stop()
    per_id = timed.seconds / max(1, len(known))
    return {
        "run_ids": len(known),
        "s_per_10000_run_ids": round(per_id * 10_000, 3),
        **timed.read("record", end - first),
    }


def floor_figures(samples: Sequence[Cut]) -> Figures:
    """How the floor moved: the oldest run never ends, and yet it must not stay where that run began."""
    floors = [sample.floor for sample in samples]
    moves = sum(after > before for before, after in pairwise(floors))
    shown = samples[:: max(1, len(samples) // 12)]
    return {
        "moves": moves,
        "first": floors[0],
        "last": floors[-1],
        "farthest_behind_records": max(sample.end - sample.floor for sample in samples),
        "floor_and_end_over_time": " ".join(f"{sample.floor}/{sample.end}" for sample in shown),
    }


def measure(options: argparse.Namespace) -> Figures:
    """All of it."""
    with (
        stopping_on_signals(),
        state_directory() as state,
        _system(state) as system,
        Installation(system) as installation,
    ):
        installation.start("parked", options.parked)
        with FloorWatch(installation) as watch:
            installation.start("finished", options.finished, LONG_TEXT)
            installation.start("open", options.open, NEVER_ANSWERED)
            began = time.monotonic()
            cut = installation.settled()
        floor = {**floor_figures(watch.samples), "settled_after_s": round(time.monotonic() - began, 1)}
        found: Figures = {"floor": floor, "restart": restart(installation, cut)}
        found.update(_in_process(installation.cluster, installation.codec, state, cut))
        if system.broker is None:
            remove_topics(system.bootstrap, [PREFIX])
    sizes = {name: getattr(options, name) for name in ("finished", "parked", "open")}
    return {**found, "settings": {**sizes, "floor_bytes": FLOOR_BYTES}, "machine": machine()}


def _in_process(cluster: KafkaCluster, codec: Codec, state: Path, cut: Cut) -> Figures:
    reader = cluster.reader("bench-restore")
    found = {
        "scan_whole": scanned(reader, 0, None),
        "scan_from_floor": scanned(reader, cut.floor, cut.token),
        "fold": folded(reader, codec, state / "blobs"),
        "known_runs": known_runs(reader),
    }
    reader.close()
    return found


def _system(state: Path) -> System:
    def prepare(environment: Mapping[str, str]) -> None:
        admin = cluster_of(bootstrap_in(environment)).admin()
        make_topics(admin, PREFIX, 1, fsync=False)
        admin.close()

    environment = {
        **service_environment(PREFIX, 1),
        "TURNLOG_FLOOR_BYTES": str(FLOOR_BYTES),
        "TURNLOG_PARK_AFTER_S": str(PARK_AFTER_S),
    }
    return System.start(state, prepare=prepare, env=environment, port=0, progress=progress)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--finished", type=int, default=10_000, help="runs that end (10000)")
    parser.add_argument("--parked", type=int, default=1_000, help="runs that wait for their user (1000)")
    parser.add_argument("--open", type=int, default=100, help="runs that wait for a tool (100)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    quiet_clients()
    found = measure(options)
    print(json.dumps(found) if options.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
