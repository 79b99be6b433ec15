"""From settings to a cluster and a codec: the only place of the client that knows the real ones."""

from __future__ import annotations

import logging
import os

from turnlog.codec import Codec
from turnlog.core.agents import AgentSpec
from turnlog.core.records import Command
from turnlog.kafka.client import KafkaCluster
from turnlog.local.state import StateDir
from turnlog.settings import Settings, from_environment, unread_variables

_log = logging.getLogger(__name__)

BOOTSTRAP_VARIABLE = "TURNLOG_KAFKA__BOOTSTRAP_SERVERS"


def connected(bootstrap: str | None, settings: Settings | None) -> tuple[KafkaCluster, Codec, str]:
    """(cluster, codec, topic prefix). Nothing is connected yet."""
    chosen = from_environment(Settings) if settings is None else settings
    if settings is None:
        for line in unread_variables(os.environ):
            _log.warning("%s", line)
    properties = dict(chosen.kafka)
    if bootstrap is None and settings is None:
        bootstrap = embedded(chosen)
    if bootstrap is not None:
        properties["bootstrap.servers"] = bootstrap
    return KafkaCluster(properties), codec_for(chosen), chosen.topic_prefix


def codec_for(settings: Settings) -> Codec:
    """The codec of a program that reads everything and writes commands and agents, with the registry's ids where one is set."""
    prefix = settings.topic_prefix
    return Codec.of(settings, {f"{prefix}commands": Command, f"{prefix}agents": AgentSpec}, lazily=True)


def embedded(settings: Settings) -> str | None:
    """The broker that `turnlog up` runs from this folder, unless the environment names a cluster.

    One that is down is told too, at its last address: what listens at the default port meanwhile is somebody else's.
    """
    if BOOTSTRAP_VARIABLE in os.environ:
        return None
    return StateDir(settings.state_dir / "broker").last_address()
