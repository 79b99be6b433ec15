"""When to pause reading and when to go on: two bounds with hysteresis, so that partitions do not flap."""

from __future__ import annotations

from typing import Literal


class Gate:
    """Closed from the moment a bound is reached until both loads are at or below half of theirs.

    (Every pause throws away what the client had fetched ahead, so opening for a single free place would cost more than it gives.)
    """

    __slots__ = ("_most", "_most_bytes", "closed")

    def __init__(self, most: int, most_bytes: int) -> None:
        if most < 1 or most_bytes < 1:
            raise ValueError(f"bounds of a gate must be at least 1, got {most} and {most_bytes}")
        self._most = most
        self._most_bytes = most_bytes
        self.closed = False

    def update(self, count: int, size: int) -> Literal["pause", "resume"] | None:
        """What to do now that `count` records of `size` bytes are under way; None for nothing."""
        if not self.closed:
            if count >= self._most or size >= self._most_bytes:
                self.closed = True
                return "pause"
        elif count <= self._most // 2 and size <= self._most_bytes // 2:
            self.closed = False
            return "resume"
        return None

    def room(self, count: int) -> int:
        """How many records may be taken at once; at least 1, because the gate is asked only when it is open."""
        return max(1, self._most - count)
