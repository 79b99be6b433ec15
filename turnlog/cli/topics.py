"""`turnlog topics`: create, check and adopt an installation's topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, get_args

import typer

from turnlog.cli.errors import CliError, Exit
from turnlog.cli.output import emit, note, plain, say, table
from turnlog.cli.wiring import Session, acting_session, session
from turnlog.journal.timeline import counted
from turnlog.kafka import adopt as adopting
from turnlog.kafka.opening import Places
from turnlog.kafka.topic_acls import acl_commands
from turnlog.kafka.topic_check import check_topics
from turnlog.kafka.topics import Layout, Role, create_topics

app = typer.Typer(no_args_is_help=True, help="Create, check and adopt the installation's topics.")

ToolsetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--toolset",
        "-t",
        metavar="TOOLSET",
        help="Also the topics of this toolset; may be repeated. Workers create theirs themselves.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


def create_missing(here: Session, toolsets: Sequence[str] = ()) -> list[str]:
    """Create the topics that are missing; returns their names."""
    return create_topics(here.admin, Layout.of(here.settings, toolsets))


@app.command()
def create(context: typer.Context, toolset: ToolsetOption = None, json: JsonOption = False) -> None:
    """Create the topics that are missing; the others are left as they are.

    Partitions and replicas come from TURNLOG_PARTITIONS and TURNLOG_REPLICATION. The partition count is fixed for the life of the
    installation.

    [bold]Example[/]

      TURNLOG_PARTITIONS=12 TURNLOG_REPLICATION=3 turnlog topics create --toolset billing
    """
    made = create_missing(acting_session(context), toolset or ())
    if json:
        return emit({"created": made})
    for name in made:
        say(name)
    note(f"{counted(len(made), 'topic')} created" if made else "all topics were there")
    return None


@app.command()
def check(context: typer.Context, toolset: ToolsetOption = None, json: JsonOption = False) -> None:
    """Name every difference between the cluster and what this installation must have.

    Exit codes: 0 no error (warnings may be), 1 an error, 5 no cluster.

    [bold]Example[/]

      turnlog topics check --json | jq 'select(.severity=="error")'
    """
    here = session(context)
    found = check_topics(here.admin, Layout.of(here.settings, toolset or ()))
    for difference in found:
        emit(plain(difference)) if json else say(str(difference))
    errors = sum(difference.severity == "error" for difference in found)
    if not json:
        note(
            f"{counted(errors, 'error')}, {counted(len(found) - errors, 'warning')}"
            if found
            else "everything is as it must be"
        )
    if errors:
        raise typer.Exit(Exit.BAD)


@app.command()
def acls(
    context: typer.Context,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", "-r", metavar="ROLE=PRINCIPAL", help="Roles: upstream, loop, operator, auditor."),
    ] = None,
    worker: Annotated[
        list[str] | None, typer.Option("--worker", "-w", metavar="TOOLSET=PRINCIPAL", help="One per tool team.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print the commands that give each role the rights it needs, and no more.

    They are for kafka-acls.sh; $BOOTSTRAP and $ADMIN_PROPERTIES are left to your shell.

    [bold]Example[/]

      turnlog topics acls --role loop=User:turnlog-loop --role upstream=User:shop --worker billing=User:billing
    """
    roles: dict[Role, str] = {}
    for name, principal in _pairs("--role", role).items():
        known = next((r for r in get_args(Role) if r == name and r != "worker"), None)
        if known is None:
            raise CliError(
                f"--role {name!r}: roles are upstream, loop, operator, auditor",
                "tool teams are named by --worker TOOLSET=PRINCIPAL",
            )
        roles[known] = principal
    workers = _pairs("--worker", worker)
    if not roles and not workers:
        raise CliError(
            "name who has which role", "for example --role loop=User:turnlog-loop --worker billing=User:billing"
        )
    commands = acl_commands(Layout.of(session(context).settings), roles, workers)
    if json:
        return emit(commands)
    for command in commands:
        say(command)
    return None


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise CliError(
                f"{option} {pair!r} is not NAME=PRINCIPAL", f"write for example {option} {name or 'loop'}=User:somebody"
            )
        found[name] = value
    return found


@app.command()
def adopt(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Go on with a log that was cut or made anew.

    A loop stops when the log is not what it knew: a journal that ends too early (power loss, unclean election), a topic that was
    deleted and created, an inbound topic that ends below its committed position. What is lost is lost. This opens a new input
    epoch: it sets the loop's positions to what is there, so that it opens its partitions again. Stop every loop first.

    Before, look what was lost: turnlog topics check, turnlog verify --all.
    """
    here = acting_session(context)
    count = len(here.partitions("commands"))
    commands = here.topic("commands")
    places = Places(here.topic("journal"), commands, (commands, here.topic("tool-results")))
    epochs = [here.journal.last_epoch(partition) for partition in here.journal.all_partitions()]
    planned = adopting.plan(here.admin, f"{here.prefix}loop", places, count, epochs)
    if not json:
        rows = [(f"{c.partition.topic}[{c.partition.index}]", c.before, c.after, c.why) for c in planned.changes]
        table(("partition", "position", "becomes", "why"), rows)
        say(f"input epoch {planned.epoch} for group {planned.group}; the journal is read from {dict(planned.floors)}")
    if not yes and not typer.confirm("Set these positions?", err=True):
        raise typer.Exit(Exit.BAD)
    adopting.apply(here.admin, planned)
    changes = [{**plain(c.partition), "before": c.before, "after": c.after, "why": c.why} for c in planned.changes]
    emit({"epoch": planned.epoch, "group": planned.group, "changes": changes}) if json else say(
        "adopted: start the loops again"
    )
