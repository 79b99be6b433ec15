"""Administration with confluent-kafka. The client lives as long as this object: futures of a dead AdminClient never end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package imports them without saying so in __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)
from confluent_kafka.admin import NewTopic as LibraryNewTopic  # type: ignore[attr-defined]

from turnlog.kafka.consumer import first_error, position_of
from turnlog.kafka.errors import translate, translated
from turnlog.kafka.port import (
    LogError,
    NewTopic,
    NotAuthorised,
    Partition,
    Position,
    Retryable,
    TopicInfo,
    UnknownTopic,
)  # fmt: skip

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]

#: One request's time where the port gives none.
REQUEST_S = 30.0
_AGAIN_S = 0.2
_SILENCE = frozenset({"_TIMED_OUT", "_TRANSPORT", "_RESOLVE", "_ALL_BROKERS_DOWN"})
"""How the library says that nobody answered: not there, a name unknown, or refused at the door."""


class KafkaAdmin:
    """See `port.Admin`. May be shared by threads."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._address = config["bootstrap.servers"]
        # Not a method of this object: in a cycle the client would outlive it until the next collection.
        turned_away: deque[LogError] = deque(maxlen=1)

        def note(error: KafkaError) -> None:
            problem = translate(error, "connect")
            if isinstance(problem, NotAuthorised):
                turned_away.append(problem)

        self._turned_away = turned_away
        self._config = {**config, "error_cb": note}
        self._client = self._before = self._made()

    def _made(self) -> AdminClient:
        try:
            return AdminClient(dict(self._config))
        except KafkaException as error:
            raise translated(error, "admin client") from error

    # --- topics

    def topics(
        self, names: Sequence[str] | None = None, *, with_config: bool = False, timeout_s: float = REQUEST_S
    ) -> dict[str, TopicInfo]:
        asked = self._client
        try:
            wanted = list(self._names(timeout_s)) if names is None else list(names)
            found = self._described(wanted, timeout_s)
            configs = self._configs(list(found), timeout_s) if with_config and found else {}
        except LogError as error:
            if error.code in _SILENCE:
                raise self._silence(error, asked) from error
            raise
        return {name: _info(name, topic, configs.get(name, {})) for name, topic in found.items()}

    def _silence(self, error: LogError, asked: AdminClient) -> LogError:
        """What it means that nobody answered: the library tells only its callback that the cluster turns us away, and asks again and again.

        The next question goes out on a new client, for this one may know no broker any more (see `broker_watch`). It lives until the next
        silence, for other threads' futures."""
        asked.poll(0)
        with contextlib.suppress(IndexError):
            return self._turned_away.pop()
        if self._client is asked:  # no other thread has found out before
            self._before, self._client = asked, self._made()
        return Retryable(f"the cluster at {self._address} does not answer", error.code)

    def _names(self, timeout_s: float) -> Iterable[str]:
        try:
            return self._client.list_topics(timeout=timeout_s).topics
        except KafkaException as error:
            raise translated(error, "list topics") from error

    def _described(self, names: Sequence[str], timeout_s: float) -> dict[str, TopicDescription]:
        if not names:
            return {}
        futures = self._client.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s)
        found = {}
        for name, future in futures.items():
            try:
                found[name] = _result(future, f"describe {name}", timeout_s)
            except UnknownTopic:
                continue
        return found

    def _configs(self, names: Sequence[str], timeout_s: float) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self._client.describe_configs(resources, request_timeout=timeout_s)
        return {
            resource.name: {
                key: entry.value
                for key, entry in _result(future, f"configuration of {resource.name}", timeout_s).items()
                if entry.value is not None
            }
            for resource, future in futures.items()
        }

    def create_topics(self, topics: Sequence[NewTopic], *, timeout_s: float = 30.0) -> dict[str, LogError | None]:
        """Per topic None or why not. A created topic may take a moment until every broker knows it."""
        if not topics:
            return {}
        new = [
            LibraryNewTopic(
                t.name, num_partitions=t.partitions, replication_factor=t.replication, config=dict(t.config)
            )
            for t in topics
        ]
        futures = self._client.create_topics(new, operation_timeout=timeout_s, request_timeout=timeout_s)
        return {name: _outcome(future, f"create {name}", timeout_s) for name, future in futures.items()}

    def delete_topics(self, names: Sequence[str]) -> None:
        """Raises UnknownTopic for the first that does not exist; the others are deleted all the same."""
        if not names:
            return
        futures = self._client.delete_topics(list(names), operation_timeout=REQUEST_S, request_timeout=REQUEST_S)
        _raise_first(_outcome(future, f"delete {name}", REQUEST_S) for name, future in futures.items())

    # --- records and positions

    def delete_records(self, before: Mapping[Partition, int]) -> None:
        """Make these offsets the first of their partitions. Raises OffsetGone for one beyond the end."""
        if not before:
            return
        wanted = [TopicPartition(p.topic, p.index, offset) for p, offset in before.items()]
        futures = self._client.delete_records(wanted, request_timeout=REQUEST_S, operation_timeout=REQUEST_S)
        try:
            _raise_first(_outcome(future, f"delete records of {at.topic}", REQUEST_S) for at, future in futures.items())
        except LogError as error:
            raise self._without_leader(error, list(before)) from error

    def _without_leader(self, error: LogError, partitions: Sequence[Partition]) -> LogError:
        """What `error` means if it may be the library's memory that is wrong. Asking about the topics renews that memory: without it,
        a list in which some topics were new had UNKNOWN_TOPIC_OR_PART for an answer until the next refresh, 60 s later. And the library says
        "no leaders found" (_NOENT) both where a topic does not exist and where an election is under way."""
        if error.code != "_NOENT" and not isinstance(error, UnknownTopic):
            return error
        known = self.topics(sorted({partition.topic for partition in partitions}))
        for partition in partitions:
            if partition.topic not in known or partition.index >= known[partition.topic].partitions:
                return UnknownTopic(f"no partition {partition.topic}[{partition.index}]", error.code, partition)
        return Retryable(str(error), error.code)

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """(first offset, end offset) of each, in two requests for all. Raises UnknownTopic, Retryable."""
        try:
            first = self._offsets(partitions, _EARLIEST)
            end = self._offsets(partitions, _LATEST)
        except LogError as error:
            raise self._without_leader(error, partitions) from error
        return {partition: (first[partition], end[partition]) for partition in partitions}

    def _offsets(self, partitions: Sequence[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        if not partitions:
            return {}
        asked = {TopicPartition(p.topic, p.index): spec for p in partitions}
        futures = self._client.list_offsets(asked, request_timeout=REQUEST_S)
        return {
            Partition(at.topic, at.partition): _result(future, f"offsets of {at.topic}[{at.partition}]").offset
            for at, future in futures.items()
        }

    def group_positions(
        self, group: str, partitions: Sequence[Partition], *, timeout_s: float = REQUEST_S
    ) -> dict[Partition, Position | None]:
        if not partitions:
            return {}
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(p.topic, p.index) for p in partitions])

        def ask() -> Any:
            (future,) = self._client.list_consumer_group_offsets([asked], request_timeout=timeout_s).values()
            return _result(future, f"positions of {group}", timeout_s)

        answers = _patiently(ask, timeout_s).topic_partitions
        if (problem := first_error(answers, f"positions of {group}")) is not None:
            raise problem
        return {Partition(a.topic, a.partition): position_of(a) for a in answers}

    def reset_positions(self, group: str, positions: Mapping[Partition, Position]) -> None:
        """Raises NotOwner while the group has members."""
        if not positions:
            return
        offsets = [TopicPartition(p.topic, p.index, at.offset, at.metadata) for p, at in positions.items()]
        asked = [ConsumerGroupTopicPartitions(group, offsets)]

        def ask() -> Any:
            (future,) = self._client.alter_consumer_group_offsets(asked, request_timeout=REQUEST_S).values()
            return _result(future, f"reset positions of {group}")

        answers = _patiently(ask, REQUEST_S).topic_partitions
        if (problem := first_error(answers, f"reset positions of {group}")) is not None:
            raise problem

    # --- cluster

    def brokers(self) -> int:
        """How many brokers are alive."""
        try:
            return len(self._client.list_topics(timeout=REQUEST_S).brokers)
        except KafkaException as error:
            raise translated(error, "list brokers") from error

    def close(self) -> None:
        """Nothing to release but log lines of the library: it ends with the object."""
        self._client.poll(0)


def _info(name: str, topic: TopicDescription, config: Mapping[str, str]) -> TopicInfo:
    replication = min((len(p.replicas) for p in topic.partitions), default=0)
    return TopicInfo(name, str(topic.topic_id), len(topic.partitions), replication, config)


def _result(future: Future[_T], doing: str, timeout_s: float = REQUEST_S) -> _T:
    try:
        return future.result(
            timeout_s + 5
        )  # the request has its own deadline; this one only guards against a lost answer
    except KafkaException as error:
        raise translated(error, doing) from error
    except FutureTimeout as error:
        raise Retryable(f"{doing}: no answer", "_TIMED_OUT") from error


def _patiently(ask: Callable[[], _T], timeout_s: float) -> _T:
    """Ask again while the group's coordinator is loading or moving, as it is right after a broker's start."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except Retryable:
            if time.monotonic() + _AGAIN_S >= until:
                raise
            time.sleep(_AGAIN_S)


def _outcome(future: Future[Any], doing: str, timeout_s: float) -> LogError | None:
    try:
        _result(future, doing, timeout_s)
    except LogError as error:
        return error
    return None


def _raise_first(outcomes: Iterable[LogError | None]) -> None:
    problems = [problem for problem in outcomes if problem is not None]
    if problems:
        raise problems[0]
