"""Parts of a deterministic simulation: a clock that only moves when told, delays on it, blobs in memory, weighted choice.

Nothing in here knows what is simulated. `tests/simulation` puts the loop, a worker and a client together with `MemoryCluster`.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TypeVar

from turnlog.core.errors import BadHistory

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000


class SimClock:
    """Milliseconds since the epoch. `creep_ms` is added at every look, for code that waits by looking at the clock."""

    def __init__(self, start_ms: int = EPOCH_MS) -> None:
        self.ms = start_ms
        self.creep_ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        """Seconds."""
        self.ms += self.creep_ms
        return (self.ms - EPOCH_MS) / 1000

    def advance(self, ms: int) -> None:
        self.ms += ms


class SimAsk:
    """A delay under way."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class SimDelay:
    """`turnlog.testing.scripted.Delay` on a simulated clock: nothing happens but in `run_due`."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, SimAsk]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, act: Callable[[], None]) -> SimAsk:
        ask = SimAsk(act)
        heapq.heappush(self._heap, (self._clock.ms + round(seconds * 1000), next(self._numbers), ask))
        return ask

    def run_due(self) -> int:
        """Do what is due now; returns how much."""
        count = 0
        while self._heap and self._heap[0][0] <= self._clock.ms:
            act = heapq.heappop(self._heap)[2].act
            if act is not None:
                act()
                count += 1
        return count

    def close(self) -> None:
        self._heap.clear()


class MemoryBlobs:
    """A blob store in memory, shared by all simulated processes."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        self.blobs[digest] = data
        return digest

    def get(self, digest: str) -> bytes:
        try:
            return self.blobs[digest]
        except KeyError:
            raise BadHistory(f"blob {digest} is missing") from None


class Dice:
    """Weighted choice by a seed. `trace` is the hash of every choice so far: equal seeds must give equal traces."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._trace = sha256()

    def pick(self, weights: Sequence[tuple[str, float]]) -> str:
        names = [name for name, _ in weights]
        name = self.rng.choices(names, [weight for _, weight in weights])[0]
        self._trace.update(name.encode())
        return name

    def one(self, items: Sequence[T]) -> T:
        place = self.rng.randrange(len(items))
        self._trace.update(b"%d" % place)
        return items[place]

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()[:16]
