"""Run toolsets as workers: topics made, tools announced, one engine each, until SIGTERM. What `turnlog worker` and
`python -m services.tool_worker` call; a program of one's own may as well."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from turnlog.codec import Codec, RegistryRefused, RegistryUnavailable
from turnlog.core.records import DeadLetter, ToolManifest, ToolResult
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.port import Cluster, LogError
from turnlog.kafka.properties import setting_problem
from turnlog.kafka.topics import Layout, create_topics, topic_name
from turnlog.obs import Observability, observe
from turnlog.obs.waiting import until_there
from turnlog.settings import from_environment
from turnlog.tools.engine import Worker, WorkerTopics
from turnlog.tools.manifests import announce
from turnlog.tools.settings import WorkerSettings
from turnlog.tools.toolset import Toolset

_log = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_MISCONFIGURED: Final = 2
EXIT_FATAL: Final = 3
_LOOK_S: Final = 0.1


def worker_group(prefix: str, toolset: str) -> str:
    """The consumer group of a toolset's workers."""
    return f"{prefix}tools.{toolset}"


def worker_topics(prefix: str, toolset: str) -> WorkerTopics:
    return WorkerTopics(
        requests=topic_name(prefix, "tool-requests", toolset),
        results=topic_name(prefix, "tool-results"),
        dead_letters=topic_name(prefix, "dead-letters"),
        group=worker_group(prefix, toolset),
    )


def run_worker(
    *toolsets: Toolset,
    settings: WorkerSettings | None = None,
    cluster: Cluster | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Serve the toolsets until `stop` is set or SIGTERM or SIGINT comes; then drain, leave, return the exit code.

    0: stopped; 2: a property that the Kafka client refuses, or schemas that the registry does; 3: Kafka finished one of the clients
    for good (another process took the instance id, a topic that cannot be made). While Kafka is not to be reached it is not ready,
    and tries again for ever. Blocks; from the main thread it takes the signals, where a second one ends the drain.
    """
    if not toolsets or len({toolset.name for toolset in toolsets}) != len(toolsets):
        raise ValueError("give at least one toolset, each name once")
    settings = settings or from_environment(WorkerSettings)
    stop = stop or threading.Event()
    shown = observe("worker", settings)
    hosts: list[_Host] = []
    try:
        with _signals() as received:
            try:
                cluster = cluster or KafkaCluster(settings.kafka)
            except LogError as problem:
                _log.error("the worker ends: %s", setting_problem(problem) or problem)
                return EXIT_MISCONFIGURED
            hosts += [_Host(toolset, settings, cluster, shown, stop) for toolset in toolsets]
            for host in hosts:
                host.start()
            while not stop.is_set() and not received:
                time.sleep(_LOOK_S)
            stop.set()
            _finish(hosts, received)
    finally:
        shown.close()
    return max(host.exit_code for host in hosts)


class _Stopped(Exception):
    """The stop came while Kafka was waited for."""


class _Misconfigured(Exception):
    """The settings do not allow a start, however often it is tried."""


class _Host:
    """One toolset's thread: prepares until Kafka lets it, then polls. Its end, however it comes, stops all the others."""

    def __init__(
        self, toolset: Toolset, settings: WorkerSettings, cluster: Cluster, shown: Observability, stop: threading.Event
    ) -> None:
        self.exit_code = EXIT_OK
        self._toolset, self._settings, self._cluster, self._shown, self._stop = toolset, settings, cluster, shown, stop
        self._topics = worker_topics(settings.topic_prefix, toolset.name)
        self._prepared = shown.health.require(f"prepared {toolset.name}", "making topics and announcing tools")
        # Named now, so that there is no moment between the two in which everything seems to be met.
        shown.health.require(f"worker {toolset.name}", "not prepared yet")
        self._worker: Worker | None = None
        self._thread = threading.Thread(target=self._run, name=f"worker {toolset.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin to drain; called again, end the drain. Does not wait."""
        if self._worker is not None:
            self._worker.stop()

    @property
    def busy(self) -> bool:
        """Whether something is left to wait for. A preparation that hangs on an absent Kafka is not: it holds nothing."""
        return self._worker is not None and self._thread.is_alive()

    def _run(self) -> None:
        try:
            # A missing right or topic is waited for, too: somebody grants it while we say in health and log which one it is.
            codec = until_there(self._prepare, self._prepared, (LogError, RegistryUnavailable), self._pause)
            self._prepared.met()
            self._worker = self._engine(codec)
            if self._stop.is_set():
                self._worker.stop()  # the stop came while it was made
            self._worker.run()
        except _Stopped:
            pass
        except (_Misconfigured, RegistryRefused) as problem:
            self._end(str(problem), EXIT_MISCONFIGURED)
        except LogError as problem:
            wrong = setting_problem(problem)  # of the consumer, which is made last
            self._end(wrong or str(problem), EXIT_MISCONFIGURED if wrong else EXIT_FATAL)
        except BaseException:
            self.exit_code = EXIT_FATAL
            raise
        finally:
            self._stop.set()

    def _end(self, why: str, code: int) -> None:
        _log.error("worker of %s ends: %s", self._toolset.name, why)
        self.exit_code = code

    def _engine(self, codec: Codec) -> Worker:
        section = self._settings.worker
        return Worker(
            self._toolset,
            self._topics,
            self._cluster,
            codec,
            health=self._shown.health,
            metrics=self._shown.metrics,
            limits=section.limits(),
            instance_id=section.instance_id,
        )

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped

    def _prepare(self, answer_s: float) -> Codec:
        """Topics, schemas, manifests. Raises LogError, RegistryUnavailable, RegistryRefused, _Misconfigured."""
        try:
            self._make_topics(answer_s)
            codec = self._codec()
            manifests = topic_name(self._settings.topic_prefix, "tool-manifests")
            announce(self._cluster, codec, manifests, self._topics.requests, self._toolset)
        except LogError as problem:
            wrong = setting_problem(problem)
            if wrong is not None:
                raise _Misconfigured(wrong) from problem
            raise
        return codec

    def _make_topics(self, answer_s: float) -> None:
        admin = self._cluster.admin()
        try:
            admin.topics([self._topics.requests], timeout_s=answer_s)
            create_topics(admin, Layout.of(self._settings, (self._toolset.name,)), names=("tool-requests",))
        finally:
            admin.close()

    def _codec(self) -> Codec:
        prefix = self._settings.topic_prefix
        written: dict[str, type] = {
            topic_name(prefix, "tool-results"): ToolResult,
            topic_name(prefix, "tool-manifests"): ToolManifest,
            self._topics.dead_letters: DeadLetter,
        }
        return Codec.of(self._settings, written)


def _finish(hosts: list[_Host], received: list[int]) -> None:
    """Stop all, wait for all; the engines bound their drains. One more signal than it took to get here ends the drains."""
    enough = len(received)
    for host in hosts:
        host.stop()
    while any(host.busy for host in hosts):
        if len(received) > enough:
            enough = len(received)
            for host in hosts:
                host.stop()
        time.sleep(_LOOK_S)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The SIGTERMs and SIGINTs that came, in a list that grows. Nothing outside the main thread.

    The handler does nothing else: it may run while the main thread holds the lock of the very event it would set."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda got, _frame: received.append(got)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
