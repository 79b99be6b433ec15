"""`python -m services.loop`: run the loop until SIGTERM."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import subprocess
import sys
import time

from services.loop.memory import Diverged
from services.loop.metrics import expose
from services.loop.service import InstanceTaken, LoopService
from services.loop.settings import LoopSettings
from services.loop.wiring import Misconfigured, codec_for, make_shell, partition_count, reply_tokens
from turnlog.codec import Codec, RegistryRefused, RegistryUnavailable
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.port import LogError, Retryable
from turnlog.kafka.properties import setting_problem
from turnlog.local.process import TETHER, Child
from turnlog.models.provider import BadModelSettings, Providers
from turnlog.obs import Observability, observe
from turnlog.obs.waiting import until_there
from turnlog.settings import BadSettings, from_environment, settings_table

_log = logging.getLogger("turnlog.loop")

EXIT_MISCONFIGURED, EXIT_LOG, EXIT_TAKEN, EXIT_DIVERGED = 2, 3, 4, 5
TAKEN_PAUSE_S = 5.0
STOP_S = 20.0


def main() -> int:
    """Parse, then run one process or supervise several. Exit codes: 0 stopped, 2 settings, 3 Kafka, 4 instance id taken,
    5 a run diverged and TURNLOG_VERIFY is fail."""
    parser = argparse.ArgumentParser(
        prog="python -m services.loop",
        description="Runs agents: takes commands and results, decides, journals, asks models, requests tools.",
        epilog=settings_table(LoopSettings),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=int, help="loop processes on this host (TURNLOG_PROCESSES)")
    parser.add_argument("--ordinal", type=int, default=0, help="which of them this is; part of the group instance id")
    given = parser.parse_args()
    try:
        settings = from_environment(LoopSettings)
    except BadSettings as problem:
        sys.stderr.write(f"turnlog loop: {problem}\n")
        return EXIT_MISCONFIGURED
    processes = given.processes or settings.processes
    return supervise(processes) if processes > 1 else serve(settings, given.ordinal)


def serve(settings: LoopSettings, ordinal: int) -> int:
    """One loop process."""
    observability = observe("loop", settings)
    try:
        return _serve(settings, ordinal, observability)
    except (Misconfigured, BadModelSettings, RegistryRefused) as problem:
        _log.error("%s", problem)
        return EXIT_MISCONFIGURED
    except InstanceTaken as problem:
        _log.error("another process runs with this instance id, leaving: %s", problem)
        time.sleep(TAKEN_PAUSE_S)  # two processes with one id must not take it from each other without end (J3)
        return EXIT_TAKEN
    except Diverged as problem:
        _log.error("TURNLOG_VERIFY=fail: %s", problem)
        return EXIT_DIVERGED
    except LogError as problem:
        wrong = setting_problem(problem)
        _log.error("%s", wrong or problem)
        return EXIT_MISCONFIGURED if wrong else EXIT_LOG
    except RegistryUnavailable as problem:
        _log.error("%s", problem)
        return EXIT_LOG
    finally:
        observability.close()


def _serve(settings: LoopSettings, ordinal: int, observability: Observability) -> int:
    ready = observability.health.require("loop", "starting")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # nothing is begun: out of whatever is waited for
    tokens = reply_tokens(settings)
    providers = Providers.from_settings(settings.models)
    cluster = KafkaCluster({"session.timeout.ms": str(settings.session_timeout_ms), **settings.kafka})

    def found(answer_s: float) -> tuple[int, Codec]:
        return partition_count(cluster, settings, answer_s), codec_for(settings)

    partitions, codec = until_there(found, ready, (Retryable, RegistryUnavailable))
    shell = make_shell(settings, cluster, providers, tokens, codec, ordinal=ordinal, partitions=partitions)
    beat = observability.health.heartbeat("poll loop", 60.0)

    def on_change(service: LoopService) -> None:
        beat.beat()
        refresh()
        unready = service.unready
        if unready is None:
            ready.met()
        else:
            ready.unmet(unready)

    service = LoopService(shell, on_change)
    refresh = expose(observability.metrics, service)
    until_there(service.start, ready, (Retryable,))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    # Everything so far lives as long as the process; what follows makes few cycles and many tuples. The default thresholds cost 20 %
    # of the poll thread.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    service.run()
    _log.info("stopped")
    return 0


def supervise(processes: int) -> int:
    """Start `processes` loops with ordinals from 0 and share their fate: one that dies unasked stops the others. The kernel ends them
    with this process, however that ends."""
    tethered = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid())]
    command = [*tethered, sys.executable, "-m", "services.loop", "--processes", "1", "--ordinal"]
    children = [
        Child(subprocess.Popen([*command, str(i)], env={**os.environ, **_own_ports(i)}), f"loop {i}")
        for i in range(processes)
    ]
    received: list[int] = []  # no event: a handler may run while this thread holds the lock of the event it would set
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: received.append(got))
    while not received and all(child.alive for child in children):
        time.sleep(0.1)
    unasked = [code for child in children if (code := child.poll())]
    for child in children:
        child.terminate()
    codes = [child.stop(STOP_S) for child in children]
    return next((code for code in (*unasked, *codes) if code), 0)


def _own_ports(ordinal: int) -> dict[str, str]:
    """Each process has a health port of its own: the configured one plus its ordinal, or a free one; and so a file that names it."""
    port = int(os.environ.get("TURNLOG_OBS__PORT") or 0)
    own = {"TURNLOG_OBS__PORT": str(port + ordinal if port else 0)}
    named = os.environ.get("TURNLOG_OBS__PORT_FILE")
    if named and ordinal:
        own["TURNLOG_OBS__PORT_FILE"] = f"{named}.{ordinal}"
    return own


if __name__ == "__main__":
    sys.exit(main())
