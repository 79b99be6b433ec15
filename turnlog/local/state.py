"""What a broker leaves in its state directory, and what the next one concludes from it.

cluster.json         which cluster the data is, the newest Kafka that wrote it, the port of the last start
broker.pid           the process that serves it now, by pid and start time
data/                Kafka's logs, formatted elsewhere and renamed into place: never half formatted
server.properties, log4j2.properties
broker.log           Kafka's own log; broker.out is what the JVM prints when it cannot even start
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from turnlog.local.errors import DiskFull, ForeignData, LocalError
from turnlog.local.process import ProcessName

ROOM_MB = 512  # Kafka preallocates little, but a broker that meets a full disk stops for good


@dataclass(frozen=True)
class Identity:
    """Which cluster a state directory holds."""

    cluster_id: str
    kafka_version: str
    port: int = 0

    @classmethod
    def new(cls, kafka_version: str) -> Identity:
        # Kafka's ids are 128 random bits in URL-safe base64; one that begins with a dash would read as an option.
        raw = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        return cls(raw.replace("-", "x"), kafka_version)


@dataclass(frozen=True)
class RunningBroker:
    """A broker that somebody runs from a state directory."""

    pid: int
    started: str
    port: int
    bootstrap: str

    @property
    def alive(self) -> bool:
        return ProcessName(self.pid, self.started).alive


@dataclass(frozen=True)
class StateDir:
    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def unfinished_data(self) -> Path:
        return self.root / "data.new"

    @property
    def log(self) -> Path:
        return self.root / "broker.log"

    @property
    def output(self) -> Path:
        return self.root / "broker.out"

    @property
    def server_properties(self) -> Path:
        return self.root / "server.properties"

    @property
    def log4j_properties(self) -> Path:
        return self.root / "log4j2.properties"

    @property
    def _identity(self) -> Path:
        return self.root / "cluster.json"

    @property
    def _pid(self) -> Path:
        return self.root / "broker.pid"

    def prepare(self) -> None:
        """Create the directory and see that there is room. Raises DiskFull, or LocalError if it cannot be written."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalError(
                f"Cannot create {self.root}: {error.strerror}.", "choose a state directory that you may write"
            ) from error
        free_mb = shutil.disk_usage(self.root).free >> 20
        if free_mb < ROOM_MB:
            raise DiskFull(
                f"Only {free_mb} MB free at {self.root}; the broker wants {ROOM_MB}.",
                "free some space, or choose a state directory on another disk",
            )

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Hold the directory while a broker is being started: of two at once, the second then finds the first alive."""
        with (self.root / ".starting").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def identity(self, kafka_version: str) -> Identity:
        """The directory's cluster, a new one if it is empty. Raises ForeignData if this Kafka must not open it."""
        try:
            known = Identity(**json.loads(self._identity.read_text()))
        except FileNotFoundError:
            if self.data.exists():
                raise ForeignData(
                    f"{self.data} holds data without a {self._identity.name} beside it: not of an embedded broker.",
                    "choose another state directory, or move that folder away",
                ) from None
            known = Identity.new(kafka_version)
            self.remember(known)
        except (ValueError, TypeError) as error:
            raise ForeignData(f"{self._identity} cannot be read: {error}.", "move the directory away") from error
        if _numbers(known.kafka_version) > _numbers(kafka_version):
            raise ForeignData(
                f"{self.root} was written by Kafka {known.kafka_version}; this is {kafka_version}, which may not read it.",
                "use the newer Turnlog again, choose another state directory, or delete this one with all its runs",
            )
        return known

    def remember(self, identity: Identity) -> None:
        _write(self._identity, json.dumps(asdict(identity)))

    def served_by(self, identity: Identity, running: RunningBroker, kafka_version: str) -> None:
        """Note who serves the data now, and that this version has written it."""
        self.remember(replace(identity, kafka_version=kafka_version, port=running.port))
        _write(self._pid, json.dumps(asdict(running)))

    def running(self) -> RunningBroker | None:
        """The live broker of this directory, or None. A stale pid file, also one whose number lives again as another
        process, counts as none."""
        found = self.noted()
        return found if found is not None and found.alive else None

    def last_address(self) -> str | None:
        """Where this directory's broker serves, or served last and will again; None if there never was one."""
        running = self.running()
        if running is not None:
            return running.bootstrap
        try:
            known = Identity(**json.loads(self._identity.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return f"127.0.0.1:{known.port}" if known.port else None

    def noted(self) -> RunningBroker | None:
        """Whom the pid file names, dead or alive."""
        try:
            return RunningBroker(**json.loads(self._pid.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def forget_running(self) -> None:
        self._pid.unlink(missing_ok=True)


def stop_running(state_dir: Path, timeout_s: float = 20.0) -> bool:
    """Stop a broker that another process started from `state_dir`. False if there is none. Gone when this returns."""
    state = StateDir(state_dir)
    found = state.running()
    if found is None:
        return False
    for number, patience_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, number)
        deadline = time.monotonic() + patience_s
        while found.alive and time.monotonic() < deadline:
            time.sleep(0.05)
    state.forget_running()
    return True


def _write(path: Path, text: str) -> None:
    """Replace a small file whole: a reader finds the old or the new one."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text + "\n")
    fresh.replace(path)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
