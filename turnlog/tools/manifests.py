"""The announcement: what tools a worker has, written to `tool-manifests` when it differs from what stands there.

Key `<toolset>/<tool>`; a null value withdraws a tool that this toolset no longer has. Whoever starts last wins, so during a
rolling deploy the newest start decides; runs in flight keep what they pinned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from turnlog.codec import Unreadable
from turnlog.core.records import ToolManifest
from turnlog.kafka.port import Cluster, Delivered, LogError, Partition, Retryable, UnknownTopic
from turnlog.tools.desk import WireCodec
from turnlog.tools.toolset import Toolset

_log = logging.getLogger(__name__)


class Announced(NamedTuple):
    """Names of the tools whose manifest was written, withdrawn, or stood there already."""

    written: tuple[str, ...]
    withdrawn: tuple[str, ...]
    unchanged: tuple[str, ...]


def announce(
    cluster: Cluster,
    codec: WireCodec,
    manifests_topic: str,
    requests_topic: str,
    toolset: Toolset,
    *,
    timeout_s: float = 30.0,
) -> Announced:
    """Bring the topic up to what the toolset is; every write is acknowledged when this returns. Blocks.

    Raises UnknownTopic when the topic does not exist, NotAuthorised, Retryable when the time is over.
    """
    standing = _standing(cluster, manifests_topic, f"{toolset.name}/", timeout_s)
    written, unchanged = {}, []
    for tool in toolset:
        manifest = tool.manifest(requests_topic)
        if _same(codec, standing.get(tool.name), manifest):
            unchanged.append(tool.name)
        else:
            written[tool.name] = codec.encode(manifest)
    withdrawn = tuple(name for name, value in standing.items() if value is not None and toolset.get(name) is None)
    _write(cluster, manifests_topic, toolset.name, {**written, **dict.fromkeys(withdrawn)}, timeout_s)
    announced = Announced(tuple(written), withdrawn, tuple(unchanged))
    _log.info("manifests of %s: %s", toolset.name, announced._asdict(), extra={"toolset": toolset.name})
    return announced


def _standing(cluster: Cluster, topic: str, prefix: str, timeout_s: float) -> dict[str, bytes | None]:
    """The newest value of each of the toolset's keys, by tool."""
    admin = cluster.admin()
    try:
        info = admin.topics([topic]).get(topic)
        if info is None:
            raise UnknownTopic(f"{topic} does not exist: create the topics first (`turnlog topics create`)")
        partitions = [Partition(topic, index) for index in range(info.partitions)]
        bounds = admin.ends(partitions)
    finally:
        admin.close()
    reader = cluster.reader(f"{topic}.announce")
    found: dict[str, bytes | None] = {}
    try:
        for partition in partitions:
            for batch in reader.read(partition, *bounds[partition], timeout_s=timeout_s):
                for record in batch:
                    key = (record.key or b"").decode("utf-8", "replace")
                    if key.startswith(prefix):
                        found[key.removeprefix(prefix)] = record.value
    finally:
        reader.close()
    return found


def _same(codec: WireCodec, value: bytes | None, manifest: ToolManifest) -> bool:
    if value is None:
        return False
    try:
        return codec.decode(value, ToolManifest) == manifest
    except Unreadable:
        return False


def _write(cluster: Cluster, topic: str, toolset: str, values: Mapping[str, bytes | None], timeout_s: float) -> None:
    if not values:
        return
    problems: list[LogError] = []

    def reported(report: Delivered) -> None:
        if report.error is not None:
            problems.append(report.error)

    producer = cluster.producer(f"announce.{toolset}")
    try:
        for tool, value in values.items():
            producer.produce(topic, value, key=f"{toolset}/{tool}".encode(), on_delivery=reported)
        left = producer.flush(timeout_s)
    finally:
        producer.close()
    if left and not problems:
        raise Retryable(f"manifests of {toolset}: {left} not acknowledged within {timeout_s:g} s")
    if problems:
        raise problems[0]
