"""Runs a whole Turnlog on this machine: the broker, then the services, watched until they are stopped in order.

    with System.start(state_dir, services, prepare=create_topics, progress=print) as system:
        system.child("loop").kill()      # a crash on purpose
        system.child("loop").start()
        system.check()                     # raises what the watcher found

Another cluster named by `TURNLOG_KAFKA__BOOTSTRAP_SERVERS` takes the embedded broker's place. A service that dies unwanted
is restarted a few times, or fails the system at once, as the caller chose. Whatever happens to this process, the kernel
takes its children with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TextIO

from turnlog.local.broker import EmbeddedBroker, Progress, quiet
from turnlog.local.errors import AlreadyRunning, BrokerDied, LocalError, SystemRunning
from turnlog.local.last_words import last_words
from turnlog.local.service import Service, ServiceSpec, child_environment

BOOTSTRAP_VARIABLE = "TURNLOG_KAFKA__BOOTSTRAP_SERVERS"
SECRET_VARIABLE = "TURNLOG_SECRET"
WATCH_S = 0.2
RESTARTS = 5
RESTARTS_WITHIN_S = 60.0

Prepare = Callable[[Mapping[str, str]], None]
"""Makes a fresh cluster usable, that is creates the topics. Gets the environment that services get."""


class System:
    """The broker (unless another cluster is used) and the services of one state directory."""

    def __init__(
        self,
        state_dir: Path,
        broker: EmbeddedBroker | None,
        env: Mapping[str, str],
        *,
        restart: bool,
        progress: Progress,
        hold: TextIO | None = None,
    ) -> None:
        self.state_dir = state_dir
        self._hold = hold
        self.broker = broker
        self.env = dict(env)
        self.failed = threading.Event()
        self._progress = progress
        self._restart = restart
        self._failure: LocalError | None = None
        self._services: dict[str, Service] = {}
        self._broker_wanted = broker is not None
        self._restarts: deque[float] = deque(maxlen=RESTARTS)
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)

    @classmethod
    def start(
        cls,
        state_dir: Path,
        services: Sequence[ServiceSpec] = (),
        *,
        prepare: Prepare | None = None,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        broker_overrides: Mapping[str, str] | None = None,
        reuse_broker: bool = False,
        restart: bool = False,
        progress: Progress = quiet,
    ) -> System:
        """Start everything; all services are ready when this returns. Raises a LocalError and then leaves nothing.

        `services` start at the same time and stop before the broker. `env` goes to each of them. `reuse_broker` uses a
        broker that somebody already runs from this state directory, and does not stop it. `restart` restarts what dies
        unwanted, up to five times a minute; without it the first death is a failure, which `check` raises. Raises
        SystemRunning if another System lives in this state directory: their loops would throw each other out.
        """
        state_dir = state_dir.absolute()
        with _usable(state_dir):
            state_dir.mkdir(parents=True, exist_ok=True)
            hold = _held(state_dir)
            try:
                broker, bootstrap = _cluster(state_dir, port, broker_overrides, reuse_broker, progress)
            except BaseException:
                hold.close()
                raise
        given = {BOOTSTRAP_VARIABLE: bootstrap, "TURNLOG_STATE_DIR": str(state_dir), **(env or {})}
        given.setdefault(SECRET_VARIABLE, os.environ.get(SECRET_VARIABLE) or _secret(state_dir))
        system = cls(state_dir, broker, given, restart=restart, progress=progress, hold=hold)
        try:
            if prepare is not None:
                prepare(given)
            system.add(*services)
        except BaseException:
            system.stop()
            raise
        system._watcher.start()
        return system

    @property
    def bootstrap(self) -> str:
        return self.env[BOOTSTRAP_VARIABLE]

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of a process that shall work with this system, such as a `turnlog` command."""
        return child_environment(self.env)

    def add(self, *specs: ServiceSpec) -> None:
        """Start more services, all at once, and wait until each is ready. Raises ChildFailed."""
        logs = self.state_dir / "logs"
        logs.mkdir(exist_ok=True)
        added = [Service(spec, logs, self.environment) for spec in specs]
        for service in added:
            if service.name in self._services:
                raise ValueError(f"there is a service {service.name} already")
        began = time.monotonic()
        for service in added:
            self._progress(f"starting {service.name} (log: {_shown(service.log_path)})")
            self._services[service.name] = service
            service.start(wait=False)
        for service in added:
            service.wait_ready()
        if added:
            self._progress(f"ready after {time.monotonic() - began:.1f} s")

    def child(self, name: str) -> Service:
        """A service by its name. Raises KeyError."""
        return self._services[name]

    @property
    def services(self) -> list[Service]:
        return list(self._services.values())

    def kill_broker(self) -> None:
        """SIGKILL the embedded broker on purpose; `restart_broker` brings it back. Raises LookupError without one."""
        self._broker_wanted = False
        self._own_broker().kill()

    def restart_broker(self) -> None:
        """Start the embedded broker again on its port and data. It serves when this returns."""
        self._own_broker().restart()
        self._broker_wanted = True

    def _own_broker(self) -> EmbeddedBroker:
        if self.broker is None:
            raise LookupError("this system uses a cluster that it did not start")
        return self.broker

    def check(self) -> None:
        """Raise what the watcher found, if anything. Cheap; for the loops of drivers."""
        if self._failure is not None:
            raise self._failure

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until something fails for good, and raise that; return after `timeout_s`."""
        self.failed.wait(timeout_s)
        self.check()

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_S):
            try:
                with _usable(self.state_dir):
                    self._tend()
            except LocalError as error:
                self._failure = error
                self.failed.set()
                return

    def _tend(self) -> None:
        """Find what died unwanted; restart it or raise."""
        if self._broker_wanted and self.broker is not None and not self.broker.alive:
            error = BrokerDied("Kafka ended.", f"read {self.broker.log_path}", detail=last_words(self.broker.log_path))
            self._may_restart(error)
            self.broker.restart()
        for service in self.services:
            if service.died and not self._stopping.is_set():
                self._may_restart(service.failure("ended"))
                service.start()

    def _may_restart(self, error: LocalError) -> None:
        """Tell, and raise unless restarts are wished for and not used up."""
        now = time.monotonic()
        used_up = len(self._restarts) == RESTARTS and now - self._restarts[0] < RESTARTS_WITHIN_S
        if not self._restart or used_up:
            raise error
        self._restarts.append(now)
        self._progress(f"{error}\nstarting it again")

    def stop(self) -> None:
        """Stop the services, all at once, then the broker that we started. By force after their deadlines. Twice is
        harmless."""
        self._stopping.set()
        for service in self.services:
            service.ask_to_stop()
        for service in self.services:
            service.stop()
        if self._watcher.is_alive():  # it may be starting something that died: that is stopped too
            self._watcher.join()
            for service in self.services:
                service.stop()
        if self.broker is not None:
            self._broker_wanted = False
            self.broker.stop()
        self._let_go()

    def kill(self) -> None:
        """SIGKILL everything we started: what a second Ctrl-C asks for."""
        self._stopping.set()
        for service in self.services:
            service.kill()
        if self.broker is not None:
            self._broker_wanted = False
            self.broker.kill()
        self._let_go()

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.close()

    def __enter__(self) -> System:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except (KeyboardInterrupt, Stopped):
            self.kill()
            raise


class Stopped(SystemExit):
    """Somebody asked this process to end, by SIGTERM or SIGHUP; leaves `with` blocks in order like any exception."""


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise Stopped in the main thread, as Ctrl-C raises KeyboardInterrupt."""

    def leave(number: int, _: FrameType | None) -> None:
        raise Stopped(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cluster(
    state_dir: Path, port: int | None, overrides: Mapping[str, str] | None, reuse: bool, progress: Progress
) -> tuple[EmbeddedBroker | None, str]:
    """The cluster to use: one named in the environment, one that already runs here, or a new embedded broker."""
    if named := os.environ.get(BOOTSTRAP_VARIABLE):
        progress(f"using the cluster at {named}")
        return None, named
    try:
        broker = EmbeddedBroker.start(state_dir / "broker", port=port, overrides=overrides, progress=progress)
    except AlreadyRunning as running:
        if not reuse:
            raise
        progress(f"using the broker that already runs here: {running.bootstrap}, pid {running.pid}")
        return None, running.bootstrap
    return broker, broker.bootstrap


@contextlib.contextmanager
def _usable(state_dir: Path) -> Iterator[None]:
    """Within the block, what the disk refuses is told as a LocalError."""
    try:
        yield
    except OSError as error:
        raise LocalError(
            f"The state directory {_shown(state_dir)} cannot be used: {error}.",
            "choose one that you may write, on a disk with room (TURNLOG_STATE_DIR or --state)",
        ) from error


def _held(state_dir: Path) -> TextIO:
    """The state directory, held until the file is closed or this process ends. Raises SystemRunning."""
    file = (state_dir / "system.pid").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        pid = file.read().strip() or "unknown"
        file.close()
        raise SystemRunning(
            f"A Turnlog runs already from {_shown(state_dir)} (pid {pid}).",
            "stop it first (Ctrl-C where it runs), or use another state directory (TURNLOG_STATE_DIR);"
            " to add a worker to it: turnlog worker MODULE:TOOLSET",
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def _secret(state_dir: Path) -> str:
    """The installation's secret, made on first use and readable by its owner only."""
    path = state_dir / "secret"
    if not path.exists():
        draft = state_dir / f"secret.{os.getpid()}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):  # somebody was quicker: theirs counts
            os.link(draft, path)
        draft.unlink()
    return path.read_text().strip()


def _shown(path: Path) -> str:
    """A path as people type it: relative where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
