"""Java's archive of classes: made once, made anew when what it was made from changed, and never in the way of a start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnlog.local.class_archive import KEPT, class_archive
from turnlog.local.java import Java

# Stands in for `java -Xshare:dump`: writes the archive it is asked for and counts.
FAKE = """#!/bin/sh
echo made >> "$0.count"
for argument in "$@"; do
    case "$argument" in
        -XX:SharedArchiveFile=*) echo archive > "${argument#*=}" ;;
        -XX:SharedClassListFile=*) test -s "${argument#*=}" || exit 1 ;;
    esac
done
"""


def java(folder: Path, script: str, build: str = "17") -> Java:
    program = folder / "java"
    program.write_text(script)
    program.chmod(0o755)
    return Java(program, 17, build)


def made(one: Java) -> int:
    count = one.program.with_suffix(".count")
    return len(count.read_text().splitlines()) if count.exists() else 0


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "kafka.jar"
    path.parent.mkdir()
    path.write_bytes(b"jar")
    return path


def test_it_is_made_once(tmp_path: Path, jar: Path) -> None:
    one = java(tmp_path, FAKE)
    said: list[str] = []
    first = class_archive(one, [jar], progress=said.append)
    assert first is not None
    assert class_archive(one, [jar], progress=pytest.fail) == first
    assert made(one) == 1
    assert said == ["preparing quick starts of Kafka, once"]
    assert {path.suffix for path in jar.parent.iterdir()} == {".jar", ".jsa", ""}


def test_jars_fetched_again_or_another_java_get_their_own(tmp_path: Path, jar: Path) -> None:
    first = class_archive(java(tmp_path, FAKE), [jar], progress=lambda _: None)
    os.utime(jar, ns=(1, 1))
    second = class_archive(java(tmp_path, FAKE), [jar], progress=lambda _: None)
    third = class_archive(java(tmp_path, FAKE, "21"), [jar], progress=lambda _: None)
    assert len({first, second, third}) == 3


def test_few_are_kept(tmp_path: Path, jar: Path) -> None:
    for build in range(KEPT + 2):
        class_archive(java(tmp_path, FAKE, str(build)), [jar], progress=lambda _: None)
    assert len(list(jar.parent.glob("*.jsa"))) == KEPT


def test_a_java_that_cannot_is_asked_once_and_does_without(tmp_path: Path, jar: Path) -> None:
    one = java(tmp_path, '#!/bin/sh\necho no >> "$0.count"\nexit 1\n')
    assert class_archive(one, [jar], progress=lambda _: None) is None
    assert class_archive(one, [jar], progress=pytest.fail) is None
    assert made(one) == 1


def test_a_cache_that_cannot_be_written_is_no_hindrance(tmp_path: Path) -> None:
    assert class_archive(java(tmp_path, FAKE), [tmp_path / "nowhere" / "kafka.jar"], progress=print) is None
