"""One supervised service: a child process with a log file, a health port, and a wish whether it should be running."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turnlog.local.errors import ChildFailed
from turnlog.local.last_words import last_words
from turnlog.local.ports import LOOPBACK
from turnlog.local.process import Child, size_of

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
MAX_LOG_BYTES = 20_000_000
_POLL_S = 0.05


@dataclass(frozen=True)
class ServiceSpec:
    """What to run. `arguments` go to this Python: `("-m", "services.loop")`. `env` is added to the system's."""

    name: str
    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = READY_TIMEOUT_S
    stop_timeout_s: float = STOP_TIMEOUT_S


class Service:
    """A service under supervision. `kill`, `stop` and `start` say what is wanted, so that a watcher can tell a death
    from a wish. Methods may be called from any thread; those that change the process wait for each other."""

    def __init__(self, spec: ServiceSpec, folder: Path, env: Mapping[str, str]) -> None:
        self.spec = spec
        self.log_path = folder / f"{spec.name}.log"
        self._port_file = folder / f"{spec.name}.port"
        self._env = {**env, **spec.env, "TURNLOG_OBS__PORT": "0", "TURNLOG_OBS__PORT_FILE": str(self._port_file)}
        self._lock = threading.RLock()
        self._child: Child | None = None
        self._wanted = False
        self._log_began = 0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int:
        """The process id of the last start. Raises LookupError before the first."""
        if self._child is None:
            raise LookupError(f"{self.name} was never started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    @property
    def died(self) -> bool:
        """Whether it is gone although nobody wanted that."""
        return self._wanted and not self.alive

    def start(self, *, wait: bool = True) -> None:
        """Start it unless it runs; with `wait`, return when it is ready. Raises ChildFailed, and then it is stopped."""
        with self._lock:
            if not self.alive:
                self._launch()
            self._wanted = True
        if wait:
            try:
                self.wait_ready()
            except ChildFailed:
                self.kill()
                raise

    def _launch(self) -> None:
        self._port_file.unlink(missing_ok=True)
        if size_of(self.log_path) > MAX_LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        self._log_began = size_of(self.log_path)
        self._child = Child.start(
            [sys.executable, *self.spec.arguments], name=self.name, output=self.log_path, env=self._env
        )

    def wait_ready(self) -> None:
        """Wait until `/health/ready` says 200. Raises ChildFailed if it dies before, or is not ready in time."""
        deadline = time.monotonic() + self.spec.ready_timeout_s
        reasons = "it does not answer"
        while time.monotonic() < deadline:
            if not self.alive:
                raise self.failure("ended before it was ready")
            ready, reasons = self.readiness()
            if ready:
                return
            time.sleep(_POLL_S)
        raise self.failure(f"is not ready after {self.spec.ready_timeout_s:.0f} s ({reasons})")

    def readiness(self) -> tuple[bool, str]:
        """Whether it calls itself ready, and what it says is missing."""
        port = self.health_port
        if port is None:
            return False, "it has no health port yet"
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2.0)
        try:
            connection.request("GET", "/health/ready")
            answer = connection.getresponse()
            body = answer.read(65_536)
        except (OSError, http.client.HTTPException) as error:
            return False, f"its health port does not answer: {error}"
        finally:
            connection.close()
        return answer.status == 200, _reasons(body)

    @property
    def health_port(self) -> int | None:
        """Where it serves health and metrics, once it has said so."""
        try:
            return int(self._port_file.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def stop(self) -> None:
        """SIGTERM, SIGKILL after the service's deadline. Gone when this returns; not running is no error."""
        with self._lock:
            self._wanted = False
            if self._child is not None:
                self._child.stop(self.spec.stop_timeout_s)

    def ask_to_stop(self) -> None:
        """SIGTERM only, so that several services can stop at once."""
        self._wanted = False
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        """SIGKILL: a crash on purpose. Gone when this returns."""
        with self._lock:
            self._wanted = False
            if self._child is not None:
                self._child.kill()

    def pause(self) -> None:
        """SIGSTOP."""
        if self._child is not None:
            self._child.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self._child is not None:
            self._child.resume()

    def failure(self, what: str) -> ChildFailed:
        """An error that tells how it ended and what it said last."""
        status = self._child.poll() if self._child is not None else None
        how = "" if status is None else f", signal {-status}" if status < 0 else f", exit status {status}"
        said = last_words(self.log_path, since=self._log_began)
        return ChildFailed(f"{self.name} {what}{how}.", f"read {self.log_path}", detail=said)


def _reasons(body: bytes) -> str:
    try:
        reasons = json.loads(body).get("reasons", {})
        return ", ".join(f"{name}: {why}" for name, why in reasons.items())
    except (ValueError, AttributeError):
        return "its health answer cannot be read"


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `extra`, and output that reaches the log file at once."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **extra}
