"""The worker's metrics: `turnlog_worker_...`, labelled by toolset, and by tool where a tool ran."""

from __future__ import annotations

from turnlog.obs import Metrics, Spread, Tally
from turnlog.tools.toolset import Tool, Toolset


class Counts:
    """Cheap counters. Written by the poll thread, `ran` under the desk's lock."""

    def __init__(self, metrics: Metrics, toolset: Toolset) -> None:
        self._metrics = metrics
        self._toolset = toolset.name
        self.requests = self._tally("requests_total", "Request records taken.")
        self.known = self._tally("answered_from_known_total", "Requests answered with a result published before.")
        self.joined = self._tally("joined_total", "Duplicates that joined a call under way.")
        self.late = self._tally("refused_late_total", "Requests refused because their time was over.")
        self.unknown_tool = self._tally("unknown_tool_total", "Requests for a tool this worker does not have.")
        self.timeouts = self._tally("timeouts_total", "Requests answered timed_out at their deadline.")
        self.skipped = self._tally("skipped_total", "Records delivered again within one ownership, and passed over.")
        self.gone = self._tally("positions_gone_total", "Positions found outside the log.")
        self.commit_failures = self._tally("commit_failures_total", "Commits that failed (and went again).")
        self.lost_letters = self._tally("dead_letters_refused_total", "Dead letters that Kafka refused.")
        self._by_tool = {tool.name: self._of_tool(tool) for tool in toolset}

    def _tally(self, name: str, about: str) -> Tally:
        return self._metrics.tally(name, about, toolset=self._toolset)

    def _of_tool(self, tool: Tool) -> tuple[Tally, Tally, Spread]:
        about, toolset = "Calls that ended, by status.", self._toolset
        return (
            self._metrics.tally("calls_total", about, toolset=toolset, tool=tool.name, status="ok"),
            self._metrics.tally("calls_total", about, toolset=toolset, tool=tool.name, status="error"),
            self._metrics.spread("call_seconds", "Time a call ran.", toolset=toolset, tool=tool.name),
        )

    def ran(self, tool: Tool, ok: bool, seconds: float) -> None:
        """A call of the tool ended."""
        good, bad, spread = self._by_tool[tool.name]
        (good if ok else bad).count += 1
        spread.note(seconds)

    def dead_letter(self, reason: str) -> None:
        about = "Requests sent to dead-letters."
        self._metrics.tally("dead_letters_total", about, toolset=self._toolset, reason=reason).count += 1
