"""`python -m services.tool_worker MODULE:TOOLSET [...]`: host tools."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from turnlog.settings import BadSettings, from_environment, settings_table
from turnlog.tools import ToolDefinitionError, Toolset
from turnlog.tools.settings import WorkerSettings
from turnlog.tools.toolset import told_with_place
from turnlog.tools.worker import run_worker

EXIT_MISCONFIGURED = 2


class NoToolset(Exception):
    """What was named is no toolset; the message says what was found instead."""


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 stopped, 2 arguments or settings, 3 Kafka."""
    parser = argparse.ArgumentParser(
        prog="python -m services.tool_worker",
        description="Runs the tools of one or more toolsets until SIGTERM.",
        epilog=settings_table(WorkerSettings),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("toolsets", nargs="+", metavar="MODULE:TOOLSET", help="e.g. examples.first_tool:tools")
    given = parser.parse_args(arguments)
    try:
        settings = from_environment(WorkerSettings)
        toolsets = [load(target) for target in given.toolsets]
    except (BadSettings, NoToolset) as problem:
        sys.stderr.write(f"tool worker: {problem}\n")
        return EXIT_MISCONFIGURED
    return run_worker(*toolsets, settings=settings)


def load(target: str) -> Toolset:
    """The toolset `MODULE:NAME`, with the current folder on the path. Raises NoToolset; an error inside the module is not hidden."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise NoToolset(f"{target!r} is not MODULE:TOOLSET")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{module_name}.".startswith(f"{problem.name}."):
            raise
        raise NoToolset(f"there is no module {module_name!r}") from None
    except (ToolDefinitionError, SyntaxError) as problem:
        raise NoToolset(f"module {module_name!r} cannot be used: {told_with_place(problem)}") from None
    found = getattr(module, name, None)
    if not isinstance(found, Toolset):
        has = [key for key, value in vars(module).items() if isinstance(value, Toolset)]
        raise NoToolset(f"{module_name} has no toolset {name!r}; it has {', '.join(has) or 'none'}")
    return found


if __name__ == "__main__":
    sys.exit(main())
