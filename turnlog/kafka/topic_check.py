"""Every difference between an installation's topics and the cluster, each with what it means (docs/journal.md, J15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from turnlog.kafka.port import Admin, NewTopic, TopicInfo
from turnlog.kafka.topics import Layout, TopicSpec, specs

Severity = Literal["error", "warning"]

REPLICATION = 3
MIN_INSYNC = 2

# Measured like bench/limit: the hops of a run with no work in them, 2 cores, one disk.
FLUSH_COSTS = (
    "a run then takes 31 to 35 ms instead of 16 to 20, and two cores do 280 to 320 runs/s instead of 890 to 1,050"
)


class Difference(NamedTuple):
    """One thing that is not as it must be. `error`: a guarantee is missing; `warning`: it works, and somebody should know."""

    topic: str
    what: str
    expected: str
    found: str
    severity: Severity
    why: str

    def __str__(self) -> str:
        said = f"{self.what} is {self.found}, expected {self.expected}" if self.expected else self.found
        return f"{self.severity}: {self.topic}: {said} ({self.why})"


# What a property is for, and whether a larger number does as well.
_WHY: dict[str, tuple[str, bool]] = {
    "cleanup.policy": (
        "compaction in a journal would lose steps, and no compaction elsewhere keeps the old for ever",
        False,
    ),
    "message.timestamp.type": (
        "with client times a clock that is ahead is an error for ever, and deadlines move (docs/journal.md, J16)",
        False,
    ),
    "max.message.bytes": ("records of up to 1 MiB must fit, else the broker refuses what the client let pass", True),
    "unclean.leader.election.enable": (
        "a replica that lags may become leader and cut acknowledged records (docs/journal.md, J15)",
        False,
    ),
    "min.insync.replicas": ("an acknowledged append on one replica is lost with it (docs/journal.md, J15)", True),
    "retention.ms": ("what expires earlier was still needed", True),
    "retention.bytes": ("size must not expire what time would not", True),
    "min.compaction.lag.ms": ("an old projection must be repairable for a day (docs/journal.md, J13)", True),
    "delete.retention.ms": ("followers must see that an entry ended", True),
}
_ELSE = ("schemas/topics says so", False)


def check_topics(admin: Admin, layout: Layout) -> list[Difference]:
    """All differences, errors first. An empty list: the cluster is as docs/journal.md demands.

    Toolsets are those of the layout and whoever has a request topic already. On one broker the demand for replicas becomes a warning
    that says what power loss takes, and what flush.messages would cost. Needs DESCRIBE and DESCRIBE_CONFIGS; raises LogError.
    """
    found = _ours(admin, layout)
    layout = _with_found_toolsets(layout, list(found))
    planned = list(layout.planned())
    brokers = admin.brokers()
    differences = [
        difference for spec, topic in planned for difference in _compare(spec, topic, found.get(topic.name), brokers)
    ]
    differences += _unknown(found, {topic.name for _, topic in planned})
    if brokers == 1:
        differences += _one_broker(layout, found)
    return sorted(differences, key=lambda difference: difference.severity)


def _ours(admin: Admin, layout: Layout) -> dict[str, TopicInfo]:
    names = [name for name in admin.topics() if name.startswith(layout.prefix)] if layout.prefix else None
    if names is None:
        names = [topic.name for _, topic in layout.planned()]
    return admin.topics(names, with_config=True)


def _with_found_toolsets(layout: Layout, names: Sequence[str]) -> Layout:
    found = set(layout.toolsets)
    for spec in specs().values():
        start = f"{layout.prefix}{spec.name}."
        found |= {name.removeprefix(start) for name in names if spec.per_toolset and name.startswith(start)}
    return layout.model_copy(update={"toolsets": tuple(sorted(found))})


def _compare(spec: TopicSpec, topic: NewTopic, info: TopicInfo | None, brokers: int) -> Iterator[Difference]:
    if info is None:
        yield Difference(topic.name, "topic", "there", "missing", "error", "turnlog topics create makes it")
        return
    yield from _partitions(spec, topic, info)
    yield from _replicas(topic, info, brokers)
    demanded = {**topic.config, "min.insync.replicas": str(MIN_INSYNC if brokers > 1 else 1)}
    for name, expected in demanded.items():
        yield from _property(topic.name, name, expected, info.config.get(name))


def _partitions(spec: TopicSpec, topic: NewTopic, info: TopicInfo) -> Iterator[Difference]:
    if info.partitions == topic.partitions:
        return
    expected, count = str(topic.partitions), str(info.partitions)
    if spec.co_partitioned:
        why = "all topics of the installation share one count, fixed for its life: keys go elsewhere"
        yield Difference(topic.name, "partitions", expected, count, "error", why)
    elif info.partitions < topic.partitions or topic.partitions == 1:
        why = "fewer share the work, or an order across keys was counted on"
        yield Difference(topic.name, "partitions", expected, count, "warning", why)


def _replicas(topic: NewTopic, info: TopicInfo, brokers: int) -> Iterator[Difference]:
    if brokers > 1 and info.replication < REPLICATION:
        why = "an acknowledged record must survive a broker (docs/journal.md, J15)"
        yield Difference(topic.name, "replication", str(REPLICATION), str(info.replication), "error", why)


def _property(topic: str, name: str, expected: str, found: str | None) -> Iterator[Difference]:
    why, more_is_fine = _WHY.get(name, _ELSE)
    if found == expected or (more_is_fine and found is not None and _at_least(found, expected)):
        return
    severity: Severity = "error" if name in _WHY else "warning"
    yield Difference(topic, name, expected, "not known" if found is None else found, severity, why)


def _at_least(found: str, expected: str) -> bool:
    """Whether the number is no smaller; -1 is without end."""
    try:
        have, need = int(found), int(expected)
    except ValueError:
        return False
    return have == -1 or (need != -1 and have >= need)


def _unknown(found: dict[str, TopicInfo], planned: set[str]) -> Iterator[Difference]:
    for name in sorted(found.keys() - planned):
        why = "nothing here reads or writes it; a newer build may, or its name is misspelt"
        yield Difference(name, "topic", "", "is not one of ours", "warning", why)


def _one_broker(layout: Layout, found: dict[str, TopicInfo]) -> Iterator[Difference]:
    where = layout.plan(specs()["journal"]).name
    info = found.get(where)
    if info is None:
        return
    why = "with one broker nothing survives its disk; elsewhere replication 3 and min.insync.replicas 2 are demanded (docs/journal.md, J15)"
    yield Difference(where, "replication", "", "there is one broker, so no replica", "warning", why)
    if info.config.get("flush.messages") != "1":
        text = "an acknowledged step survives kill -9 of the broker, not a power loss: then the journal may end before what was acted on"
        why = f"flush.messages=1 on the journal closes this with an fsync per append: {FLUSH_COSTS}"
        yield Difference(where, "flush.messages", "", text, "warning", why)


def report(differences: Sequence[Difference], write: Callable[[str], None]) -> bool:
    """Write them line by line; whether the installation may run (no error)."""
    for difference in differences:
        write(str(difference))
    return all(difference.severity != "error" for difference in differences)
