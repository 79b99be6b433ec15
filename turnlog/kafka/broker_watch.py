"""Notices clients of the library that know no broker any more, which they never recover from.

An answer to a metadata request that names no broker (all are fenced for a moment: a rolling upgrade, a single node that stood
still for some seconds) makes librdkafka forget every broker it knew, its bootstrap addresses too; at times it then asks
nobody anything until the process ends (https://github.com/confluentinc/librdkafka/issues/5301, seen with 2.16). Nothing
reports it: a group member just never hears of its group again. The statistics show it, as a list without brokers.

One such client is reason enough to give the process up: the group member of the cluster is told, its `poll` raises Fatal
with the code NO_BROKER_KNOWN, and whoever watches over the process starts it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from turnlog.kafka.port import Fatal

NO_BROKER_KNOWN: Final = "NO_BROKER_KNOWN"
STATISTICS_MS: Final = 3_000
_BLIND: Final = 3
"""So many statistics in a row without a broker. While a client begins again at its bootstrap addresses one may be."""
_SOURCES: Final = ('"source":"learned"', '"source":"configured"')
"""How a broker of the cluster stands in the statistics; others are the library's own (`logical`: the group's coordinator)."""


class BrokerWatch:
    """One per cluster. Its parts are called in whatever thread polls a client."""

    def __init__(self) -> None:
        self._tell: list[Callable[[Fatal], None]] = []

    def tell(self, listener: Callable[[Fatal], None]) -> None:
        """Call this when a client is lost."""
        self._tell.append(listener)

    def client(self, name: str) -> Mapping[str, object]:
        """Properties of a client that is watched."""
        blind = 0

        def take(statistics: str) -> None:
            nonlocal blind
            blind = 0 if any(source in statistics for source in _SOURCES) else blind + 1
            if blind == _BLIND:
                self._lost(name)

        return {"statistics.interval.ms": STATISTICS_MS, "stats_cb": take}

    def _lost(self, name: str) -> None:
        problem = f"client {name} knows no broker any more and will not ask for any: only a new process helps (librdkafka issue 5301)"
        for tell in list(self._tell):
            tell(Fatal(problem, NO_BROKER_KNOWN))
