"""`turnlog up`: the whole system on this machine, until Ctrl-C."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from turnlog.cli.output import note, say
from turnlog.cli.topics import create_missing
from turnlog.cli.wiring import BOOTSTRAP_VARIABLE, Session, session
from turnlog.cli.worker import check_target

HELP = """Run everything on this machine: Kafka, the loop, and the workers you name, until Ctrl-C.

Without TURNLOG_KAFKA__BOOTSTRAP_SERVERS a real single-node Kafka is started (fetched and verified once); its data and all
logs stay in the state directory (TURNLOG_STATE_DIR, else .turnlog), so runs survive a restart. Other commands find it by themselves from the same folder.

A shell starts a background job (`turnlog up &`) so that it ignores Ctrl-C: stop that one with SIGTERM (`kill %1`).

[bold]Examples[/]

  turnlog up

  turnlog up --worker mytools:tools --worker examples.first_tool:tools

Exit codes: 0 stopped by Ctrl-C or SIGTERM, 2 a worker's module is not there, 5 something could not be started or died.
"""


def up(
    context: typer.Context,
    worker: Annotated[
        list[str] | None,
        typer.Option("--worker", "-w", metavar="MODULE:TOOLSET", help="A toolset to run; may be repeated."),
    ] = None,
    loops: Annotated[int, typer.Option("--loops", min=1, max=64, help="How many loop processes share the runs.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Kafka's port; 0 takes a free one (default: the last, else 9092)."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object when everything is ready.")] = False,
) -> None:
    from turnlog.local.service import ServiceSpec
    from turnlog.local.supervisor import Stopped, System, stopping_on_signals

    for target in worker or []:
        check_target(target)  # before a broker is started for nothing
    settings = session(context).settings
    services = [
        ServiceSpec("loop" if loops == 1 else f"loop-{ordinal}", ("-m", "services.loop", "--ordinal", str(ordinal)))
        for ordinal in range(loops)
    ]
    services += [
        ServiceSpec(_worker_name(number, target), ("-m", "turnlog.cli.main", "worker", target))
        for number, target in enumerate(worker or [])
    ]
    with stopping_on_signals():
        try:
            with System.start(
                Path(settings.state_dir),
                services,
                prepare=create_topics,
                port=port,
                reuse_broker=True,
                restart=True,
                progress=note,
            ) as system:
                _tell(system.bootstrap, [service.name for service in system.services], json)
                system.wait()
        except (KeyboardInterrupt, Stopped):
            note("stopped")


def _worker_name(number: int, target: str) -> str:
    return f"worker-{number}-{target.partition(':')[0].rpartition('.')[2]}"


def _tell(bootstrap: str, services: list[str], json: bool) -> None:
    if json:
        print(jsonlib.dumps({"bootstrap": bootstrap, "services": services}), flush=True)
        return
    say(f"Turnlog runs: Kafka at {bootstrap}, {', '.join(services)}. Stop with Ctrl-C.")
    say("In another terminal: turnlog agents list; turnlog run AGENT --input TEXT --follow")


def create_topics(environment: Mapping[str, str]) -> None:
    """Create what is missing, with the settings that the services get."""
    here = Session(environment[BOOTSTRAP_VARIABLE])
    try:
        create_missing(here)
    finally:
        here.close()
