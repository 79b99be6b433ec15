"""Metrics, structured logs, health: what every service shows of itself, and one call that starts all three."""

from turnlog.obs.health import Condition, Health, Heartbeat
from turnlog.obs.logs import bound, configure_logging
from turnlog.obs.metrics import Metrics, Spread, Tally
from turnlog.obs.server import ObsServer, serve
from turnlog.obs.start import Observability, observe

__all__ = [
    "Condition",
    "Health",
    "Heartbeat",
    "Metrics",
    "ObsServer",
    "Observability",
    "Spread",
    "Tally",
    "bound",
    "configure_logging",
    "observe",
    "serve",
]
