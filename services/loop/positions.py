"""How far the inbound topics of a partition are dealt with, and the pointer that is committed with it (J9, J11)."""

from __future__ import annotations

from turnlog.kafka.port import Partition, Position


class Progress:
    """One inbound topic of the partition: the committed offset is the lowest message not fully dealt with."""

    __slots__ = ("partition", "next_read", "until", "_open", "committed")

    def __init__(self, partition: Partition, start: int, until: int) -> None:
        self.partition = partition
        self.next_read = start
        self.until = until
        """The end seen at assignment: what lies before it is the backlog."""
        self.committed = -1
        self._open: dict[int, None] = {}

    def read(self, offset: int) -> None:
        """A message was handed out; offsets ascend."""
        self._open[offset] = None
        self.next_read = offset + 1

    def done(self, offset: int) -> None:
        """It is dealt with: journaled and valid, or of no consequence and its outcome acknowledged."""
        self._open.pop(offset, None)

    @property
    def position(self) -> int:
        """The lowest offset that is not dealt with (insertion order is offset order)."""
        return next(iter(self._open), self.next_read)

    @property
    def caught_up(self) -> bool:
        return self.next_read >= self.until


def positions(
    progress: dict[str, Progress], ownership_topic: str, pointer: str, *, all_of_them: bool
) -> dict[Partition, Position]:
    """What to commit: the ownership topic always (its metadata is the pointer), the others where they moved or `all_of_them`."""
    found = {}
    for topic, each in progress.items():
        at = each.position
        if topic == ownership_topic:
            found[each.partition] = Position(at, pointer)
        elif all_of_them or at != each.committed:
            found[each.partition] = Position(at)
    return found


def committed(progress: dict[str, Progress], positions: dict[Partition, Position]) -> None:
    """These positions were accepted."""
    for partition, position in positions.items():
        progress[partition.topic].committed = position.offset
