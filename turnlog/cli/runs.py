"""`turnlog runs`: look at runs and steer them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from turnlog.cli import explain as explaining
from turnlog.cli.errors import CliError
from turnlog.cli.output import clock, emit, from_now, note, plain, say, table, when
from turnlog.cli.parsing import labels as parse_labels
from turnlog.cli.parsing import run_id as parse_run_id
from turnlog.cli.parsing import seconds_option, text_argument
from turnlog.cli.run import OUTCOME_TIMEOUT_S, finish, plain_summary, pointing_at, show_events, show_summary
from turnlog.cli.wiring import Session, acting_session, session
from turnlog.client import Client, CommandRefused, RunUnknown, idle
from turnlog.core.events import Cancel
from turnlog.core.ids import place
from turnlog.core.records import CommandOutcome, RunSummary
from turnlog.journal.entries import Entry
from turnlog.journal.history import records_of
from turnlog.journal.reading import Owner, owners
from turnlog.journal.timeline import counted, short_key, words

app = typer.Typer(no_args_is_help=True, help="Look at runs and steer them.")

TIMELINE_COLUMNS = 140
"""Of a journal that goes to no terminal; `--json` has everything whole."""
STATUSES = ("running", "waiting", "stopped", "succeeded", "failed", "cancelled")

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id: see `turnlog runs list`.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="How long to wait: 90s, 15m (default: for ever).")
]


@app.command("list")
def list_runs(
    context: typer.Context,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", "-s", metavar="STATUS", help=f"Only these: {', '.join(STATUSES)}. May be repeated."),
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="AGENT", help="Only runs of this agent.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="NAME=VALUE", help="Only runs with this; may be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest first.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List runs, newest first.

    [bold]Examples[/]

      turnlog runs list --status running --status waiting

      turnlog runs list --label tenant=acme --json | jq -r 'select(.status=="failed") | .run_id'
    """
    if unknown := next((name for name in status or () if name not in STATUSES), None):
        raise CliError(f"--status {unknown!r} is no status of a run", f"there are {', '.join(STATUSES)}")
    wanted = parse_labels(label or [])
    found = [s for s in session(context).client.runs() if _matches(s, status, agent, wanted)]
    found.sort(key=lambda s: (s.updated_at, s.run_id), reverse=True)
    if json:
        for summary in found[:limit]:
            emit(plain_summary(summary))
        return
    now = _now()
    rows = [
        (s.run_id, s.agent, s.status, _why(s), s.turn + 1, s.tool_calls, from_now(s.updated_at, now))
        for s in found[:limit]
    ]
    if rows:
        table(("run", "agent", "status", "why", "turns", "calls", "changed"), rows)
    note(f"{len(rows)} of {counted(len(found), 'run')}" if found else "no runs")


def _why(summary: RunSummary) -> str:
    return summary.waits_for or (summary.reason if summary.reason != summary.status else "")


def _matches(summary: RunSummary, status: list[str] | None, agent: str | None, wanted: dict[str, str]) -> bool:
    return (
        (not status or summary.status in status)
        and (agent is None or summary.agent == agent)
        and wanted.items() <= dict(summary.labels).items()
    )


@app.command()
def show(
    context: typer.Context,
    run: RunArgument,
    journal: Annotated[bool, typer.Option("--journal", "-j", help="The run's journal as a timeline.")] = False,
    all_records: Annotated[
        bool, typer.Option("--all", help="With --journal: also what does not count (repeats, void records).")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on showing events until it is over or waits for input.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show one run: its summary, its journal, or its events as they come.

    [bold]Examples[/]

      turnlog runs show case-4711

      turnlog runs show case-4711 --journal

      turnlog runs show case-4711 --journal --json | jq 'select(.kind=="call_settled")'
    """
    name = parse_run_id(run)
    if journal and follow:
        raise CliError("--journal and --follow are two ways to look: choose one")
    if all_records and not journal:
        raise CliError("--all belongs to --journal", f"turnlog runs show {name} --journal --all")
    here = session(context)
    if journal:
        _show_journal(here, name, all_records, json)
        return
    summary = here.client.get(name)
    if follow:
        show_events(here.client, name, None, None, json)
        if not json:
            say()
        with pointing_at(name):
            finish(here.client.wait(name, 30.0, idle), json)
    elif json:
        emit(plain_summary(summary))
    else:
        show_summary(summary, _words_of_cancel(here, summary))


def _words_of_cancel(here: Session, summary: RunSummary) -> str:
    """What whoever cancelled the run gave as reason. Only the journal has it; empty where it was trimmed, or nobody said why."""
    if summary.status != "cancelled":
        return ""
    events = (event for record in records_of(here.journal.run(summary.run_id)) for event in record.events)
    return next((event.payload.reason for event in events if isinstance(event.payload, Cancel)), "")


def _show_journal(here: Session, run_id: str, all_records: bool, json: bool) -> None:
    entries = here.journal.run(run_id)
    if not entries:
        raise RunUnknown(run_id)
    own = [entry for entry in entries if entry.run_id == run_id and (entry.counts or all_records)]
    if json:
        for entry in own:
            for item in _plain_entry(entry):
                emit(item)
        return
    opened = {owner.token: owner for owner in owners(entries)}
    say(f"run {run_id}, journal partition {here.journal.partition_of(run_id).index}, {counted(len(own), 'record')}")
    rows = []
    last_fence = b""
    for entry in own:
        if entry.fence != last_fence and entry.counts:
            rows.append(_fence_row(opened.get(entry.fence), entry))
            last_fence = entry.fence
        rows += _rows(entry)
    table(("step", "time (UTC)", "place", "event", "what", "key"), rows, width=TIMELINE_COLUMNS)


Row = tuple[object, object, object, object, object, object]


def _fence_row(owner: Owner | None, entry: Entry) -> Row:
    who = "an owner whose fence was trimmed" if owner is None else f"owned by {owner.name} since {when(owner.at)}"
    return ("", "", "", "fence", f"{entry.fence.hex()[:8]}, {who}", "")


def _rows(entry: Entry) -> Iterator[Row]:
    """The lines of one record: an event each, or one for a record that does not count or holds no events."""
    record = entry.record
    if not entry.counts or record is None:
        yield (entry.step, clock(entry.timestamp_ms), f"offset {entry.offset}", entry.verdict.value, entry.why, "")
        return
    if record.snapshot is not None:
        yield (entry.step, clock(entry.timestamp_ms), "", "snapshot", f"state of {record.snapshot.size} bytes", "")
    for index, event in enumerate(record.events):
        where = "" if event.turn is None else place(event.turn, event.position)
        key = short_key(event.call_key) if event.call_key else ""
        yield ("" if index else entry.step, clock(event.at), where, event.kind, words(event), key)


def _plain_entry(entry: Entry) -> Iterator[dict[str, object]]:
    """One object an event (or one for a record without any), each with its record's place and verdict."""
    about: dict[str, object] = {
        "step": entry.step, "offset": entry.offset, "verdict": entry.verdict.value, "fence": entry.fence.hex(),
        "sha256": entry.digest.hex(), "why": entry.why,
    }  # fmt: skip
    events = entry.record.events if entry.record is not None and entry.counts else ()
    if not events:
        kind = entry.record.kind if entry.record is not None else None
        yield {**about, "kind": kind}
    for event in events:
        payload = type(event.payload).__name__ if event.payload is not None else None
        yield {**about, **plain(event), "payload_type": payload}


@app.command()
def explain(context: typer.Context, run: RunArgument, json: JsonOption = False) -> None:
    """Say what a run is waiting for.

    Folds the run's journal and tells: which call or answer, since when, which attempt, the next timer, who owns the run's
    partition, and how far the workers of the toolset are behind.

    [bold]Example[/]

      turnlog runs explain case-4711
    """
    explaining.show(session(context), parse_run_id(run), _now(), json)


@app.command("input")
def send_input(
    context: typer.Context,
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the user says; - reads standard input.")],
    final: Annotated[bool, typer.Option("--final", help="And with that the run is over.")] = False,
    command_id: Annotated[
        str | None, typer.Option("--command-id", metavar="ID", help="Your own id: the same again is the same command.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the answer.")] = False,
    timeout: TimeoutOption = None,
    json: JsonOption = False,
) -> None:
    """Say something to a run. While it works, the words wait for the next turn.

    [bold]Examples[/]

      turnlog runs input case-4711 "Yes, please go on" --wait

      turnlog runs input case-4711 "Thank you" --final
    """
    timeout_s = seconds_option("--timeout", timeout)
    client = acting_session(context).client
    said = client.input(parse_run_id(run), text_argument(text) or "", final, command_id=command_id)
    _settled(client, run, said, json, wait, timeout_s)


@app.command()
def cancel(
    context: typer.Context,
    run: RunArgument,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why, for people; it is recorded.")
    ] = "",
    command_id: Annotated[
        str | None, typer.Option("--command-id", metavar="ID", help="Your own id: the same again is the same command.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """End a run now. Calls under way may still happen; their results are noted.

    [bold]Example[/]

      turnlog runs cancel case-4711 --reason "customer hung up"
    """
    client = acting_session(context).client
    _settled(client, run, client.cancel(parse_run_id(run), reason, command_id=command_id), json)


@app.command()
def resume(
    context: typer.Context,
    run: RunArgument,
    turns: Annotated[
        int, typer.Option("--turns", "-t", min=0, help="How many turns more; 0: its own limit again.")
    ] = 0,
    command_id: Annotated[
        str | None, typer.Option("--command-id", metavar="ID", help="Your own id: the same again is the same command.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until it is over or waits for input.")] = False,
    timeout: TimeoutOption = None,
    json: JsonOption = False,
) -> None:
    """Let a stopped run go on.

    [bold]Example[/]

      turnlog runs resume case-4711 --turns 10 --wait
    """
    timeout_s = seconds_option("--timeout", timeout)
    client = acting_session(context).client
    _settled(client, run, client.resume(parse_run_id(run), turns, command_id=command_id), json, wait, timeout_s)


def _settled(
    client: Client, run: str, command_id: str, json: bool, wait: bool = False, timeout_s: float | None = None
) -> None:
    """Print what became of the command, or with `wait` how the run stands after it. Raises RunUnknown for a run without a summary
    that refused it: the loop says why in words, of which none is made to be read by programs."""
    try:
        outcome: CommandOutcome = client.outcome(command_id, OUTCOME_TIMEOUT_S)
    except CommandRefused:
        client.get(run)
        raise
    if wait:
        with pointing_at(run):
            return finish(client.wait(run, timeout_s, idle, after_step=outcome.step or 0), json)
    if json:
        return emit(plain(outcome))
    say(
        f"{outcome.outcome}"
        + (f" at step {outcome.step}" if outcome.step is not None else "")
        + (f": {outcome.reason}" if outcome.reason else "")
    )
    return None


def _now() -> int:
    return time.time_ns() // 1_000_000
