"""The real cluster: makes the port's clients with confluent-kafka from raw librdkafka properties.

Three layers of properties meet here, later ones win: what Turnlog recommends (`*_DEFAULTS`), what the installation gives
(addresses, SASL, TLS, anything librdkafka knows), what the protocol needs (`*_FIXED`). A given property that contradicts
a fixed one is refused at once, by name: silently weaker guarantees would be found much later.

https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from turnlog.kafka.admin import KafkaAdmin
from turnlog.kafka.broker_watch import BrokerWatch
from turnlog.kafka.consumer import KafkaConsumer
from turnlog.kafka.port import Refused
from turnlog.kafka.positions import GroupPositions
from turnlog.kafka.producer import KafkaProducer
from turnlog.kafka.quiet import quieten
from turnlog.kafka.reader import KafkaReader

Property = str | int | float | bool | logging.Logger

MIB = 1024 * 1024

COMMON_DEFAULTS: Mapping[str, Property] = {
    "client.id": "turnlog",
    "topic.metadata.refresh.interval.ms": 60_000,
    # A broker restart takes seconds; the default lets the back-off to it grow to 10 s.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
}
PRODUCER_DEFAULTS: Mapping[str, Property] = {
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 512 * 1024,
    # No larger than the topics': size is refused before anything is sent (a refusal by the broker bumps the epoch, J2).
    "message.max.bytes": MIB,
}
PRODUCER_FIXED: Mapping[str, Property] = {
    "enable.idempotence": True,
    "acks": "all",
    # Without end: a record that timed out locally has an unknown fate, and its ownership would be over (J7).
    "message.timeout.ms": 0,
    # With 5, a broker restart under persisted, unacknowledged appends ended in a fatal error (docs/journal.md, client settings).
    "max.in.flight": 1,
    # Java's default partitioner, so that everybody's records of one key meet in one partition.
    "partitioner": "murmur2_random",
    # librdkafka lets producers create topics unless told otherwise; ours come from schemas/topics.
    "allow.auto.create.topics": False,
}
READING_DEFAULTS: Mapping[str, Property] = {
    # Pause after the local queue was full or empty; the default of 1 s is a second of latency.
    "fetch.queue.backoff.ms": 2,
    # A partition that is added waits until the fetch under way comes back: with the default of 500 ms an opening took half a second longer.
    "fetch.wait.max.ms": 100,
    # Read ahead less than the default of 64 MiB: 16 MiB is about 25,000 records of ours.
    "queued.max.messages.kbytes": 16 * 1024,
}
READING_FIXED: Mapping[str, Property] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A position outside the log means that the log is not what we think (J15).
    "auto.offset.reset": "error",
}
MEMBER_DEFAULTS: Mapping[str, Property] = {
    "session.timeout.ms": 10_000,
    # Also how long a member may take to learn of a rebalance: with the default of 3 s a handover took 1 to 6 s.
    "heartbeat.interval.ms": 500,
    "max.poll.interval.ms": 300_000,
}
MEMBER_FIXED: Mapping[str, Property] = {
    "group.protocol": "classic",
    "partition.assignment.strategy": "cooperative-sticky",
}
# librdkafka's second names for properties that are fixed above.
ALIASES: Mapping[str, str] = {
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight.requests.per.connection": "max.in.flight",
}
# Properties of one kind of client, kept from the others: librdkafka would log a warning for each.
_PRODUCER_ONLY = (
    frozenset(PRODUCER_DEFAULTS)
    | frozenset(PRODUCER_FIXED) - {"allow.auto.create.topics"}
    | {
        "linger.ms",
        "queue.buffering.max.ms",
        "compression.type",
        "compression.codec",
        "compression.level",
        "batch.size",
        "batch.num.messages",
        "retries",
        "message.send.max.retries",
        "retry.backoff.ms",
        "request.timeout.ms",
    }
)
_CONSUMER_ONLY = frozenset().union(READING_DEFAULTS, READING_FIXED, MEMBER_DEFAULTS, MEMBER_FIXED) | {
    "fetch.min.bytes",
    "fetch.max.bytes",
    "fetch.message.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.error.backoff.ms",
    "queued.min.messages",
    "check.crcs",
    "isolation.level",
    "client.rack",
}


class KafkaCluster:
    """Makes clients of one cluster. Holds addresses and credentials; `repr` and errors name properties, never values.

    Nothing is connected until a client asks for something. Clients are independent of each other and of this object.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        """`config`: raw librdkafka properties, `bootstrap.servers` among them. Raises Refused for one the protocol fixes otherwise."""
        if not config.get("bootstrap.servers"):
            raise Refused("bootstrap.servers is missing: without it there is no cluster to talk to")
        _refuse_weakened(config)
        self._given: Mapping[str, Property] = dict(config)
        self._log = logging.getLogger("turnlog.kafka.librdkafka")
        quieten(self._log.name, "turnlog.kafka.consumer", "turnlog.kafka.producer", "turnlog.kafka.reader")
        self._watch = BrokerWatch()
        self._positions = GroupPositions(self._asking)

    def __repr__(self) -> str:
        return f"KafkaCluster({', '.join(sorted(self._given))})"

    def producer(self, name: str, *, linger_ms: float = 0.0) -> KafkaProducer:
        """One idempotent producer; `name` is its client id in logs and broker metrics."""
        own = {**PRODUCER_DEFAULTS, "linger.ms": linger_ms}
        return KafkaProducer(
            {**self._config(own, PRODUCER_FIXED, _CONSUMER_ONLY, name), **self._watch.client(name)}, name
        )

    def consumer(self, group: str, *, instance_id: str | None = None) -> KafkaConsumer:
        """A group member; with `instance_id` a static one (J3)."""
        fixed = {**READING_FIXED, **MEMBER_FIXED, "group.id": group}
        if instance_id is not None:
            fixed["group.instance.id"] = instance_id
        name = instance_id or group
        config = self._config({**READING_DEFAULTS, **MEMBER_DEFAULTS}, fixed, _PRODUCER_ONLY, name)
        consumer = KafkaConsumer({**config, **self._watch.client(name)}, group, self._positions)
        self._watch.tell(consumer.give_up)
        return consumer

    def reader(self, name: str) -> KafkaReader:
        """A reader outside any group. `name` stands where the library insists on a group id; nothing is ever committed under it."""
        fixed = {**READING_FIXED, "group.id": name}
        return KafkaReader(
            {**self._config(READING_DEFAULTS, fixed, _PRODUCER_ONLY, name), **self._watch.client(name)}, name
        )

    def admin(self) -> KafkaAdmin:
        """Administration on a client of its own."""
        return KafkaAdmin(self._config({}, {}, _PRODUCER_ONLY | _CONSUMER_ONLY, "turnlog-admin"))

    def _asking(self, group: str) -> dict[str, Property]:
        """Properties of a consumer that asks for a group's positions and joins nothing."""
        return self._config(
            READING_DEFAULTS, {**READING_FIXED, "group.id": group}, _PRODUCER_ONLY, f"{group}-positions"
        )

    def _config(
        self, defaults: Mapping[str, Property], fixed: Mapping[str, Property], foreign: frozenset[str], name: str
    ) -> dict[str, Property]:
        given = {key: value for key, value in self._given.items() if key not in foreign or key in defaults}
        named: Mapping[str, Property] = {"client.id": name, "logger": self._log}
        return {**COMMON_DEFAULTS, **named, **defaults, **given, **fixed}


def _refuse_weakened(config: Mapping[str, str]) -> None:
    fixed = {**PRODUCER_FIXED, **READING_FIXED, **MEMBER_FIXED}
    for key, value in config.items():
        name = ALIASES.get(key, key)
        if name in fixed and str(value).lower() != str(fixed[name]).lower():
            text = (
                f"{key} is fixed to {fixed[name]}: Turnlog's guarantees rest on it (docs/journal.md, client settings)"
            )
            raise Refused(text, "_INVALID_ARG")
