"""Nothing in the checkout knows the machine it was written on, or where packages came from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.checkout import ROOT, relative, text_files

# Put together here, so that this file does not find itself.
HOMES = [f"/{top}/" for top in ("home", "root", "work", "Users")]
REGISTRIES = [
    f"{name}.{top}"
    for name, top in [
        ("pypi", "org"), ("pythonhosted", "org"), ("maven.apache", "org"), ("maven", "org"), ("mvnrepository", "com"),
        ("npmjs", "org"), ("npmjs", "com"), ("crates", "io"), ("golang", "org/dl"), ("proxy.golang", "org"),
        ("debian", "org/debian"), ("registry-1.docker", "io"), ("index.docker", "io"), ("ghcr", "io"), ("quay", "io"),
    ]
]  # fmt: skip


def _lines_with(words: list[str]) -> list[str]:
    pattern = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, words)) + ")")
    return [
        f"{relative(path)}:{number}: {line.strip()[:120]}"
        for path in text_files()
        for number, line in enumerate(_text(path).splitlines(), 1)
        if pattern.search(line)
    ]


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def test_no_path_of_somebodys_machine() -> None:
    assert not _lines_with(HOMES)


def test_no_registry_is_named() -> None:
    """Packages are named by coordinates; where they come from is the client's configuration."""
    found = _lines_with([prefix + host for host in REGISTRIES for prefix in ("", "www.", "repo.", "repo1.", "files.")])
    assert not found


@pytest.mark.parametrize("script", ["dev", ".ci/run"])
def test_scripts_can_be_run(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    assert path.read_text().startswith("#!/usr/bin/env ")


def test_what_dev_needs_before_anything_is_installed() -> None:
    """`./dev` runs on a bare Python: whatever it imports at the top is in the standard library."""
    top = [line for line in (ROOT / "dev").read_text().splitlines() if re.match(r"(from|import) ", line)]
    known = {"__future__", "hashlib", "os", "shutil", "subprocess", "sys", "time", "collections.abc", "pathlib"}
    assert {line.split()[1] for line in top} <= known
