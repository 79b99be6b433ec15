"""Which Java runs the broker, tried with small scripts that claim to be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnlog.local.errors import NoJava
from turnlog.local.java import find_java


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return program


def test_a_new_enough_java_of_the_machine_is_taken(tmp_path: Path) -> None:
    program = fake_java(tmp_path, "17.0.15")
    java = find_java({"PATH": str(program.parent)})
    assert (java.program, java.major, java.bundled) == (program, 17, False)


def test_an_old_java_home_does_not_hide_a_good_one_on_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    program = fake_java(tmp_path / "new", "21")
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(program.parent)}).program == program


def test_without_one_the_bundled_is_taken(tmp_path: Path) -> None:
    assert find_java({"PATH": str(tmp_path)}).bundled
    old = fake_java(tmp_path, "1.8.0_392")
    assert find_java({"PATH": str(old.parent)}).bundled


def test_bundled_hides_the_machines_own(tmp_path: Path) -> None:
    program = fake_java(tmp_path, "21")
    assert find_java({"PATH": str(program.parent), "TURNLOG_JAVA": "bundled"}).bundled


def test_system_hides_the_bundled_one(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match="No Java 17"):
        find_java({"PATH": str(tmp_path), "TURNLOG_JAVA": "system"})
    old = fake_java(tmp_path, "1.8.0_392")
    with pytest.raises(NoJava, match=r"Java 8 .* too old"):
        find_java({"PATH": str(old.parent), "TURNLOG_JAVA": "system"})


def test_a_named_one_is_taken_or_refused_by_name(tmp_path: Path) -> None:
    program = fake_java(tmp_path / "a", "25.0.2")
    assert find_java({"TURNLOG_JAVA": str(program)}).major == 25
    assert find_java({"TURNLOG_JAVA": str(tmp_path / "a")}).program == program
    with pytest.raises(NoJava, match="not a working java"):
        find_java({"TURNLOG_JAVA": str(tmp_path / "nothing")})
    fake_java(tmp_path / "b", "11")
    with pytest.raises(NoJava, match="names Java 11, too old"):
        find_java({"TURNLOG_JAVA": str(tmp_path / "b")})
