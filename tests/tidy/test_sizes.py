"""Files of a few hundred lines and functions that fit on a screen. Who needs more says why, here."""

from __future__ import annotations

import ast

from tests.tidy.checkout import python_files, relative, tree

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

# path, or path:function, and the reason. An entry that is no longer needed fails the test, too.
EXCEPTIONS: dict[str, str] = {
    "tests/simulation/loop_mutants.py": "one table: every rule of the journal taken out once",
}


def _too_large() -> dict[str, str]:
    found = {}
    for path in python_files():
        lines = len(path.read_text().splitlines())
        if lines > MAX_FILE_LINES:
            found[relative(path)] = f"{lines} lines"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    found[f"{relative(path)}:{node.name}"] = f"{length} lines"
    return found


def test_files_and_functions_are_of_a_readable_size() -> None:
    found = _too_large()
    unexcused = {name: size for name, size in found.items() if name not in EXCEPTIONS}
    assert not unexcused, f"split them, or say in EXCEPTIONS why not: {unexcused}"
    assert not set(EXCEPTIONS) - set(found), "these are small enough by now: take them off the list"


def test_every_module_opens_with_what_it_is_for() -> None:
    silent = [
        relative(path)
        for path in python_files("turnlog", "services", "bench", "examples")
        if path.read_text().strip() and ast.get_docstring(tree(path)) is None
    ]
    assert not silent


def test_no_module_is_named_for_nothing() -> None:
    """A file called so collects what nobody wanted to name."""
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
    assert not [relative(path) for path in python_files() if path.stem in vague]
