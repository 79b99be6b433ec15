"""A real single-node Apache Kafka (KRaft) as a child process: started in seconds, stopped without a trace.

    with EmbeddedBroker.start(Path(".turnlog/broker"), progress=print) as broker:
        client = Producer({"bootstrap.servers": broker.bootstrap})

The first start on a machine fetches Kafka (44 MB, verified by kafka.lock.json) and formats the storage; later starts
take about four seconds. Data stays in the state directory and serves the next start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from turnlog.local import jars
from turnlog.local.class_archive import class_archive
from turnlog.local.config import log4j_properties, server_properties
from turnlog.local.errors import AlreadyRunning, BrokerDied, BrokerSlow, DiskFull, LocalError, NoJava, PortTaken
from turnlog.local.java import Java, find_java
from turnlog.local.last_words import last_words, told
from turnlog.local.ports import LOOPBACK, free_ports, is_free
from turnlog.local.probe import probe
from turnlog.local.process import Child, ProcessName, size_of, tail
from turnlog.local.state import Identity, RunningBroker, StateDir

DEFAULT_PORT = 9092
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0
PORT_ATTEMPTS = 3

Progress = Callable[[str], None]


def quiet(_: str) -> None:
    """Progress for callers that do not want any."""


@dataclass(frozen=True)
class _Plan:
    """Everything that one state directory's broker is started with, again and again."""

    state: StateDir
    identity: Identity
    java: Java
    classpath: Sequence[Path]
    class_archive: Path | None
    kafka_version: str
    overrides: Mapping[str, str]
    heap_mb: int
    advertised_port: int | None
    tethered: bool
    progress: Progress = field(repr=False)

    def command(self, *program: str) -> list[str]:
        """`java` with our flags. SerialGC and the full compiler: the quickest start of those that keep throughput."""
        flags = [f"-Xmx{self.heap_mb}m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
        if self.class_archive is not None:
            flags += [f"-XX:SharedArchiveFile={self.class_archive}", "-Xshare:auto"]
        flags.append(f"-Dlog4j2.configurationFile={self.state.log4j_properties}")
        return [
            str(self.java.program),
            *self.java.flags,
            *flags,
            "-cp",
            os.pathsep.join(map(str, self.classpath)),
            *program,
        ]


class EmbeddedBroker:
    """One broker process and its state directory. Not thread-safe, except for `pause`, `resume` and `kill`."""

    def __init__(self, plan: _Plan, port: int, controller_port: int, child: Child) -> None:
        self._plan = plan
        self._controller_port = controller_port
        self._child = child
        self.port = port

    @classmethod
    def start(
        cls,
        state_dir: Path,
        *,
        port: int | None = None,
        advertised_port: int | None = None,
        overrides: Mapping[str, str] | None = None,
        heap_mb: int = 768,
        tethered: bool = True,
        timeout_s: float = START_TIMEOUT_S,
        progress: Progress = quiet,
    ) -> EmbeddedBroker:
        """Start a broker on loopback; it serves when this returns.

        `port` None takes the last start's port, else 9092, else a free one; 0 takes any free one; another number takes
        that or raises PortTaken. `advertised_port` is what clients are told to connect to, for a proxy in between.
        `overrides` are broker settings that win over ours. Tethered, the broker is killed by the kernel when this
        process ends in whatever way. Raises a LocalError, and then leaves no process behind.
        """
        state = StateDir(state_dir.absolute())
        state.prepare()
        with state.starting():
            _refuse_second(state, progress)
            lock = jars.Lock.read(jars.KAFKA_LOCK)
            java = find_java()
            classpath = jars.fetch(lock, progress=progress)
            plan = _Plan(
                state=state,
                identity=state.identity(lock.version),
                java=java,
                classpath=classpath,
                class_archive=class_archive(java, classpath, progress=progress),
                kafka_version=lock.version,
                overrides=dict(overrides or {}),
                heap_mb=heap_mb,
                advertised_port=advertised_port,
                tethered=tethered,
                progress=progress,
            )
            if not state.data.exists():
                _format(plan)
            return cls._start_on_some_port(plan, port, time.monotonic() + timeout_s)

    @classmethod
    def _start_on_some_port(cls, plan: _Plan, wish: int | None, deadline: float) -> EmbeddedBroker:
        """A free port may be gone when Kafka binds it; only a port that was asked for is then an error."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            port = _choose_port(wish, plan.identity.port) if attempt == 1 else free_ports(1)[0]
            try:
                return cls._launch(plan, port, _controller_port(port), deadline)
            except PortTaken:
                if wish or attempt == PORT_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    @classmethod
    def _launch(cls, plan: _Plan, port: int, controller_port: int, deadline: float) -> EmbeddedBroker:
        state = plan.state
        _write_configuration(plan, port, controller_port)
        seen = (size_of(state.log), size_of(state.output))
        plan.progress(f"starting Kafka {plan.kafka_version} on {LOOPBACK}:{port} (Java {plan.java.major})")
        began = time.monotonic()
        child = Child.start(
            plan.command("kafka.Kafka", str(state.server_properties)),
            name="kafka",
            output=state.output,
            cwd=state.root,
            tethered=plan.tethered,
        )
        try:
            _await_serving(plan, child, port, deadline, seen)
            broker = cls(plan, port, controller_port, child)
            broker._note_running()
        except BaseException:
            child.kill()
            raise
        plan.progress(f"Kafka serves after {time.monotonic() - began:.1f} s")
        return broker

    def _note_running(self) -> None:
        name = ProcessName.of(self.pid)
        running = RunningBroker(self.pid, name.started if name else "", self.port, self.bootstrap)
        self._plan.state.served_by(self._plan.identity, running, self._plan.kafka_version)

    @property
    def bootstrap(self) -> str:
        """What clients connect to: the advertised port, which is the broker's own unless a proxy stands before it."""
        return f"{LOOPBACK}:{self._plan.advertised_port or self.port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

    @property
    def log_path(self) -> Path:
        return self._plan.state.log

    @property
    def state_dir(self) -> Path:
        return self._plan.state.root

    def log_tail(self) -> str:
        """The end of the broker's log, for a report."""
        return tail(self.log_path)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop in order, by force after `timeout_s`. The process is gone when this returns; twice is harmless."""
        self._child.stop(timeout_s)
        self._plan.state.forget_running()

    def kill(self) -> None:
        """SIGKILL, as a crash of the process. What was acknowledged survives: the page cache belongs to the kernel."""
        self._child.kill()
        self._plan.state.forget_running()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered, until `resume`."""
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def restart(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start again on the same ports and data, stopping first if it still runs. Serves when this returns.

        Raises PortTaken if somebody took the port meanwhile: clients know this one, so no other is tried. Raises
        AlreadyRunning if somebody started another broker of this state directory meanwhile.
        """
        self._child.stop(STOP_TIMEOUT_S)
        with self._plan.state.starting():
            noted = self._plan.state.noted()
            if noted is not None and noted.pid != self.pid:
                _refuse_second(self._plan.state, self._plan.progress)
            self._plan.state.forget_running()
            fresh = self._launch(self._plan, self.port, self._controller_port, time.monotonic() + timeout_s)
            self._child = fresh._child

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def find_running(state_dir: Path) -> RunningBroker | None:
    """The live broker that somebody runs from `state_dir`, or None."""
    return StateDir(state_dir.absolute()).running()


def _refuse_second(state: StateDir, progress: Progress) -> None:
    noted = state.noted()
    if noted is None:
        return
    if noted.alive:
        raise AlreadyRunning(
            f"A broker already serves {state.root}: {noted.bootstrap}, pid {noted.pid}.",
            f"use it (TURNLOG_KAFKA__BOOTSTRAP_SERVERS={noted.bootstrap}), or stop it (kill {noted.pid})",
            bootstrap=noted.bootstrap,
            pid=noted.pid,
        )
    progress(f"the last broker here (pid {noted.pid}) did not stop in order; its data is recovered")
    state.forget_running()


def _choose_port(wish: int | None, last: int) -> int:
    if wish:
        if not is_free(wish):
            raise PortTaken(f"Port {wish} is taken.", "stop what listens there, or leave the port to us")
        return wish
    candidates = [last, DEFAULT_PORT] if wish is None else []
    return next((port for port in candidates if port and is_free(port)), None) or free_ports(1)[0]


def _controller_port(port: int) -> int:
    """Nobody but the broker itself connects to it."""
    return next(candidate for candidate in free_ports(2) if candidate != port)


def _write_configuration(plan: _Plan, port: int, controller_port: int, data: Path | None = None) -> None:
    state = plan.state
    state.log4j_properties.write_text(log4j_properties(state.log))
    state.server_properties.write_text(
        server_properties(
            port=port,
            advertised_port=plan.advertised_port or port,
            controller_port=controller_port,
            data=data or state.data,
            overrides=plan.overrides,
        )
    )


def _format(plan: _Plan) -> None:
    """Give new storage its cluster id. In a folder beside it first: a start that is cut off here leaves nothing half."""
    state = plan.state
    plan.progress("formatting new storage")
    shutil.rmtree(state.unfinished_data, ignore_errors=True)
    _write_configuration(plan, DEFAULT_PORT, DEFAULT_PORT + 1, data=state.unfinished_data)
    command = plan.command("kafka.tools.StorageTool", "format", "-t", plan.identity.cluster_id)
    done = subprocess.run(
        [*command, "-c", str(state.server_properties)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        raise _reason(plan, (done.stdout + done.stderr)[-4000:], DEFAULT_PORT)
    state.unfinished_data.rename(state.data)


def _await_serving(plan: _Plan, child: Child, port: int, deadline: float, seen: tuple[int, int]) -> None:
    """Wait until our broker, and no stranger on its port, tells clients where to connect."""
    state = plan.state
    while True:
        status = child.poll()
        if status is not None:
            said = tail(state.output, since=seen[1]) + "\n" + tail(state.log, since=seen[0])
            raise _reason(plan, said.strip(), port, status)
        answer = probe(LOOPBACK, port)
        if answer is not None and answer.brokers and answer.cluster_id == plan.identity.cluster_id:
            return
        if time.monotonic() > deadline:
            raise BrokerSlow(
                f"Kafka (pid {child.pid}) does not serve yet; it was stopped.",
                f"is the machine very busy? The log is {state.log}",
                detail=last_words(state.log, since=seen[0]),
            )
        time.sleep(0.1)


def _reason(plan: _Plan, said: str, port: int, status: int | None = None) -> LocalError:
    """Why the broker ended, in our words where its own are known."""
    root = plan.state.root
    if "Address already in use" in said:
        return PortTaken(f"Port {port} is taken.", "stop what listens there, or leave the port to us")
    if "No space left on device" in said:
        return DiskFull(f"The disk of {root} is full.", "free some space; what was acknowledged is kept")
    if "UnsupportedClassVersionError" in said:
        return NoJava(f"Java {plan.java.major} is too old for this Kafka.", "set TURNLOG_JAVA=bundled")
    if "Failed to acquire lock" in said:
        return BrokerDied(f"Another Kafka uses {plan.state.data}.", f"find it: pgrep -f {plan.state.server_properties}")
    if "insufficient memory" in said or "Could not reserve enough space" in said:
        return BrokerDied(f"No memory for a broker with {plan.heap_mb} MB of heap.", "free some, or ask for less heap")
    how = "" if status is None else f" with signal {-status}" if status < 0 else f" with status {status}"
    return BrokerDied(
        f"Kafka ended{how} before it served.", f"read {plan.state.log}; data is in {root}", detail=told(said)
    )
