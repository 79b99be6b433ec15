"""Java's own cache of loaded classes, made once per machine: a start of Kafka then costs half the CPU (2.7 s, not 5.1).

Which classes is a committed list, recorded from a running broker; the archive is made from it and the verified jars by the
Java that will use it (five seconds, 65 MB). Java checks an archive against itself and the jars, and goes on without one that
does not fit, so nothing here can break a start.

`java -XX:DumpLoadedClassList=FILE ... kafka.Kafka ...` of Java 17 records the list; a newer Java's list is of no use to an
older one.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from turnlog.local.java import Java

CLASS_LIST = Path(__file__).with_name("kafka.classes.gz")
KEPT = 3  # one per Java in use, and room for a change
TIMEOUT_S = 120


def class_archive(java: Java, classpath: Sequence[Path], *, progress: Callable[[str], None]) -> Path | None:
    """The archive for this Java and these jars, made if there is none; None if it cannot be made. Never raises for that."""
    folder = classpath[0].parent
    try:
        archive = folder / f"classes-{_digest(java, classpath)}.jsa"
        with (folder / ".lock").open("w") as lock:
            if not archive.exists():
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not archive.exists():
                    progress("preparing quick starts of Kafka, once")
                    _make(java, classpath, archive)
        return archive if archive.stat().st_size else None
    except OSError:  # no room, or a cache that we may only read: Kafka starts without
        return None


def _digest(java: Java, classpath: Sequence[Path]) -> str:
    """Names what an archive depends on, so that jars fetched again or another Java get one of their own."""
    digest = hashlib.sha256("\0".join([java.build, *java.flags]).encode())
    digest.update(CLASS_LIST.read_bytes())
    for path in classpath:
        digest.update(f"{path}\0{path.stat().st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def _make(java: Java, classpath: Sequence[Path], archive: Path) -> None:
    """Make the archive under another name first. A Java that cannot leaves an empty one: it is not asked again."""
    draft = archive.with_suffix(".new")
    classes = archive.with_suffix(".classlist")
    classes.write_bytes(gzip.decompress(CLASS_LIST.read_bytes()))
    command = [str(java.program), *java.flags, "-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedClassListFile={classes}"]
    command += [f"-XX:SharedArchiveFile={draft}", "-cp", os.pathsep.join(map(str, classpath))]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
        if done.returncode != 0 or not draft.exists():
            draft.unlink(missing_ok=True)
            draft.touch()
    except subprocess.TimeoutExpired:
        draft.touch()
    finally:
        classes.unlink()
    draft.replace(archive)
    for old in sorted(archive.parent.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink()
