"""`turnlog worker`: run a toolset as a worker."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnlog.cli.errors import CliError
from turnlog.cli.output import note
from turnlog.cli.wiring import BOOTSTRAP_VARIABLE, knock, session

if TYPE_CHECKING:
    from turnlog.tools import Toolset

HELP = """Run the tools of one or more MODULE:TOOLSET until SIGTERM or Ctrl-C.

MODULE is imported with the current folder on the path, TOOLSET is the name of its Toolset. The worker announces its tools, so
the loop learns of them without a deploy. On SIGTERM it finishes what it has begun, within its drain deadline.

[bold]mytools.py[/]

  from turnlog.tools import ToolContext, Toolset

  tools = Toolset("weather", version="1")

  @tools.tool()
  async def forecast(ctx: ToolContext, city: str) -> str:
      "The weather of tomorrow."
      return f"Sunny in {city}"

[bold]Example[/]

  turnlog worker mytools:tools

Exit codes: 0 stopped, 2 no such toolset, a wrong one, or a wrong setting, 3 Kafka refused the worker for good.
"""


def worker(
    context: typer.Context,
    targets: Annotated[
        list[str], typer.Argument(metavar="MODULE:TOOLSET...", help="Where each toolset is, for example mytools:tools.")
    ],
) -> None:
    from turnlog.tools.worker import run_worker

    toolsets = [load_toolset(target) for target in targets]
    settings = session(context).settings
    # The worker reads its own settings: hand it what the options and the embedded broker of this folder say.
    os.environ[BOOTSTRAP_VARIABLE] = settings.kafka["bootstrap.servers"]
    os.environ["TURNLOG_TOPIC_PREFIX"] = settings.topic_prefix
    try:
        knock(settings.kafka["bootstrap.servers"])
    except CliError as absent:  # a broker that is away comes back; that nothing happens until then should be no riddle
        note(f"{absent}; the worker waits for it. {absent.remedy}")
    raise typer.Exit(run_worker(*toolsets))


def load_toolset(target: str) -> Toolset:
    """The toolset that `target` names. Raises CliError; an error inside the module itself is not hidden."""
    from turnlog.tools import ToolDefinitionError, Toolset
    from turnlog.tools.toolset import told_with_place

    module_name, name = check_target(target)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not (module_name == problem.name or module_name.startswith(problem.name + ".")):
            raise
        raise CliError(
            f"there is no module {module_name!r}", f"looked in {Path.cwd()} and the installed packages"
        ) from None
    except (ToolDefinitionError, SyntaxError) as problem:
        raise CliError(f"module {module_name!r} cannot be used: {told_with_place(problem)}") from None
    found = getattr(module, name, None)
    if not isinstance(found, Toolset):
        known = [n for n, value in vars(module).items() if isinstance(value, Toolset)]
        hint = f"it has {', '.join(known)}" if known else "it has none at all"
        raise CliError(f"{module_name} has no Toolset named {name!r}", hint)
    return found


def check_target(target: str) -> tuple[str, str]:
    """Module and name of a target whose package is there; nothing is run yet. Raises CliError."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise CliError(
            f"{target!r} is not MODULE:TOOLSET",
            "write for example mytools:tools for `tools = Toolset(...)` in mytools.py",
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    package = module_name.partition(".")[0]
    if not package or importlib.util.find_spec(package) is None:
        raise _no_module(module_name)
    return module_name, name


def _no_module(name: str) -> CliError:
    return CliError(f"there is no module {name!r}", f"looked in {Path.cwd()} and the installed packages")
