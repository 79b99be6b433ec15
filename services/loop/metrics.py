"""What Prometheus sees of the loop: the counters of `Shell`, and what its partitions look like now."""

from __future__ import annotations

from collections.abc import Callable

from services.loop.service import LoopService
from turnlog.obs import Metrics


def expose(metrics: Metrics, service: LoopService) -> Callable[[], None]:
    """Register everything; returns what must run now and then for the counters whose labels come up at run time."""
    s, c = service.shell, service.shell.counters
    plain = {
        "steps_total": ("Valid steps journaled", lambda: c.steps),
        "events_total": ("Events journaled", lambda: c.events),
        "runs_started_total": ("Runs started", lambda: c.runs_started),
        "tool_requests_total": ("Tool requests sent", lambda: c.requests),
        "model_calls_total": ("Model calls begun", lambda: c.model_calls),
        "snapshots_total": ("Snapshots written", lambda: c.snapshots),
        "rerouted_total": ("Commands sent on to the right partition", lambda: c.rerouted),
        "repeats_total": ("Inbound messages that repeated what was known", lambda: c.repeats),
        "divergences_total": ("Runs that this build would decide otherwise", lambda: c.divergences),
        "repairs_total": ("Projections written again over an older one", lambda: c.repairs),
        "loads_total": ("Runs folded from the journal", lambda: c.loads),
        "producers_renewed_total": (
            "Journal producers replaced because the fate of a record was unknown",
            lambda: s.writer.renewed,
        ),
        "effects_refused_total": ("Projections that Kafka refused for good", lambda: s.outbox.lost),
        "partitions": ("Partitions assigned", lambda: len(service.owners)),
        "partitions_unready": (
            "Partitions assigned and not live",
            lambda: sum(not o.ready for o in service.owners.values()),
        ),
        "open_runs": ("Runs held: in memory or parked", lambda: _runs(service)),
        "runs_stopped": ("Runs held that cannot go on under this build", lambda: _stopped(service)),
        "model_calls_open": ("Model calls under way", lambda: max(0, s.asks)),
        "effects_open": ("Effects without an acknowledgement", lambda: len(s.outbox)),
    }
    for name, (about, read) in plain.items():
        metrics.reading(name, about, read)
    tables = {
        "runs_ended_total": ("Runs ended, by status", "status", c.runs_ended),
        "dead_letters_total": ("Records sent to dead-letters, by reason", "reason", c.dead_letters),
        "ownership_ends_total": ("Ownerships that ended, by cause", "cause", c.ownership_ends),
    }
    shown: set[tuple[str, str]] = set()

    def refresh() -> None:
        for name, (about, label, counts) in tables.items():
            for word in list(counts):
                if (name, word) not in shown:
                    shown.add((name, word))
                    metrics.reading(name, about, _reader(counts, word), **{label: word})

    return refresh


def _reader(counts: dict[str, int], word: str) -> Callable[[], float]:
    return lambda: counts[word]


def _runs(service: LoopService) -> int:
    return sum(len(owner.table.slots) for owner in list(service.owners.values()) if owner.table is not None)


def _stopped(service: LoopService) -> int:
    tables = [owner.table for owner in list(service.owners.values()) if owner.table is not None]
    return sum(bool(slot.problem) for table in tables for slot in list(table.slots.values()))
