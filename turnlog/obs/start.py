"""Start what a service shows of itself: logging configured, metrics and health made, the server listening."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from turnlog.obs.health import Health
from turnlog.obs.logs import configure_logging
from turnlog.obs.metrics import Metrics
from turnlog.obs.server import ObsServer, serve
from turnlog.settings import Settings, unread_variables

_log = logging.getLogger(__name__)


class Observability(NamedTuple):
    """A service's health, metrics and their server. `close` stops the server only."""

    health: Health
    metrics: Metrics
    server: ObsServer

    def close(self) -> None:
        self.server.close()


def observe(service: str, settings: Settings) -> Observability:
    """`service` is a word for metric names and log lines (`loop`, `worker`). Raises OSError when the port is taken.

    Says in the log which variables of the environment nobody reads although they look like ours."""
    configure_logging(service, settings.log.level, settings.log.format)
    for line in unread_variables(os.environ):
        _log.warning("%s", line)
    health, metrics = Health(), Metrics(service)
    obs = settings.obs
    return Observability(health, metrics, serve(health, metrics, obs.host, obs.port, obs.port_file))
