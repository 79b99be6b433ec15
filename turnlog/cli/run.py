"""`turnlog run`: start a run, and follow it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from turnlog.cli.errors import CliError, Exit
from turnlog.cli.output import console, emit, fields, note, plain, say, span, when
from turnlog.cli.parsing import labels, seconds_option, text_argument
from turnlog.cli.wiring import acting_session
from turnlog.client import Client, RecordedEvent, TimedOut, idle
from turnlog.client.client import JournalMark
from turnlog.core.events import Event
from turnlog.core.ids import place
from turnlog.core.records import RunSummary
from turnlog.journal.timeline import words

OUTCOME_TIMEOUT_S = 30.0
PAUSES = frozenset({"input_awaited", "run_stopped"})

HELP = """Start a run of AGENT.

Prints the run's id once the loop has taken it. With --follow it shows what is recorded, as it is recorded, until the run is
over or waits for its user; Ctrl-C leaves the run alone. Starting again with the same --run-id starts nothing.

[bold]Examples[/]

  turnlog run airline --input "Cancel my booking EHGLP3" --follow

  cat letter.txt | turnlog run clerk --input - --label tenant=acme --run-id case-4711

  turnlog run airline --input "..." --wait --json | jq -r .answer

Exit codes: 0 started (with --follow or --wait: went well, or waits for input), 1 the run failed or was cancelled,
2 bad arguments, 4 refused, 5 no cluster, 6 timed out (the run goes on).
"""


def run(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent: see `turnlog agents list`.")],
    input: Annotated[  # noqa: A002
        str | None,
        typer.Option("--input", "-i", metavar="TEXT", help="First words of the user; - reads standard input."),
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", metavar="RUN", help="Your own id: 1 to 128 of A-Z a-z 0-9 . _ - (default: random)."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="NAME=VALUE", help="For filters; may be repeated.")
    ] = None,
    agent_version: Annotated[
        str | None,
        typer.Option("--agent-version", metavar="VERSION", help="Version of the agent (default: the newest)."),
    ] = None,
    turn_limit: Annotated[
        int | None, typer.Option("--turn-limit", min=0, help="Stop cleanly after so many turns; 0: no limit.")
    ] = None,
    tool_call_budget: Annotated[
        int | None, typer.Option("--tool-call-budget", min=0, help="Fail beyond so many tool calls; 0: none.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="Fail after this time: 90s, 15m, 2h.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show events until it is over or waits for input.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait like --follow, but print only how it ended.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="How long to follow or wait (default: for ever).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object; with --follow one a line.")] = False,
) -> None:
    client = acting_session(context).client
    name = run_id or f"run-{secrets.token_hex(8)}"
    timeout_s = seconds_option("--timeout", timeout)
    deadline_s = seconds_option("--deadline", deadline)
    named, words_of_user = labels(label or []), text_argument(input)
    mark = client.mark(name) if follow else None
    handle = client.submit(
        agent, words_of_user, name, labels=named, agent_version=agent_version, turn_limit=turn_limit,
        tool_call_budget=tool_call_budget, deadline_s=deadline_s,
    )  # fmt: skip
    outcome = handle.outcome(OUTCOME_TIMEOUT_S)
    if outcome.outcome == "duplicate":
        note(f"run {name} exists already: nothing was started")
        mark = None
    if not follow and not wait:
        emit(plain(outcome)) if json else say(name)
        return
    with pointing_at(name):
        if follow:
            if not json:
                say(f"run {name}")
            show_events(client, name, mark, timeout_s, json)
            if not json:
                say()
        finish(handle.wait(timeout_s, idle, after_step=outcome.step or 0), json)


@contextmanager
def pointing_at(run_id: str) -> Iterator[None]:
    """Within the block, time that is over is told with the command that says what the run waits for."""
    try:
        yield
    except TimedOut as late:
        remedy = f"it goes on; see what it waits for: turnlog runs explain {run_id}"
        raise CliError(str(late), remedy, Exit.TIMED_OUT) from None


def show_events(client: Client, run_id: str, since: JournalMark | None, timeout_s: float | None, json: bool) -> None:
    """Print events as they are recorded, until the run is over or waits for its user. Ctrl-C leaves the run alone."""
    began = 0
    try:
        with _activity(json) as tell:
            for recorded in client.events(run_id, since, timeout_s):
                began = began or recorded.event.at
                if json:
                    emit({"step": recorded.step, "offset": recorded.offset, **plain(recorded.event)})
                else:
                    say(line(recorded, began))
                tell(recorded.event)
                if recorded.last and recorded.event.kind in PAUSES:
                    break
    except KeyboardInterrupt:
        note(f"the run goes on; follow it again with: turnlog runs show {run_id} --follow")
        raise


@contextmanager
def _activity(json: bool) -> Iterator[Callable[[Event], None]]:
    """A spinner that says what is under way, on a terminal."""
    shown = console(stderr=True)
    if json or not shown.is_terminal:
        yield lambda event: None
        return
    with shown.status("waiting for the loop") as status:
        yield lambda event: status.update(_next(event))


def _next(event: Event) -> str:
    match event.kind:
        case "turn_started":
            return f"the model thinks about turn {event.turn}"
        case "call_requested":
            return f"waiting for tool {event.tool}"
    return "going on"


def line(recorded: RecordedEvent, began: int) -> str:
    """An event as one line: distance to the start, step, place, kind, words."""
    event = recorded.event
    where = "" if event.turn is None else place(event.turn, event.position)
    return f"{span(event.at - began):>8}  {recorded.step:>4}  {where:<14}  {event.kind:<18}  {words(event)}".rstrip()


def finish(summary: RunSummary, json: bool) -> None:
    """Print how it stands, and leave with the code that says so."""
    if json:
        emit(plain_summary(summary))
    else:
        show_summary(summary)
    if summary.status in ("failed", "cancelled"):
        raise typer.Exit(Exit.BAD)


def plain_summary(summary: RunSummary) -> dict[str, object]:
    """A summary as JSON values; labels are an object."""
    return {**plain(summary), "labels": dict(summary.labels)}


def show_summary(summary: RunSummary, why: str = "") -> None:
    """A summary for people; `why`: the words of whoever cancelled it."""
    took = (summary.ended_at or summary.updated_at) - summary.started_at
    used = summary.usage
    fields(
        [
            ("run", summary.run_id),
            ("agent", f"{summary.agent} {summary.agent_version}"),
            ("labels", " ".join(f"{name}={value}" for name, value in summary.labels)),
            ("status", summary.status),
            ("reason", why or (summary.reason if summary.reason != summary.status else "")),
            ("waits for", summary.waits_for),
            ("answer", summary.answer),
            ("error", summary.error),
            ("turns", summary.turn + 1),
            ("tool calls", summary.tool_calls),
            (
                "tokens",
                f"{used.input_tokens} in, {used.output_tokens} out" if used.input_tokens or used.output_tokens else "",
            ),
            ("took", span(took)),
            ("started", when(summary.started_at)),
            ("step", summary.step),
        ]
    )
