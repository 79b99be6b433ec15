"""Settings of the tool worker, beside those all services share."""

from __future__ import annotations

from pydantic import BaseModel, Field

from turnlog.settings import Settings
from turnlog.tools.desk import WorkerLimits

_MIB = 1024 * 1024


class WorkerSection(BaseModel):
    """`TURNLOG_WORKER__...`"""

    tasks: int = Field(default=256, ge=1, description="Async calls that run at once; the rest queues.")
    threads: int = Field(default=16, ge=1, description="Calls of plain functions that run at once, one thread each.")
    under_way: int = Field(default=2000, ge=1, description="Requests taken and not answered; beyond, reading pauses.")
    under_way_mb: int = Field(default=64, ge=1, description="The same in MiB of requests.")
    known: int = Field(
        default=20_000, ge=1, description="Results remembered to answer repeated requests without a call."
    )
    known_mb: int = Field(default=64, ge=1, description="The same in MiB of results.")
    commit_every_s: float = Field(default=0.1, gt=0, description="Least pause between commits of positions.")
    drain_s: float = Field(default=10.0, gt=0, description="How long a rebalance or SIGTERM waits for calls that run.")
    instance_id: str | None = Field(
        default=None,
        description="Stable name of this process in its group: one that was killed goes on at once when it is back. "
        "Then SIGTERM does not give its partitions to others, either.",
    )

    def limits(self) -> WorkerLimits:
        return WorkerLimits(
            tasks=self.tasks,
            threads=self.threads,
            under_way=self.under_way,
            under_way_bytes=self.under_way_mb * _MIB,
            known=self.known,
            known_bytes=self.known_mb * _MIB,
            commit_every_s=self.commit_every_s,
            drain_s=self.drain_s,
        )


class WorkerSettings(Settings):
    """The tool worker's settings."""

    worker: WorkerSection = Field(default_factory=WorkerSection, description="The tool worker.")
