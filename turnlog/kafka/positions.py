"""Committed positions of groups, asked by a client that is no member of them.

Not by the admin client: librdkafka aborts the process when a broker disappears under such a request (confluentinc/librdkafka#4605,
six times in one play under kill -9), and one that lost its coordinator answered nothing but time-outs for a minute. A plain
consumer that never subscribes asks the same of the coordinator and joins nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer as LibraryConsumer
from confluent_kafka import KafkaException, TopicPartition

from turnlog.kafka.consumer import first_error, position_of
from turnlog.kafka.errors import translated
from turnlog.kafka.port import Partition, Position


class GroupPositions:
    """Callable from any thread; questions are asked one at a time. A client that failed is not used again."""

    def __init__(self, config: Callable[[str], Mapping[str, Any]]) -> None:
        """`config` gives the properties of a consumer of the named group."""
        self._config = config
        self._clients: dict[str, LibraryConsumer] = {}
        self._lock = threading.Lock()

    def __call__(
        self, group: str, partitions: Sequence[Partition], timeout_s: float
    ) -> dict[Partition, Position | None]:
        """Per partition what the group has committed, None where nothing is. Raises Retryable, NotAuthorised."""
        if not partitions:
            return {}
        doing = f"positions of {group}"
        with self._lock:
            client = self._clients.pop(group, None) or LibraryConsumer(dict(self._config(group)))
            try:
                answers = client.committed([TopicPartition(p.topic, p.index) for p in partitions], timeout=timeout_s)
            except KafkaException as error:
                client.close()
                raise translated(error, doing) from error
            self._clients[group] = client
        if (problem := first_error(answers, doing)) is not None:
            raise problem
        return {Partition(answer.topic, answer.partition): position_of(answer) for answer in answers}
