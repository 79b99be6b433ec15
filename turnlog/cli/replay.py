"""`turnlog replay` and `turnlog verify`: what a run was at any step, and whether this build would decide the same."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnlog.cli.errors import CliError, Exit
from turnlog.cli.output import console, emit, fields, plain, say, when
from turnlog.cli.parsing import run_id as parse_run_id
from turnlog.cli.wiring import Session, session
from turnlog.client import RunUnknown
from turnlog.core import snapshot
from turnlog.core.ids import place
from turnlog.core.state import RunState
from turnlog.core.transcript import AssistantMessage, ToolMessage, UserMessage
from turnlog.journal.history import records_of, state_at
from turnlog.journal.reading import Progress as Tell
from turnlog.journal.reading import no_progress
from turnlog.journal.timeline import clean, counted
from turnlog.journal.verification import Counts, Finding, PartitionCheck, describe


def replay(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id: see `turnlog runs list`.")],
    step: Annotated[
        int | None, typer.Option("--step", "-s", min=0, help="The state after this step (default: after the last).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The whole state as one JSON object.")] = False,
) -> None:
    """Fold a run's journal and print its state after any step.

    Nothing is decided and nothing is sent: this is what a restart of the loop would know.

    [bold]Examples[/]

      turnlog replay case-4711

      turnlog replay case-4711 --step 7 --json | jq .transcript
    """
    name = parse_run_id(run)
    here = session(context)
    entries = here.journal.run(name)
    if not entries:
        raise RunUnknown(name)
    state, at = state_at(name, records_of(entries), step, here.load_blob)
    if json:
        emit(
            {
                "step": at,
                **jsonlib.loads(snapshot.to_json(state)),
                "menu": plain(list(state.menu.values())),
                "agent": plain(state.agent),
            }
        )
        return
    _show(state, at)


def _show(state: RunState, step: int) -> None:
    fields(
        [
            ("run", state.run_id),
            ("after step", step),
            ("agent", f"{state.agent.name} {state.agent.version} ({state.agent.model})"),
            ("status", state.status),
            ("phase", state.phase),
            ("reason", state.reason),
            ("turn", state.turn if state.turn >= 0 else "before the first"),
            ("turn limit", state.turn_end or "none"),
            ("tool calls", state.tool_calls),
            ("deadline", when(state.deadline)),
            ("answer", state.answer),
            ("error", state.error),
            ("request", state.request_digest[:16]),
            ("transcript", f"{counted(len(state.transcript), 'message')}, digest {state.digest[:16]}"),
        ]
    )
    for call in state.calls:
        ending = f" {call.settlement}: {clean(call.content)}" if call.settlement else ""
        say(f"  {place(state.turn, call.position)} {clean(call.tool, 80)} {call.stage}, attempt {call.attempt}{ending}")
    for item in state.inputs:
        say(f"  input that waits: {clean(item.text)}")
    if state.transcript:
        say()
    for message in state.transcript:
        match message:
            case UserMessage(text):
                say(f"  user       {clean(text)}")
            case AssistantMessage(text, calls):
                asked = " ".join(f"{clean(call.tool, 80)}({clean(call.arguments, 80)})" for call in calls)
                say(f"  assistant  {' '.join(filter(None, (clean(text or ''), asked)))}".rstrip())
            case ToolMessage(_, tool, content, failed):
                say(f"  {'failed' if failed else 'tool':<9}  {clean(tool, 80)}: {clean(content)}")


VERIFY_HELP = """Decide every recorded arrival of a run again and report where this build would decide otherwise.

Also checked: the hash chain, the fences, that headers repeat what the values say, that snapshots are the fold of what came
before, and that runs lie in their own partition. A run's check ends at its first finding; others go on.

[bold]Examples[/]

  turnlog verify case-4711

  turnlog verify --all --json | jq 'select(.kind)'

Exit codes: 0 no fault, 1 a fault was found, 3 no such run, 5 no cluster.
"""


def verify(
    context: typer.Context,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="The run's id.")] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Every run of the journal.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a finding, and one with the counts at the end.")
    ] = False,
) -> None:
    if (run is None) == (not all_runs):
        raise CliError("name one RUN, or say --all", "turnlog verify --help")
    here = session(context)
    findings, counts = _verify_all(here, json) if run is None else _verify_run(here, parse_run_id(run))
    for finding in findings:
        _print_finding(finding, json)
    if json:
        emit({"findings": len(findings), **counts._asdict()})
    else:
        say(_verdict(findings, counts))
    if findings:
        raise typer.Exit(Exit.BAD)


def _verify_run(here: Session, run_id: str) -> tuple[list[Finding], Counts]:
    journal = here.journal
    partition = journal.partition_of(run_id)
    entries = journal.run(run_id)
    if not entries:
        raise RunUnknown(run_id)
    check = PartitionCheck(journal, partition, here.validate, here.load_blob)
    for entry in entries:
        check.take(entry)
    return [finding for finding in check.findings if finding.run_id == run_id], check.counts


def _verify_all(here: Session, json: bool) -> tuple[list[Finding], Counts]:
    journal = here.journal
    findings: list[Finding] = []
    counts = Counts()
    total = sum(end - start for start, end in map(journal.bounds, journal.all_partitions()))
    with _progress(total, json) as tell:
        for partition in journal.all_partitions():
            check = PartitionCheck(journal, partition, here.validate, here.load_blob)
            for entry in journal.entries(partition, progress=tell):
                check.take(entry)
            findings += check.findings
            counts = counts.plus(check.counts)
    return findings, counts


@contextmanager
def _progress(total: int, json: bool) -> Iterator[Tell]:
    """A bar on a terminal's standard error; nothing elsewhere."""
    shown = console(stderr=True)
    if json or not shown.is_terminal:
        yield no_progress
        return
    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn(), TextColumn("records"), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def _print_finding(finding: Finding, json: bool) -> None:
    if not json:
        for text in describe(finding):
            say(text)
        return
    differences = [
        {"path": path, "recorded": plain(old), "decided": plain(new)} for path, old, new in finding.differences
    ]
    emit({**finding._asdict(), "differences": differences})


def _verdict(findings: list[Finding], counts: Counts) -> str:
    seen = f"{counted(counts.runs, 'run')}, {counted(counts.steps, 'step')}, {counted(counts.events, 'event')}"
    beside = [
        f"{counted(n, what)}{more}"
        for n, what, more in (
            (counts.repeats, "repeat", ""),
            (counts.void, "void record", ""),
            (counts.earlier, "record", " of trimmed runs"),
        )
        if n
    ]
    skipped = f" (skipped: {', '.join(beside)})" if beside else ""
    return f"{seen}: {counted(len(findings), 'fault') if findings else 'no fault'}{skipped}"
