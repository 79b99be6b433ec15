"""Child processes that leave nothing behind: started tethered to their owner, stopped within a deadline.

The broker and every supervised service is a `Child`. Its output goes to a file, never to a pipe that somebody would
have to read. A child gets a session of its own, so that Ctrl-C on the terminal reaches only the owner, who stops the
children in order.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TETHER = Path(__file__).with_name("tether.py")
TAIL_LINES = 25
TAIL_BYTES = 64 * 1024


class Child:
    """One running child process. All methods may be called from any thread."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self._process = process
        self.name = name

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        name: str,
        output: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        tethered: bool = True,
    ) -> Child:
        """Start `argv`, appending its stdout and stderr to `output`.

        Tethered, the kernel kills the child when this process ends in whatever way. Raises OSError when the program
        cannot be started; a program that ends at once is found by `poll`.
        """
        command = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), *argv] if tethered else list(argv)
        with output.open("ab") as sink:
            options: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": sink,
                "stderr": subprocess.STDOUT,
                "env": dict(env) if env is not None else None,
                "cwd": cwd,
                "start_new_session": True,
            }
            return cls(_SPAWNER.call(lambda: subprocess.Popen(command, **options)), name)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while the child lives. Never blocks."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        return self.poll() is None

    def wait(self, timeout_s: float) -> int | None:
        """Wait up to `timeout_s` for the end; the exit status, or None if it still lives."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, then SIGKILL after `timeout_s`. The child is gone and reaped when this returns."""
        self.terminate()
        status = self.wait(timeout_s)
        return self.kill() if status is None else status

    def terminate(self) -> None:
        """SIGTERM, and no waiting. A paused process is woken, or it would not see it."""
        self.resume()
        self._signal(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL, and wait until the kernel has taken the process away."""
        self._signal(signal.SIGKILL)
        return self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: the process keeps its sockets and its memory and does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT; harmless if the process was not paused."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            self._process.send_signal(number)


class _Spawner:
    """Starts processes from one thread that lives as long as the interpreter.

    The kernel's parent-death signal fires when the *thread* that forked ends, not the process. Started from a helper
    thread, a broker would be killed as soon as that thread is done.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._owner_pid = 0  # a forked copy of this process has no thread yet

    def call(self, spawn: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._owner_pid != os.getpid():
                self._owner_pid = os.getpid()
                threading.Thread(target=self._run, name="spawner", daemon=True).start()
        request = _Request(spawn)
        self._requests.put(request)
        request.done.wait()
        if request.error is not None:
            raise request.error
        assert request.process is not None
        return request.process

    def _run(self) -> None:
        while True:
            request = self._requests.get()
            try:
                request.process = request.spawn()
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                request.error = error
            request.done.set()


class _Request:
    """One start on its way to the spawner's thread and back."""

    def __init__(self, spawn: Callable[[], subprocess.Popen[bytes]]) -> None:
        self.spawn = spawn
        self.done = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self.error: BaseException | None = None


_SPAWNER = _Spawner()


@dataclass(frozen=True)
class ProcessName:
    """A process id that cannot be mistaken for a later process with the same number."""

    pid: int
    started: str  # clock ticks since boot, as the kernel prints them; empty where there is no /proc

    @classmethod
    def of(cls, pid: int) -> ProcessName | None:
        """The name of a live process, or None. A zombie does not count as live."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return cls(pid, "") if sys.platform != "linux" and _exists(pid) else None
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid, fields[19])

    @property
    def alive(self) -> bool:
        return ProcessName.of(self.pid) == self


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def tail(path: Path, lines: int = TAIL_LINES, *, since: int = 0) -> str:
    """The last lines of a log file, bounded in bytes too; empty if there is none.

    `since` is a size the file had before: only what was written after it counts, unless the file was rolled over.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - TAIL_BYTES, since if since <= size else 0))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def size_of(path: Path) -> int:
    """A file's size, 0 if it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
