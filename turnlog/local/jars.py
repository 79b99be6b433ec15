"""Fetches programs from a Maven repository by a committed lock: exact coordinates, sizes and SHA-256.

Nothing that the lock does not name is ever used, and every start verifies all of it (45 jars, 44 MB: 0.05 s).
Maven itself is not needed; `jgo` speaks the repository's protocol. `TURNLOG_MAVEN_REPOSITORY` names a mirror.

`python -m turnlog.local.jars 4.4.0` writes the lock of another Kafka version.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnlog.local.errors import BadDownload, DiskFull, LocalError, NoNetwork

KAFKA_LOCK = Path(__file__).with_name("kafka.lock.json")
# Kafka logs through SLF4J 1.7 and names no implementation: without the second root it is silent.
KAFKA_ROOTS = ("org.apache.kafka:kafka_2.13:{version}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5")
DOWNLOADS_AT_ONCE = 4
ATTEMPTS = 3
TIMEOUT_S = 30
OFFLINE_REMEDY = (
    "connect this machine once, or name a mirror in TURNLOG_MAVEN_REPOSITORY, "
    "or use another cluster: TURNLOG_KAFKA__BOOTSTRAP_SERVERS"
)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Artifact:
    """One file of a lock. The coordinate is `group:artifact:version[:packaging[:classifier]]`."""

    coordinate: str
    size: int
    sha256: str

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        group, artifact, version, packaging, classifier = [*self.coordinate.split(":"), "jar", ""][:5]
        if self.coordinate.count(":") == 3:
            packaging, classifier = self.coordinate.split(":")[3], ""
        return group, artifact, version, packaging, classifier

    @property
    def filename(self) -> str:
        _, artifact, version, packaging, classifier = self.parts
        return f"{artifact}-{version}{'-' + classifier if classifier else ''}.{packaging}"

    def matches(self, path: Path) -> bool:
        """Whether `path` is exactly this file, by size and content."""
        try:
            if path.stat().st_size != self.size:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


@dataclass(frozen=True)
class Lock:
    """What a program consists of. `name` and `version` choose its folder in the cache."""

    name: str
    version: str
    roots: tuple[str, ...]
    artifacts: tuple[Artifact, ...]

    @classmethod
    def read(cls, path: Path) -> Lock:
        raw = json.loads(path.read_text())
        artifacts = tuple(Artifact(**entry) for entry in raw["artifacts"])
        return cls(raw["name"], raw["version"], tuple(raw["roots"]), artifacts)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @property
    def size(self) -> int:
        return sum(artifact.size for artifact in self.artifacts)


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where fetched programs stay: `TURNLOG_CACHE_DIR`, else `turnlog` in the user's XDG cache."""
    environ = os.environ if environ is None else environ
    if named := environ.get("TURNLOG_CACHE_DIR"):
        return Path(named).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnlog"


def fetch(lock: Lock, *, cache: Path | None = None, progress: Progress = lambda _: None) -> list[Path]:
    """The verified files of `lock`, in its order, fetched if the cache lacks or contradicts them.

    Safe beside other processes that fetch the same. Raises NoNetwork, BadDownload or DiskFull.
    """
    folder = (cache or cache_dir()) / lock.name / lock.version
    paths = [folder / artifact.filename for artifact in lock.artifacts]
    if not _missing(lock, folder):
        return paths
    with _translated(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock"):
            missing = _missing(lock, folder)
            if missing:
                _download(missing, folder, f"{lock.name} {lock.version}", progress)
    return paths


def _missing(lock: Lock, folder: Path) -> list[Artifact]:
    return [artifact for artifact in lock.artifacts if not artifact.matches(folder / artifact.filename)]


def _download(artifacts: Sequence[Artifact], folder: Path, title: str, progress: Progress) -> None:
    total = sum(artifact.size for artifact in artifacts)
    progress(f"fetching {title}: {len(artifacts)} files, {total / 1e6:.0f} MB")
    scratch = folder / ".download"
    shutil.rmtree(scratch, ignore_errors=True)
    context = _context(scratch)
    pool = ThreadPoolExecutor(DOWNLOADS_AT_ONCE)
    try:
        done, told = 0, 0
        # In order, so that a failure is raised as soon as the file before it is there.
        for artifact in pool.map(lambda one: _download_one(context, one, folder), artifacts):
            done += artifact.size
            if done - told > total / 5:
                told = done
                progress(f"fetching {title}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
    finally:
        pool.shutdown(cancel_futures=True)
        shutil.rmtree(scratch, ignore_errors=True)


def _download_one(context: Any, artifact: Artifact, folder: Path) -> Artifact:
    """Fetch one file, verify it, and only then give it its name. A cut transfer is tried again."""
    import requests

    group, name, version, packaging, classifier = artifact.parts
    remote = context.project(group, name).at_version(version).artifact(classifier, packaging)
    for attempt in range(1, ATTEMPTS + 1):
        remote.cached_path.unlink(missing_ok=True)
        try:
            path = Path(context.resolver.download(remote))
        except requests.RequestException as error:
            if attempt == ATTEMPTS:
                raise NoNetwork(
                    f"{artifact.coordinate} cannot be fetched: {type(error).__name__}.", OFFLINE_REMEDY
                ) from error
            time.sleep(attempt)
            continue
        except RuntimeError as error:  # jgo's word for "no repository has it"
            raise BadDownload(f"No repository has {artifact.coordinate}.", OFFLINE_REMEDY) from error
        if artifact.matches(path):
            path.replace(folder / artifact.filename)
            return artifact
    raise BadDownload(
        f"{artifact.coordinate} came with other bytes than the lock names ({ATTEMPTS} times).",
        "check the mirror or proxy between this machine and the repository; nothing of it was used",
    )


def _context(repo_cache: Path) -> Any:
    try:
        from jgo.maven import MavenContext
    except ImportError as error:
        raise LocalError("Kafka's jars must be fetched and jgo is missing.", "pip install 'turnlog[local]'") from error
    mirror = os.environ.get("TURNLOG_MAVEN_REPOSITORY")
    remotes = {"mirror": mirror.rstrip("/")} if mirror else None
    return MavenContext(repo_cache=repo_cache, remote_repos=remotes, timeout=TIMEOUT_S)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock: two first starts at once fetch once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise LocalError(f"Cannot write {error.filename}.", "set TURNLOG_CACHE_DIR to a folder of yours") from error
    except OSError as error:
        raise DiskFull(f"Cannot store jars in {folder}: {error.strerror}.", "free some space there") from error


def resolve(name: str, version: str, roots: Sequence[str], scratch: Path) -> Lock:
    """Resolve `roots` with everything they need at run time, fetch it and write down what came.

    Roots are resolved one by one and the first to bring an artifact decides its version: resolved together, jgo lets
    the dependency management of any root (log4j pins an old kafka-clients) override the others.
    """
    context = _context(scratch)
    chosen: dict[tuple[str, str, str], Any] = {}
    for root in roots:
        inputs, transitive = context.resolver.resolve([context.create_dependency(root)])
        for dependency in [*inputs, *transitive]:
            if dependency.scope in (None, "compile", "runtime") and not dependency.optional:
                chosen.setdefault((dependency.groupId, dependency.artifactId, dependency.classifier), dependency)
    artifacts = []
    for dependency in chosen.values():
        content = Path(dependency.artifact.resolve()).read_bytes()
        coordinate = f"{dependency.groupId}:{dependency.artifactId}:{dependency.version}"
        artifacts.append(Artifact(coordinate, len(content), hashlib.sha256(content).hexdigest()))
    return Lock(name, version, tuple(roots), tuple(sorted(artifacts, key=lambda artifact: artifact.coordinate)))


def main(version: str) -> None:
    """Write Kafka's lock for `version`."""
    import tempfile

    roots = [root.format(version=version) for root in KAFKA_ROOTS]
    with tempfile.TemporaryDirectory() as scratch:
        resolve("kafka", version, roots, Path(scratch)).write(KAFKA_LOCK)


if __name__ == "__main__":
    main(sys.argv[1])
