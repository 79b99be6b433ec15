"""Topics of a benchmark's installation, its agents, and where its state lies while it runs."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from turnlog.codec import Codec
from turnlog.core.agents import AgentSpec
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.port import Admin, Cluster, NewTopic, Partition
from turnlog.kafka.topics import Layout, create_topics, topic_name
from turnlog.local.supervisor import BOOTSTRAP_VARIABLE

TOOLSET = "bench"
AGENT = AgentSpec(
    "bench", "1", "Do the standard work.", "scripted/standard_work", tools=(f"{TOOLSET}/*",), parallel_calls=2
)


def cluster_of(bootstrap: str) -> KafkaCluster:
    return KafkaCluster({"bootstrap.servers": bootstrap})


def make_topics(admin: Admin, prefix: str, partitions: int, *, fsync: bool) -> None:
    """Every topic of an installation as its file says; with `fsync` the journal is forced to disk at every append."""
    layout = Layout(prefix=prefix, partitions=partitions, toolsets=(TOOLSET,))
    if fsync:
        for _, topic in layout.planned(["journal"]):
            config = {**topic.config, "flush.messages": "1"}
            admin.create_topics([NewTopic(topic.name, topic.partitions, topic.replication, config)])
    create_topics(admin, layout)


def define_agents(cluster: Cluster, codec: Codec, prefix: str, agents: Sequence[AgentSpec]) -> None:
    """Write the agents' definitions, acknowledged."""
    producer = cluster.producer("bench-agents")
    for agent in agents:
        producer.produce(topic_name(prefix, "agents"), codec.encode(agent), key=agent.name.encode())
    left = producer.flush(10.0)
    producer.close()
    if left:
        raise RuntimeError(f"{left} agents could not be written within 10 s")


def service_environment(prefix: str, partitions: int) -> dict[str, str]:
    """What the services of a benchmark are told."""
    return {
        "TURNLOG_TOPIC_PREFIX": prefix,
        "TURNLOG_PARTITIONS": str(partitions),
        "TURNLOG_INSTANCE": "bench",
        "TURNLOG_MODELS__SCRIPTED": "true",
        "TURNLOG_LOG__LEVEL": "INFO",
        "TURNLOG_LOG__FORMAT": "json",
    }


def own_prefix(name: str) -> str:
    """A prefix that no earlier run has used: a named cluster keeps what it was given."""
    return f"{name}-{uuid.uuid4().hex[:8]}."


def remove_topics(bootstrap: str, prefixes: Sequence[str]) -> None:
    """Leave a cluster that is not ours as it was found."""
    admin = cluster_of(bootstrap).admin()
    try:
        admin.delete_topics([name for name in admin.topics() if name.startswith(tuple(prefixes))])
    finally:
        admin.close()


def bootstrap_in(environment: Mapping[str, str]) -> str:
    return environment[BOOTSTRAP_VARIABLE]


def journal_end(admin: Admin, prefix: str, partitions: int) -> int:
    """Records in all of the journal: the sum of its ends."""
    journal = topic_name(prefix, "journal")
    ends = admin.ends([Partition(journal, index) for index in range(partitions)])
    return sum(end for _, end in ends.values())


@contextlib.contextmanager
def state_directory() -> Iterator[Path]:
    """A fresh directory beside the checkout's other state, on the disk that people would use; removed afterwards."""
    parent = Path(__file__).resolve().parent.parent / ".turnlog"
    parent.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
