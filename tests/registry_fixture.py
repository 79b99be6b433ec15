"""A schema registry for tests: one that is named, else Apicurio from Maven Central, verified by the lock beside the tests.

TURNLOG_TEST_REGISTRY=URL    a registry with Confluent's API that is already there; subjects of the tests stay on it
"""

from __future__ import annotations

import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from turnlog.local.errors import BrokerSlow, NoJava
from turnlog.local.jars import Lock, cache_dir, fetch
from turnlog.local.java import Java, find_java
from turnlog.local.ports import free_ports
from turnlog.local.process import Child, tail

APICURIO_LOCK = Path(__file__).parent / "integration" / "apicurio.lock.json"
JAVA = 21  # Apicurio 3.3 is compiled for it, Kafka only for 17
PATIENCE_S = 180.0  # up in 7 s on two idle cores, in 40 s on two busy ones


@contextmanager
def schema_registry(folder: Path) -> Iterator[str]:
    """The URL of a registry's Confluent API, for as long as the block lasts. `folder` gets its log."""
    if named := os.environ.get("TURNLOG_TEST_REGISTRY"):
        yield named
        return
    (port,) = free_ports(1)
    home, log = _unpacked(Lock.read(APICURIO_LOCK)), folder / "apicurio.log"
    child = Child.start(_command(home, port), name="apicurio", output=log, cwd=home)
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _wait(child, url, log)
        yield url
    finally:
        child.stop(5.0)


def _command(home: Path, port: int) -> list[str]:
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        # Health and metrics: by default a second server on all interfaces.
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": 0,
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    return [str(_java().program), "-Xmx384m", *options, "-jar", str(home / "quarkus-run.jar")]


def _java() -> Java:
    """The machine's Java where it is new enough, else the one from PyPI."""
    try:
        own = find_java()
    except NoJava:
        own = None
    return own if own is not None and own.major >= JAVA else find_java({**os.environ, "TURNLOG_JAVA": "bundled"})


def _unpacked(lock: Lock) -> Path:
    """The folder of the unpacked registry, beside the verified archive in the cache."""
    (archive,) = fetch(lock)
    home = cache_dir() / lock.name / lock.version / f"unpacked-{lock.artifacts[0].sha256[:12]}"
    if not home.is_dir():
        half = home.with_name(f".{home.name}.{os.getpid()}")
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python is older than it
            tar.extractall(half)
        try:
            half.rename(home)
        except OSError:  # another process was quicker
            shutil.rmtree(half)
    return home


def _wait(child: Child, url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and child.alive:
        try:
            if httpx.get(f"{url}/subjects", timeout=5).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise BrokerSlow("Apicurio Registry does not serve.", "see its log", detail=tail(log))
