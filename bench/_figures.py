"""Figures of a benchmark: percentiles, processor time and memory of processes, the state of the machine. No Kafka in here."""

from __future__ import annotations

import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KIB_PER_MB = 1024

Figures = dict[str, Any]
"""One phase's figures by name, as they are printed as JSON."""


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie (nearest rank). Raises ValueError for none."""
    if not sorted_values:
        raise ValueError("no values: nothing was measured")
    rank = max(1, -(-len(sorted_values) * round(share * 1000) // 1000))
    return sorted_values[min(rank, len(sorted_values)) - 1]


def latencies(seconds: Sequence[float]) -> Figures:
    """p50, p95 and p99 in milliseconds."""
    found = sorted(seconds)
    return {f"p{share}_ms": round(percentile(found, share / 100) * 1000, 2) for share in (50, 95, 99)}


def cpu_seconds(stat: str) -> float:
    """User and system time of a process so far, from the text of its /proc/<pid>/stat."""
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and brackets
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def peak_mb(status: str) -> float:
    """The most memory a process ever held (VmHWM), from the text of its /proc/<pid>/status."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / KIB_PER_MB
    return 0.0  # a zombie has none


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


class Meter:
    """Processor time of named processes between its making and `read`. All of them must live until then."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: cpu_seconds(_proc(pid, "stat")) for name, pid in self._pids.items()}
        self._began = time.monotonic()

    def read(self, runs: int) -> Figures:
        """`cpu_s_per_run` of all and of each, how busy the machine was with them (in cores), and their peak memory."""
        seconds = time.monotonic() - self._began
        used = {name: cpu_seconds(_proc(pid, "stat")) - self._before[name] for name, pid in self._pids.items()}
        peaks = {name: round(peak_mb(_proc(pid, "status")), 1) for name, pid in self._pids.items()}
        return {
            "cpu_s_per_run": round(sum(used.values()) / runs, 6),
            "cpu_ms_per_run_by_process": {name: round(each / runs * 1000, 3) for name, each in used.items()},
            "cores_used": round(sum(used.values()) / seconds, 2),
            "peak_mb": round(sum(peaks.values()), 1),
            "peak_mb_by_process": peaks,
        }


def middle(rounds: Sequence[Figures]) -> Figures:
    """The median of every figure over the rounds, nested ones too; what is no number is taken from the last round."""
    last = rounds[-1]
    return {name: _middle_of([each[name] for each in rounds if name in each], last[name]) for name in last}


def _middle_of(values: Sequence[Any], last: Any) -> Any:
    if isinstance(last, dict):
        return middle(values)
    if isinstance(last, int | float) and not isinstance(last, bool):
        return round(statistics.median(values), 6)
    return last


def recoveries(rounds: Sequence[Figures]) -> Figures:
    """Rounds of the same kill: medians, but of what must never happen the sum; a round that did not end makes the time None."""
    each = [one["seconds"] for one in rounds]
    rest = middle([{name: value for name, value in one.items() if name != "seconds"} for one in rounds])
    never = {name: sum(one[name] for one in rounds) for name in ("lost", "doubled")}
    return {"seconds": None if None in each else statistics.median(each), "seconds_each": each, **rest, **never}


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the rounds' own ratios: what slowed a whole round down counts for both sides."""
    return round(statistics.median(a / b for a, b in zip(over, under, strict=True)), 3)


def machine() -> Figures:
    """What figures must be read with: cores and how busy the machine is with anything at all."""
    return {
        "cores": os.cpu_count(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "python": platform.python_version(),
    }


def quiet_clients() -> None:
    """Connections that end because a broker or a client is stopped on purpose are no news here."""
    logging.getLogger("turnlog.kafka").setLevel(logging.ERROR)


def progress(text: str) -> None:
    """A line for whoever waits; standard output is for the figures."""
    print(text, file=sys.stderr, flush=True)


def table(figures: Mapping[str, Any], title: str = "") -> list[str]:
    """Figures as lines of text, nested ones indented."""
    lines = [title] if title else []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            lines += [f"  {name}", *(f"  {line}" for line in table(value))]
        else:
            lines.append(f"  {name:32} {value}")
    return lines
