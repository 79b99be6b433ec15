"""turnlog/core decides and does nothing else: no clock, no chance, no names from outside, no I/O, no log."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.checkout import imports, python_files, relative, tree, within

MODULES = (
    "asyncio", "concurrent", "glob", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "select", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
    "warnings",
)  # fmt: skip
# hash() of a string differs from process to process; id() of anything does.
CALLS = {"open", "print", "input", "hash", "id", "eval", "exec", "globals", "breakpoint"}
METHODS = {"now", "utcnow", "today", "fromtimestamp", "urandom", "getenv", "uuid4", "monotonic", "perf_counter"}


def test_the_core_imports_nothing_that_acts() -> None:
    wrong = [
        f"{relative(path)}:{line}: {name}"
        for path in python_files("turnlog/core")
        for name, line in imports(path)
        if any(within(name, module) for module in MODULES)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_calls_nothing_that_acts() -> None:
    wrong = [found for path in python_files("turnlog/core") for found in _banned_calls(path)]
    assert not wrong, "\n".join(wrong)


def _banned_calls(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.id if isinstance(function, ast.Name) else ""
        method = function.attr if isinstance(function, ast.Attribute) else ""
        if name in CALLS or method in METHODS:
            yield f"{relative(path)}:{node.lineno}: {name or method}()"


def test_the_core_never_walks_over_a_set() -> None:
    """The order of a set of strings differs from process to process; sorted(...) of one is fine."""
    wrong = [
        f"{relative(path)}:{node.lineno}"
        for path in python_files("turnlog/core")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Set | ast.SetComp)
        for node in [node.iter]
    ]
    assert not wrong, "\n".join(wrong)
