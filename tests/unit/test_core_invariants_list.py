"""docs/invariants.md and the checks agree: every guard it names exists, and every number the checks use is in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "invariants.md").read_text()
GUARDS = sorted(set(re.findall(r"`(tests/[\w/.]+)::(\w+)`", TEXT)))


@pytest.mark.parametrize(("path", "name"), GUARDS, ids=[name for _, name in GUARDS])
def test_the_guard_exists(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_invariant_has_a_guard_and_a_number() -> None:
    rows = re.findall(r"^\| ([IP]\d+) \|(.*)$", TEXT, re.MULTILINE)
    assert [number for number, _ in rows] == [f"I{n}" for n in range(1, 21)] + [f"P{n}" for n in range(1, 6)]
    assert all("`tests/" in row for _, row in rows)


def test_the_checks_use_these_numbers() -> None:
    used = set(re.findall(r'"(I\d+)"', (ROOT / "turnlog" / "testing" / "invariants.py").read_text()))
    assert used <= set(re.findall(r"^\| (I\d+) \|", TEXT, re.MULTILINE))
    assert used >= {f"I{n}" for n in range(1, 18)} - {"I15"}
