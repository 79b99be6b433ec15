"""Settings of the loop service, beside those that all services share."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.loop.shell import Topics
from turnlog.models.settings import MODELS_HELP, ModelsSettings
from turnlog.settings import Settings


class LoopSettings(Settings):
    """Environment of `python -m services.loop`."""

    model_config = SettingsConfigDict(
        env_prefix="TURNLOG_", env_nested_delimiter="__", env_ignore_empty=True, extra="ignore", validate_default=True,
        hide_input_in_errors=True,
    )  # fmt: skip

    models: ModelsSettings = Field(default_factory=dict, description=MODELS_HELP)
    instance: str = Field(
        default_factory=socket.gethostname,
        description="Stable name of this loop (StatefulSet pod, host): with the ordinal it is the static group member.",
    )
    verify: Literal["fail", "park", "warn"] = Field(
        default="park",
        description="What a run that this build would decide otherwise leads to, after a restore: fail the process, park the run, or warn.",
    )
    blobs: Path | None = Field(
        default=None, description="Directory for states over 256 KiB; default: blobs under the state directory."
    )
    blobs_shared: bool = Field(
        default=False, description="The blob directory is on a file system that all hosts of the group share."
    )
    session_timeout_ms: int = Field(
        default=10_000,
        ge=1_000,
        description="After this long without a sign of life the group gives the partitions to others.",
    )
    snapshot_bytes: int = Field(
        default=64 * 1024, ge=1_024, description="Least bytes of steps before a run is snapshotted."
    )
    floor_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=64 * 1024,
        description="How far the restore floor may lie behind the journal's end.",
    )
    park_after_s: float = Field(default=60.0, gt=0, description="An idle run leaves memory after this long.")
    journal_keep_days: float = Field(
        default=90.0, gt=0, description="How long the journal keeps what no open run needs."
    )
    processes: int = Field(
        default=1, ge=1, le=256, description="Loop processes on this host; they share the partitions."
    )

    @property
    def topics(self) -> Topics:
        p = self.topic_prefix
        return Topics(
            p + "commands", p + "tool-results", p + "journal", p + "run-state", p + "tool-ledger", p + "command-outcomes",
            p + "dead-letters", p + "agents", p + "tool-manifests",
        )  # fmt: skip
