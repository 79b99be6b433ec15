"""The files of the checkout as the house rules see them: ours, text, and no recorded data."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NOT_OURS = {".git", ".venv", ".turnlog", "__pycache__", "build", "dist", "node_modules"}
_DATA = {".jsonl", ".bin", ".png", ".gz", ".zst"}


def _walk() -> Iterator[Path]:
    for folder, names, files in os.walk(ROOT):
        names[:] = sorted(
            name
            for name in names
            if name not in _NOT_OURS and not name.endswith(("_cache", ".egg-info", ".hypothesis")) and name != "data"
        )
        yield from (Path(folder, file) for file in sorted(files))


@cache
def text_files() -> tuple[Path, ...]:
    """Every file a person wrote: code, configuration, documents."""
    return tuple(path for path in _walk() if path.suffix not in _DATA and not path.is_symlink())


@cache
def python_files(*tops: str) -> tuple[Path, ...]:
    """Python files, all or those under the given folders. `dev` has no suffix and counts."""
    found = (path for path in text_files() if path.suffix == ".py" or path.name == "dev")
    return tuple(path for path in found if not tops or relative(path).startswith(tuple(f"{top}/" for top in tops)))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """`turnlog/core/ids.py` is `turnlog.core.ids`."""
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Absolute names of all imported modules, also those inside functions, with their lines."""
    package = module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from turnlog import kafka` imports the module turnlog.kafka
            yield from ((f"{name}.{alias.name}", node.lineno) for alias in node.names)


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")
