"""A group member in a process of its own, for tests that stop and kill it: `python -m tests.integration.group_member ...`.

Says a line per event on standard output, and after each line of its standard input tries a commit and says how it ended.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.port import Fatal, LogError, Partition, Position

SESSION_MS = 3_000


class Talker:
    """Says what the group does to it."""

    def assigned(self, partitions: Sequence[int]) -> None:
        say("assigned", *sorted(partitions))

    def revoked(self, partitions: Sequence[int]) -> None:
        say("revoked", *sorted(partitions))

    def lost(self, partitions: Sequence[int]) -> None:
        say("lost", *sorted(partitions))


def say(*words: object) -> None:
    print(*words, flush=True)


def main(bootstrap: str, group: str, topic: str, instance: str) -> int:
    cluster = KafkaCluster({"bootstrap.servers": bootstrap, "session.timeout.ms": str(SESSION_MS)})
    consumer = cluster.consumer(group, instance_id=instance or None)
    consumer.subscribe(topic, Talker())
    asked: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            consumer.poll(0.05)
        except Fatal as error:
            say("fatal", error.code)
            return 3
        try:
            where, offset = Partition(topic, int(asked.get_nowait())), 1
        except Empty:
            continue
        try:
            consumer.commit({where: Position(offset, instance)})
            say("committed")
        except LogError as error:
            say("refused", type(error).__name__)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
