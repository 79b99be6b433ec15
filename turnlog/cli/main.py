"""The program `turnlog`: every verb in its place, every expected problem in one line."""

from __future__ import annotations

import logging
import os
import sys
from inspect import getdoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from turnlog import __version__
from turnlog.cli import agents, dead_letters, replay, run, runs, topics, up, worker
from turnlog.cli.errors import EXPECTED, Exit, explain
from turnlog.cli.output import console, emit, reflow, say, warn
from turnlog.cli.wiring import Session
from turnlog.settings import unread_variables

HELP = """Turnlog runs AI agents on Kafka: every fact about a run is one event in a topic.

[bold]First steps[/]

  turnlog up                                     start everything here
  turnlog agents apply agent.yaml                publish an agent
  turnlog run airline --input "Hello" --follow   start a run and watch it
  turnlog runs show RUN --journal                what was recorded
  turnlog runs explain RUN                       what it is waiting for

Settings come from TURNLOG_... variables (`turnlog settings` lists them). Without TURNLOG_KAFKA__BOOTSTRAP_SERVERS the broker that
`turnlog up` started from this folder is used, and where there was none, 127.0.0.1:9092.

[bold]Exit codes[/]: 0 done; 1 done, and the answer is bad (a run failed, a check found something); 2 wrong arguments or
settings; 3 no such thing; 4 refused; 5 cluster not reachable or not allowed; 6 timed out; 130 Ctrl-C.
"""

app = typer.Typer(
    no_args_is_help=True,
    help=reflow(HELP),
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.command("up", help=up.HELP)(up.up)
app.command("run", help=run.HELP)(run.run)
app.add_typer(runs.app, name="runs")
app.add_typer(agents.app, name="agents")
app.command("worker", help=worker.HELP)(worker.worker)
app.command("replay")(replay.replay)
app.command("verify", help=replay.VERIFY_HELP)(replay.verify)
app.add_typer(topics.app, name="topics")
app.add_typer(dead_letters.app, name="dead-letters")


@app.command("settings")
def settings(json: Annotated[bool, typer.Option("--json", help="One JSON object a setting.")] = False) -> None:
    """List the settings that services, workers and commands share, and those of workers.

    They are environment variables. The loop has more, and lists them all: python -m services.loop --help.
    """
    from turnlog.models.settings import MODELS_HELP
    from turnlog.settings import SettingRow, settings_rows, settings_table
    from turnlog.tools.settings import WorkerSettings

    models = SettingRow("TURNLOG_MODELS__<NAME>__<SETTING>", "", f"{MODELS_HELP} Read by the loop.")
    if json:
        for row in (*settings_rows(WorkerSettings), models):
            emit(row._asdict())
        return
    say(settings_table(WorkerSettings))
    say(f"  {models.name}\n      {models.description}")
    say("What else the loop reads: python -m services.loop --help")


class _Command(TyperCommand):
    """A flag takes no value, so that its help shows none (typer says <bool>)."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_value(super().get_params(ctx))


class _Group(TyperGroup):
    """The same for what holds commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_value(super().get_params(ctx))


def _flags_without_value(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def _dress(group: typer.Typer) -> None:
    """Our looks for the help of everything below."""
    group.info.cls = _Group
    for command in group.registered_commands:
        command.cls = _Command
        command.help = reflow(command.help or getdoc(command.callback) or "")
    for info in group.registered_groups:
        if info.typer_instance is not None:
            _dress(info.typer_instance)


_dress(app)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"turnlog {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Kafka's address, instead of the setting."),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="PREFIX", help="Topic prefix, instead of the setting.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show log lines, the Kafka client's among them.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL, format="%(levelname)s %(name)s: %(message)s"
    )
    if context.invoked_subcommand != "worker":  # it says so in its log, as every service
        for line in unread_variables(os.environ):
            warn(line)
    here = context.find_object(Session)
    if here is None:
        context.obj = here = Session(bootstrap, prefix)
    context.call_on_close(here.close)


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run_app(sys.argv[1:]))


def run_app(arguments: list[str], here: Session | None = None) -> int:
    """The exit code of one invocation; never raises for what is expected. `here` takes the place of a session of its own."""
    try:
        app(
            args=arguments, prog_name="turnlog", obj=here
        )  # always ends by SystemExit; wrong usage and Ctrl-C are told by typer
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.DONE
    except EXPECTED as error:
        return _tell(error)
    return Exit.DONE


def _tell(error: Exception) -> int:
    problem = explain(error)
    shown = console(stderr=True)
    shown.print("error:", problem.message, style="red", markup=False)
    if problem.remedy:
        shown.print("  what helps:", problem.remedy, markup=False)
    return problem.code


if __name__ == "__main__":
    main()
