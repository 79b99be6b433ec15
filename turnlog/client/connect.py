"""From settings to a cluster and a codec: the only place of the client that knows the real ones."""

from __future__ import annotations

from turnlog.codec import Codec, Registry
from turnlog.kafka.client import KafkaCluster
from turnlog.settings import Settings


def connected(bootstrap: str | None, settings: Settings | None) -> tuple[KafkaCluster, Codec, str]:
    """(cluster, codec, topic prefix). Nothing is connected yet."""
    chosen = Settings() if settings is None else settings
    properties = dict(chosen.kafka)
    if bootstrap is not None:
        properties["bootstrap.servers"] = bootstrap
    registry = None if chosen.registry_url is None else Registry(chosen.registry_url)
    return KafkaCluster(properties), Codec(registry), chosen.topic_prefix
