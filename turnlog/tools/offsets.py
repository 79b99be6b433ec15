"""Which position of a partition may be committed: the lowest offset still owed something."""

from __future__ import annotations

from collections import deque


class OffsetTracker:
    """The taken records of one partition during one ownership.

    `position` is the offset to commit: everything below it is settled, the record at it is not (or not read yet). Records settle
    in any order; offsets may have holes (compaction, transactions of others). Lives in the poll thread.
    """

    __slots__ = ("_open", "_settled", "committed", "dropped", "next", "partition", "position", "sent")

    def __init__(self, partition: int, start: int, committed: int = -1) -> None:
        self.partition = partition
        self.position = start
        self.sent = committed
        """Position of the last commit that went out, and of the last that was acknowledged."""
        self.committed = committed
        self.dropped = 0
        """Taken records that this ownership gave up; they stay unsettled, so the next owner gets them."""
        self.next = start
        """The first offset not taken yet."""
        self._open: deque[int] = deque()
        self._settled: set[int] = set()

    def take(self, offset: int) -> bool:
        """Note a record as under way. False for an offset that was taken before (delivered again within one ownership)."""
        if offset < self.next:
            return False
        if not self._open:
            self.position = offset
        self._open.append(offset)
        self.next = offset + 1
        return True

    def settle(self, offset: int) -> None:
        """The record needs nothing more from us. Once per taken record."""
        open_ = self._open
        if not open_ or open_[0] != offset:
            self._settled.add(offset)
            return
        open_.popleft()
        settled = self._settled
        while open_ and open_[0] in settled:
            settled.remove(open_.popleft())
        self.position = open_[0] if open_ else self.next

    @property
    def under_way(self) -> int:
        """Taken records that are neither settled nor dropped."""
        return len(self._open) - len(self._settled) - self.dropped
