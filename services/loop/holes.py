"""Offsets without a record at the end of a topic: marks of transactions, and what was aborted in them.

An upstream that writes in transactions leaves a mark behind its last record, and no consumer is told of it. Who waits until the
end that it saw has been read would wait for the next record: a loop would stay in its backlog, its timers silent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from turnlog.kafka.jobs import LOADING
from turnlog.kafka.port import Partition, Reader

if TYPE_CHECKING:
    from services.loop.shell import Shell

_log = logging.getLogger(__name__)

LOOK_AFTER_S = 0.3
"""So long a backlog must stand still before its rest is looked at: most of them end in a record."""
WIDER = 16


def readable_end(reader: Reader, partition: Partition, start: int, end: int) -> int:
    """The offset behind the last record in [start, end) that a reader is given; `start` if there is none. Blocks.

    What lies behind a transaction that is still open is not given yet: it has not arrived. Raises LogError.
    """
    end = min(end, reader.bounds(partition)[1])
    width = 1
    while start < end:
        since = max(start, end - width)
        last = max((batch[-1].offset for batch in reader.read(partition, since, end)), default=-1)
        if last >= 0:
            return last + 1
        end, width = since, width * WIDER
    return start


class Behind(Protocol):
    """Something that is read up to an end seen before."""

    partition: Partition
    next_read: int
    until: int


class _Seen(NamedTuple):
    at: int
    since: float
    asked: bool


class Holes:
    """Lowers the ends that a partition's owner waits for to what can be read. On the poll thread; it reads in the loading lane."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._seen: dict[Partition, _Seen] = {}

    def look(self, backlog: Iterable[Behind]) -> None:
        """Called while there is a backlog: whatever of it stood still for a while is looked at, once for each place where it stands."""
        now = self._shell.clock()
        for each in backlog:
            if each.next_read >= each.until:
                continue
            seen = self._seen.get(each.partition)
            if seen is None or seen.at != each.next_read:
                self._seen[each.partition] = _Seen(each.next_read, now, False)
            elif not seen.asked and now - seen.since >= LOOK_AFTER_S:
                self._seen[each.partition] = seen._replace(asked=True)
                self._ask(each)

    def _ask(self, each: Behind) -> None:
        start, until, reader = each.next_read, each.until, self._shell.clients.reader

        def done(end: int | None, error: BaseException | None) -> None:
            self._seen.pop(each.partition, None)  # if it still stands there, it is looked at again
            if end is None:
                _log.warning("%s[%d]: what is left to read is not known: %s", *each.partition, error)
            elif each.until == until:
                each.until = max(end, start)

        self._shell.runner.submit(LOADING, lambda: readable_end(reader, each.partition, start, until), done)
