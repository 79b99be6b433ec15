"""Random histories of one journal partition: a restore from the floor equals a fold of everything (J8, J9, J10, J14).

What a record is, which chains are held, where the floor lies and where the log may be cut is the product's: `PartitionFold` and
`last_fence_at_or_below`. The model plays everybody else:

    owners     come one after the other; each restores from what is left of the log and from some pointer, old, new or none
    zombies    append under the token of an ownership that is over, from what they knew when it ended
    runs       start, step, are snapshotted, end for good, or end with late news still to come
    repeats    any record may land twice (J2)
    the cut    deletes the log's head up to a fence (J14)

After each restore: every chain that is held has the same last step, and its base and the steps since, read from what is left of
the log, form one chain of hashes that ends there (J10).

A `World` names the rules; a mutant is a world with one of them taken out, and some history must show the difference.
"""

from __future__ import annotations

import random
from hashlib import sha256
from typing import NamedTuple

from turnlog.kafka.fenced import (
    FENCE,
    SNAPSHOT,
    STEP,
    PartitionFold,
    RecordHeader,
    Trail,
    header_of,
    headers_of,
    last_fence_at_or_below,
)
from turnlog.kafka.port import Received


class Difference(AssertionError):
    """A restore found something else than a fold of everything, or a chain that does not hold."""


class World(NamedTuple):
    """The rules in force. As it stands: all of them."""

    fold: type[PartitionFold] = PartitionFold
    floor_is_least_base: bool = True
    """(J8) The floor of a pointer is the least base of the chains that are held."""
    pointer_has_token: bool = True
    """(J9) A pointer says which fence is in force at its floor."""
    cut_at_fence: bool = True
    """(J14) The log is cut at a fence and nowhere else."""
    cut_keeps_bases: bool = True
    """(J14) The log is not cut beyond the oldest base of a chain that is held."""
    cut_keeps_pointers: bool = True
    """(J14) The log is not cut beyond the floor of the pointer before last."""


class Pointer(NamedTuple):
    """What a commit's metadata says: read the journal from `floor`, where `token` is in force."""

    floor: int
    token: bytes | None


class Zombie(NamedTuple):
    """An ownership that is over and does not know it: its token, and last step and digest of each run as it knew them."""

    token: bytes
    heads: dict[str, tuple[int, bytes]]


class History:
    """One random history. `play` raises Difference where a rule does not hold."""

    def __init__(self, seed: int, world: World) -> None:
        self.chance = random.Random(seed)
        self.world = world
        self.log: list[Received] = []
        """Everything that was ever written; what lies below `start` is cut off."""
        self.start = 0
        self.pointers: list[Pointer] = []
        self.zombies: list[Zombie] = []
        self.written = 0
        self.token = self._token(0)
        self.tokens = 1
        self.owner = world.fold()
        """What the owner in force knows: it follows the log from where it was restored."""
        self._fence(self.token)

    def play(self, moves: int) -> None:
        """Let so many things happen."""
        for _ in range(moves):
            self._move(self.chance.random())

    def _move(self, x: float) -> None:
        open_runs = [key for key, trail in self.owner.trails.items() if trail.end < 0]
        if x < 0.08:
            self._new_owner()
        elif x < 0.20 and self.zombies:
            self._zombie(self.chance.choice(self.zombies))
        elif x < 0.35 or not open_runs:
            self._step(f"run-{self.written}", self.token, None, self._end())
        elif x < 0.75:
            key = self.chance.choice(open_runs)
            trail = self.owner.trails[key]
            self._step(key, self.token, (trail.step, trail.digest), self._end())
        elif x < 0.88:
            self._snapshot_some()
        elif x < 0.95:
            self._commit()
        else:
            self._cut()

    def _end(self) -> int:
        """Mostly the run goes on; else it ends for good, or with late news still to come."""
        return self.chance.choice([-1, -1, -1, -1, -1, -1, -1, 0, 0, 1])

    # ------------------------------------------------------------ writing

    @staticmethod
    def _token(number: int) -> bytes:
        return number.to_bytes(16, "big")

    def _fence(self, token: bytes) -> None:
        self._append(RecordHeader(FENCE, token, -1, None, 0, -1), None, b"fence")

    def _step(self, key: str, token: bytes, last: tuple[int, bytes] | None, end: int) -> None:
        """A step behind `last`; now and then it lands twice, at once or with records of others in between."""
        self.written += 1
        number, prev = (0, None) if last is None else (last[0] + 1, last[1])
        header = RecordHeader(STEP, token, number, prev, 0, end)
        value = b"step %d" % self.written
        self._append(header, key, value)
        if self.chance.random() < 0.2:
            if self.chance.random() < 0.5:
                self._step(f"run-{self.written}", token, None, -1)
            self._append(header, key, value)

    def _snapshot_some(self) -> None:
        trails = self.owner.trails
        oldest = min(trails, key=lambda key: trails[key].base)
        key = oldest if self.chance.random() < 0.7 else self.chance.choice(sorted(trails))
        self._snapshot(key, self.token, (trails[key].step, trails[key].digest), trails[key].end)

    def _snapshot(self, key: str, token: bytes, last: tuple[int, bytes], end: int) -> None:
        self.written += 1
        header = RecordHeader(SNAPSHOT, token, last[0], last[1], 0, end)
        for _ in range(self.chance.choice([1, 1, 1, 2])):
            self._append(header, key, b"snapshot %d" % self.written)

    def _append(self, header: RecordHeader, key: str | None, value: bytes) -> None:
        record = Received(
            "journal", 0, len(self.log), None if key is None else key.encode(), value, tuple(headers_of(header)), 0
        )
        self.log.append(record)
        self.owner.take(record)

    def _zombie(self, zombie: Zombie) -> None:
        """It goes on with a run it knew, snapshots one, or starts one; all of that must be void."""
        x = self.chance.random()
        if not zombie.heads or x < 0.2:
            self._step(f"run-{self.written}", zombie.token, None, -1)
            return
        key = self.chance.choice(sorted(zombie.heads))
        if x < 0.5:
            self._snapshot(key, zombie.token, zombie.heads[key], -1)
        else:
            self._step(key, zombie.token, zombie.heads[key], self._end())

    # ------------------------------------------------------------ pointer, cut, restore

    def _commit(self) -> None:
        floor = self.owner.floor(len(self.log))
        if not self.world.floor_is_least_base:
            floor = min(len(self.log), floor + self.chance.randint(0, 3))
        token = self._token_before(floor) if self.world.pointer_has_token else None
        self.pointers.append(Pointer(floor, token))

    def _token_before(self, offset: int) -> bytes | None:
        """The fence in force at this offset, from the whole log."""
        headers = [header_of(record.headers) for record in self.log[:offset]]
        return next((header.fence for header in reversed(headers) if header is not None and header.kind == FENCE), None)

    def _cut(self) -> None:
        if len(self.pointers) < 2:
            return
        limits = [len(self.log) - 1]
        if self.world.cut_keeps_pointers:
            limits.append(self.pointers[-2].floor)
        if self.world.cut_keeps_bases:
            limits.append(self.owner.floor(len(self.log)))
        at: int | None = min(limits)
        if self.world.cut_at_fence:
            at = last_fence_at_or_below(self.owner.fences, min(limits), 0)
        self.start = max(self.start, at or 0)

    def _new_owner(self) -> None:
        """Somebody else opens: fence, then restore from a pointer or from the log's start, and compare."""
        heads = {key: (trail.step, trail.digest) for key, trail in self.owner.trails.items()}
        self.zombies.append(Zombie(self.token, heads))
        self.token = self._token(self.tokens)
        self.tokens += 1
        self._fence(self.token)
        pointer = self.chance.choice([None, *self.pointers[-3:]])
        usable = pointer is not None and pointer.floor >= self.start
        first, token = (pointer.floor, pointer.token) if pointer is not None and usable else (self.start, None)
        restored = self._folded(first, token, self.world.fold)
        self._compare(restored.trails, self._folded(0, None, PartitionFold).trails, first)
        self.owner = restored

    def _folded(self, first: int, token: bytes | None, kind: type[PartitionFold]) -> PartitionFold:
        fold = kind(token)
        for record in self.log[first:]:
            fold.take(record)
        return fold

    def _compare(self, restored: dict[str, Trail], everything: dict[str, Trail], first: int) -> None:
        found = {key: (trail.step, trail.digest, trail.end, trail.broken) for key, trail in restored.items()}
        true = {key: (trail.step, trail.digest, trail.end, trail.broken) for key, trail in everything.items()}
        if found != true:
            keys = sorted(key for key in found.keys() | true.keys() if found.get(key) != true.get(key))
            raise Difference(f"restored from {first} of {len(self.log)}, cut at {self.start}: {keys} differ")
        for key, trail in restored.items():
            self._load(key, trail)

    def _load(self, key: str, trail: Trail) -> None:
        """Read a run's base and the steps since, as whoever loads it does, and check that they lead to its last step (J10)."""
        number, digest = -1, b""
        for offset in trail.offsets:
            if offset < self.start:
                raise Difference(f"{key} needs offset {offset}, cut at {self.start}")
            record = self.log[offset]
            header = header_of(record.headers)
            if header is None or record.value is None or record.key != key.encode():
                raise Difference(f"{key} has a record at {offset} that is not its own")
            if header.kind == SNAPSHOT:
                number, digest = header.step, header.prev or b""
                continue
            if header.step != number + 1 or (header.prev or b"") != digest:
                raise Difference(f"{key}: step {header.step} at {offset} does not follow step {number}")
            number, digest = header.step, sha256(record.value).digest()
        if (number, digest) != (trail.step, trail.digest):
            raise Difference(f"{key} loads to step {number}, its last is {trail.step}")


def first_difference(histories: int, seed: int, world: World = World()) -> str:  # noqa: B008 - a NamedTuple is a value
    """What the first history that shows one shows, with the seed that repeats it; empty if none does."""
    for number in range(histories):
        history = History(seed * 1_000_003 + number, world)
        try:
            history.play(history.chance.randint(20, 120))
        except Difference as difference:
            return f"history {number} of seed {seed}: {difference}"
    return ""
