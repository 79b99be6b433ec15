"""A whole Turnlog in one thread: loops, worker, client and a cluster that misbehaves, all moved by one seed.

    python -m tests.simulation.loop_world --seed 17          one seed again, with its log
    python -m tests.simulation.loop_world --seeds 0:5000     many of them

While it is rough (`World.rough`), every step is something from `MOVES`: a round of a process, a job, a landing, an acknowledgement,
a crash, a freeze, a lost commit. Then it is calm: nothing goes wrong any more, everything comes to rest, and the rest is checked.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from dataclasses import dataclass
from typing import Any

from services.loop.runs import load
from services.loop.shell import Bounds
from tests.simulation.loop_actors import Client, Worker, script
from tests.simulation.loop_checks import Reference
from tests.simulation.loop_process import CODEC, GROUP, REQUESTS, TOPICS, LoopProcess
from turnlog.core.events import ModelAnswer, ModelFailure
from turnlog.core.records import ToolResult
from turnlog.core.transcript import ModelRequest
from turnlog.kafka.fenced import PartitionFold, Pointer
from turnlog.kafka.port import LogError, NotOwner, Partition, Rebalancing, Retryable
from turnlog.schema_check import check_arguments
from turnlog.testing import MemoryCluster
from turnlog.testing.invariants import Broken, check_state, hold
from turnlog.testing.scripted import Faults
from turnlog.testing.simulation import Dice, MemoryBlobs, SimClock

SESSION_MS = 4_000
EFFECTS = (TOPICS.run_state, TOPICS.ledger, TOPICS.outcomes, TOPICS.dead_letters, REQUESTS)


@dataclass(frozen=True)
class Plan:
    """How long and how rough. The defaults are for many seeds."""

    steps: int = 700
    runs: int = 7
    faults: bool = True


MOVES = [
    ("round", 34.0), ("network", 26.0), ("job", 8.0), ("worker", 9.0), ("client", 5.0), ("clock", 8.0), ("fault", 2.0), ("crash", 0.35),
    ("start", 1.2), ("freeze", 0.5), ("thaw", 2.0), ("hear", 1.5), ("drain", 0.15), ("refuse_commit", 0.5), ("forget", 0.12), ("compact", 0.3),
    ("take_id", 0.1),
]  # fmt: skip
PROFILES: dict[str, dict[str, float]] = {
    "even": {},
    "rough": {"fault": 4.0, "crash": 5.0, "freeze": 3.0, "hear": 0.5, "start": 3.0, "forget": 3.0, "take_id": 4.0},
    "slow": {"network": 0.25, "job": 0.4, "freeze": 2.0, "fault": 2.0},
    "busy": {"client": 3.0, "worker": 2.0, "clock": 0.3, "crash": 2.0},
}
"""Weights of moves are multiplied by these; a seed chooses its profile."""
CALM_MOVES = [move for move in MOVES if move[0] in ("round", "network", "job", "worker", "client", "clock", "compact")]


class World:
    """See the module."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.seed = seed
        self.plan = plan or Plan()
        self.dice = Dice(seed)
        rng = self.dice.rng
        self.clock = SimClock()
        self.partitions = rng.choice([1, 1, 2, 3])
        self.cluster = MemoryCluster(self.clock.now_ms, rng, session_timeout_ms=SESSION_MS, max_poll_interval_ms=60_000)
        self._create_topics()
        self.cluster.hold(TOPICS.journal, *(topic for topic in EFFECTS if rng.random() < 0.6))
        self.blobs = MemoryBlobs()
        self.bounds = self._bounds()
        self.latency_ms = rng.choice([0.0, 0.0, 20.0])
        self.model_faults = Faults(seed, 0.1, 0.05) if rng.random() < 0.5 else None
        self.reference = Reference(self.cluster)
        self.client = Client(self.cluster, self.dice, self.partitions, self.plan.runs)
        self.client.publish_tables()
        self.worker = Worker(self.cluster, self.clock, self.dice)
        self.processes: list[LoopProcess] = []
        self._started = 0
        factors = PROFILES[rng.choice(list(PROFILES))]
        self._moves = [(name, weight * factors.get(name, 1.0)) for name, weight in MOVES]
        self.step = 0
        for _ in range(rng.choice([1, 2, 2, 3])):
            self.start()

    def _create_topics(self) -> None:
        equal = (TOPICS.commands, TOPICS.results, TOPICS.journal, TOPICS.run_state, TOPICS.ledger)
        for topic in equal:
            self.cluster.create(topic, self.partitions)
        for topic in (TOPICS.outcomes, TOPICS.dead_letters, TOPICS.agents, TOPICS.manifests, REQUESTS):
            self.cluster.create(topic, 1)

    def _bounds(self) -> Bounds:
        rng = self.dice.rng
        return Bounds(
            snapshot_bytes=rng.choice([500, 2_000]), floor_bytes=rng.choice([2_000, 10_000]), park_after_ms=rng.choice([600, 3_000]),
            commit_every_ms=rng.choice([100, 500]), publish_every_ms=rng.choice([50, 400]), resolve_wait_ms=300,
            reopen_every_ms=rng.choice([3_000, 20_000]), journal_keep_ms=rng.choice([2_000, 20_000]), trim_every_ms=500,
            step_bytes=rng.choice([4_000, 900_000]), blob_bytes=rng.choice([1_500, 100_000]),
        )  # fmt: skip

    # ------------------------------------------------------------ processes

    def start(self, instance: str | None = None) -> LoopProcess:
        """A new process, with an instance id that is free unless one is named."""
        taken = {p.instance for p in self.processes if not p.gone}
        name = instance or next(f"loop-{i}" for i in range(10) if f"loop-{i}" not in taken)
        self._started += 1
        process = LoopProcess(
            self.cluster, self.clock, f"{name}/{self._started}", instance=name, partitions=self.partitions, script=self._script,
            blobs=self.blobs, seed=self.dice.rng.randrange(1 << 30), bounds=self.bounds, faults=self.model_faults,
            latency_ms=self.latency_ms,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def running(self) -> list[LoopProcess]:
        return [p for p in self.processes if p.runs]

    def _script(self, request: ModelRequest) -> ModelAnswer | ModelFailure:
        """The model. A question that whoever holds the partition need not ask is a fault."""
        self.reference.follow()
        run = self.reference.runs.get(request.run_id)
        asking = [
            o.table
            for p in self.running()
            for o in p.service.owners.values()
            if o.table and request.run_id in o.table.slots
        ]
        for table in asking:
            token = table.token
            slot = table.slots[request.run_id]
            if (
                run is None
                or token != self.reference.tokens.get(table.index)
                or slot.asked != (request.turn, request.attempt)
            ):
                continue
            if not slot.in_flight and not table._ownership.unsure:
                hold(request.turn not in run.answered, "I7", f"turn {request.turn} of {request.run_id} was asked again")
        return script(request)

    # ------------------------------------------------------------ rough

    def rough(self) -> None:
        """`plan.steps` moves by chance, checked after each."""
        moves = self._moves if self.plan.faults else CALM_MOVES
        while self.step < self.plan.steps:
            self.step += 1
            getattr(self, f"_{self.dice.pick(moves)}")()
            self.check()

    def check(self) -> None:
        self.reference.follow()
        if self.step % 8 == 0:
            self._check_live()

    def _check_live(self) -> None:
        """Whoever is the owner by the log believes what the log says of every run that has nothing in flight."""
        for process in self.processes:
            if process.gone:
                continue
            for owner in process.service.owners.values():
                table = owner.table
                if table is None or table.token != self.reference.tokens.get(owner.index) or table._ownership.unsure:
                    continue
                for slot in table.slots.values():
                    run = self.reference.runs.get(slot.run_id)
                    if slot.in_flight or slot.trail is None or slot.problem:
                        hold(not slot.problem, "J1", f"run {slot.run_id} is stopped: {slot.problem}")
                        continue
                    hold(
                        run is not None and (slot.trail.step, slot.trail.digest) == (run.step, run.digest),
                        "I11",
                        f"{slot.run_id}: the owner is at step {slot.trail.step}",
                    )
                    if slot.state is not None and run is not None:
                        hold(
                            slot.state == run.state,
                            "I11",
                            f"{slot.run_id}: the live state is not the fold of the journal",
                        )

    def _round(self) -> None:
        running = self.running()
        if running:
            self.dice.one(running).round()

    def _job(self) -> None:
        waiting = [p for p in self.running() if p.runner.waiting]
        if waiting:
            process = self.dice.one(waiting)
            process.job(self.dice.rng.randrange(len(process.runner.waiting)))

    def _network(self) -> None:
        moves = self.cluster.choices()
        if moves:
            self.cluster.do(self.dice.one(moves))

    def _fault(self) -> None:
        kind = self.dice.pick([("repeat", 3.0), ("ack_unknown", 1.0), ("fail", 1.0), ("vanish", 1.0)])
        moves = [move for move in self.cluster.choices(faults=True) if move.kind == kind]
        if moves:
            self.cluster.do(self.dice.one(moves))

    def _worker(self) -> None:
        self.worker.act()

    def _client(self) -> None:
        self.client.act()

    def _clock(self) -> None:
        self.clock.advance(self.dice.one([1, 1, 5, 5, 20, 20, 20, 100, 100, 100, 400, 2_000, 70_000]))

    def _crash(self) -> None:
        alive = [p for p in self.processes if not p.gone]
        if alive:
            self.dice.one(alive).crash()

    def _start(self) -> None:
        if sum(not p.gone for p in self.processes) < 3:
            self.start()

    def _take_id(self) -> None:
        """A second process with the instance id of one that lives."""
        alive = [p for p in self.processes if not p.gone]
        if alive and len(alive) < 4:
            self.start(self.dice.one(alive).instance)

    def _freeze(self) -> None:
        running = self.running()
        if running:
            self.dice.one(running).freeze()
            if self.dice.chance(0.6):
                self.clock.advance(SESSION_MS + 500)

    def _thaw(self) -> None:
        frozen = [p for p in self.processes if p.frozen and not p.gone]
        if frozen:
            self.dice.one(frozen).thaw(deaf=self.dice.chance(0.6))

    def _hear(self) -> None:
        for process in self.running():
            process.hear()

    def _drain(self) -> None:
        running = [p for p in self.running() if not p.consumer.deaf]
        if len(running) > 1:
            self.dice.one(running).drain()

    def _refuse_commit(self) -> None:
        errors: list[LogError] = [
            Rebalancing("again", "REBALANCE_IN_PROGRESS"),
            Retryable("moving", "NOT_COORDINATOR"),
            NotOwner("no", "UNKNOWN_MEMBER_ID"),
        ]
        self.cluster.refuse_commits(GROUP, self.dice.one(errors))

    def _forget(self) -> None:
        """Positions or their metadata are lost."""
        if self.dice.chance(0.5):
            self.cluster.forget_metadata(GROUP)
        else:
            self.cluster.forget(GROUP)

    def _compact(self) -> None:
        self.cluster.compact(TOPICS.run_state, spare=self.dice.one([5, 20]))

    # ------------------------------------------------------------ calm

    def calm(self, most: int = 2_500) -> None:
        """Nothing goes wrong any more; returns when everything has come to rest. Raises Broken if it does not."""
        self.cluster.group(GROUP).refusals.clear()
        for process in self.processes:
            if process.frozen and not process.gone:
                process.thaw(deaf=False)
            process.hear()
        for _ in range(most):
            self.step += 1
            if not self.running():
                self.start()
            if self._calm_turn():
                return
        raise Broken(f"(rest) nothing comes to rest: {self.why_not()}")

    def _calm_turn(self) -> bool:
        for _ in range(3):
            for move in self.cluster.choices():
                if move in self.cluster.choices():
                    self.cluster.do(move)
            for process in self.running():
                process.round()
                while process.job():
                    pass
            self.worker.act(calm=True)
        self.check()
        if self.why_not():
            self.clock.advance(self.dice.one([20, 100, 300]))
            return False
        return True

    def why_not(self) -> str:
        """What is not at rest yet."""
        for process in self.running():
            if process.service.unready:
                return process.service.unready
            if len(process.shell.writer) or len(process.shell.outbox) or process.runner.busy() or process.shell.asks:
                return f"{process.name}: {len(process.shell.writer)} appends, {len(process.shell.outbox)} effects, {process.shell.asks} asks"
        if self.cluster.choices():
            return "records are under way"
        self.worker.read()
        if self.worker.open:
            return "requests are open"
        for run_id, run in self.reference.runs.items():
            if run.state.phase not in ("ended", "input", "stopped"):
                return f"{run_id} is in phase {run.state.phase}"
        return self._uncommitted()

    def _uncommitted(self) -> str:
        positions = self.cluster.group(GROUP).positions
        for topic in (TOPICS.commands, TOPICS.results):
            for index in range(self.partitions):
                where = Partition(topic, index)
                at, end = positions.get(where), self.cluster.log(where).end
                offset = at.offset if at is not None else self._believed(where)
                if end and offset != end:
                    return f"{topic}[{index}] is committed at {offset} of {end}"
        return ""

    def _believed(self, where: Partition) -> int | None:
        """What the owner committed last: a position that was lost under a living owner comes back with the daily commit only."""
        owners = [p.service.owners[where.index] for p in self.running() if where.index in p.service.owners]
        return owners[0]._progress[where.topic].committed if owners and owners[0]._progress else None

    # ------------------------------------------------------------ at rest

    def check_rest(self) -> None:
        self.reference.settled()
        self._check_live()
        self._check_inbound()
        self._check_restore()
        for run in self.reference.runs.values():
            check_state(run.state)

    def _check_inbound(self) -> None:
        """Every command has an outcome, every record that is none a dead letter, every other is journaled or a repetition."""
        ref = self.reference
        for sent in self.client.sent:
            place = (sent.partition.topic, sent.partition.index, sent.offset)
            if sent.letter:
                hold(place in ref.letters, "D1", f"{place} has no dead letter")
            elif sent.command_id:
                hold(
                    bool(ref.outcomes.get(sent.command_id)) or place in ref.letters,
                    "D2",
                    f"command {sent.command_id} at {place} has no outcome",
                )
        for log in self.cluster.topic(TOPICS.results).logs:
            for record in log:
                self._check_result(record)

    def _check_result(self, record: Any) -> None:
        place = (record.topic, record.partition, record.offset)
        if place in self.reference.letters or place in self.reference.journaled:
            return
        result = CODEC.decode(record.value, ToolResult)
        run = self.reference.runs.get(result.run_id)
        seen = run is not None and (result.call_key, result.attempt, result.status == "ok") in run.history.outcomes
        hold(seen, "D3", f"the result at {place} is nowhere")

    def _check_restore(self) -> None:
        """A restore from the committed pointer is a fold of everything (J8, J9), for every run that goes on."""
        for index in range(self.partitions):
            where = Partition(TOPICS.journal, index)
            log = self.cluster.log(where)
            position = self.cluster.group(GROUP).positions.get(Partition(TOPICS.commands, index))
            pointer = Pointer.decode(position.metadata) if position else None
            hold(pointer is not None, "J9", "no pointer is committed")
            assert pointer is not None
            hold(
                log.first <= pointer.floor <= log.end,
                "J14",
                f"the floor {pointer.floor} is outside the log, {log.first} to {log.end}",
            )
            first = next(iter(log), None)
            hold(
                first is None or first.offset != log.first or dict(first.headers)["kind"] == b"fence",
                "J14",
                "the log does not begin with a fence",
            )
            fold = PartitionFold(pointer.token, keep_ended_from=pointer.effects)
            for record in log.read(pointer.floor, 1_000_000):
                fold.take(record)
            self._compare(index, fold, pointer)

    def _compare(self, index: int, fold: PartitionFold, pointer: Pointer) -> None:
        for run_id, run in self.reference.runs.items():
            if run.partition != index or run.state.ended:
                continue
            trail = fold.trails.get(run_id)
            hold(
                trail is not None and (trail.step, trail.digest) == (run.step, run.digest),
                "J9",
                f"a restore from {pointer.floor} does not find {run_id}",
            )
            assert trail is not None
            log = self.cluster.log(Partition(TOPICS.journal, index))
            records = [log.read(offset, 1, offset + 1)[0] for offset in trail.offsets]
            loaded = load(run_id, trail, records, CODEC, check_arguments, self.blobs, pointer.epoch, pointer.effects)
            hold(loaded.state == run.state and loaded.divergence is None, "J9", f"{run_id} is loaded as another state")

    def run(self) -> World:
        """All of it. A failure says how to repeat it."""
        try:
            self.rough()
            self.calm()
            self.check_rest()
        except Exception as problem:
            problem.add_note(
                f"seed {self.seed}, step {self.step}: python -m tests.simulation.loop_world --seed {self.seed}"
            )
            raise
        return self


def main() -> int:
    """Seeds from the command line; see the module."""
    parser = argparse.ArgumentParser(description="Simulate the loop by seeds.")
    parser.add_argument("--seed", type=int, help="one seed, with the log of its processes")
    parser.add_argument("--seeds", default="0:200", help="first:end")
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--going", action="store_true", help="go on after a failure")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.seed is not None:
        logging.disable(logging.NOTSET)
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
        World(given.seed, Plan(steps=given.steps)).run()
        return 0
    first, _, end = given.seeds.partition(":")
    return _many(range(int(first), int(end)), Plan(steps=given.steps), going=given.going)


def _many(seeds: range, plan: Plan, *, going: bool) -> int:
    began, failed = time.monotonic(), 0
    counts: dict[str, int] = {}
    for seed in seeds:
        try:
            world = World(seed, plan).run()
            for name, count in world.reference.counts.items():
                counts[name] = counts.get(name, 0) + count
        except Exception as problem:
            if not going:
                raise
            failed += 1
            print(f"seed {seed}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
    spent = time.monotonic() - began
    print(f"{len(seeds)} seeds, {failed} failed, {len(seeds) / spent:.1f} seeds/s; {counts}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
