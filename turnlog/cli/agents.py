"""`turnlog agents`: publish and look at agents (topic `agents`, one per name)."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from turnlog.cli.agent_file import BadAgent, agents_of
from turnlog.cli.errors import CliError, Exit
from turnlog.cli.output import emit, fields, note, plain, say, span, table, warn
from turnlog.cli.wiring import Session, acting_session, session
from turnlog.client.links import Append, Receipt, Sender
from turnlog.codec import CodecError, Unreadable
from turnlog.core.agents import AgentSpec
from turnlog.core.definitions import manifest_problem, pattern_problem
from turnlog.core.records import ToolManifest
from turnlog.journal.timeline import counted
from turnlog.kafka.port import LogError

app = typer.Typer(no_args_is_help=True, help="Publish and look at agents.")

ACKNOWLEDGED_S = 30.0

APPLY_HELP = """Publish the agents of FILE.

The name is the key: a new definition replaces the old for runs that start from then on; runs that go on keep what they began
with. Tools that no worker has announced yet are named in a warning; they must be there when a run starts.

[bold]A file[/]

  name: airline
  version: "3"
  model: openai/gpt-4o          # <provider>/<model>
  model_settings: {temperature: 0}
  instructions: |
    You help customers of an airline ...
  tools: [airline/*, mail/send]  # <toolset>/<tool> or <toolset>/*
  conversation: true             # wait for the user after each answer
  parallel_calls: 4
  tool_errors: feed_back         # or fail
  turn_limit: 50                 # 0: none; so also tool_call_budget, deadline
  deadline: 15m                  # times: 30 (seconds), 250ms, 30s, 15m, 2h
  model_attempts: 5
  model_backoff: 500ms
  model_timeout: 2m

Several agents are separated by a line with ---.
"""


@app.command(help=APPLY_HELP)
def apply(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML file, or - for standard input.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object an agent, with its `warnings`.")] = False,
) -> None:
    found = _read(file)
    warnings: list[list[str]] = [[] for _ in found]
    if not dry_run:
        here = acting_session(context)
        _publish(here, found)
        warnings = _warnings(here, found)
    for agent, doubts in zip(found, warnings, strict=True):
        if json:
            emit({**_plain(agent), "warnings": doubts})
            continue
        say(f"agent {agent.name} {agent.version}: {'looks good' if dry_run else 'published'}")
        for doubt in doubts:
            warn(f"agent {agent.name}: {doubt}")


def _read(file: str) -> list[AgentSpec]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except OSError as problem:
        raise CliError(f"cannot read {file}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise CliError(f"{file} is not UTF-8 (at byte {problem.start})") from None
    try:
        return agents_of(text)
    except BadAgent as bad:
        told = bad.problems[0] if len(bad.problems) == 1 else "".join(f"\n    {problem}" for problem in bad.problems)
        raise CliError(
            f"{file}: {told}".replace(": \n", ":\n"), "turnlog agents apply --help shows a whole file"
        ) from None


def _publish(here: Session, agents: list[AgentSpec]) -> None:
    here.partitions("agents")  # says so if the topic is missing
    values = [(agent, here.codec.encode(agent)) for agent in agents]
    sender = Sender(here.cluster, "turnlog-cli-agents")
    try:
        receipts = []
        for agent, value in values:
            receipt = Receipt(f"agent {agent.name}")
            sender.append(Append(here.topic("agents"), agent.name.encode(), value), receipt.settle, 0.0)
            receipts.append(receipt)
        for receipt in receipts:
            receipt.wait(ACKNOWLEDGED_S)
    finally:
        sender.close()


def _warnings(here: Session, agents: list[AgentSpec]) -> list[list[str]]:
    """What runs of each agent would be refused for, as things are: an agent may be published before its workers start."""
    if not any(agent.tools for agent in agents):
        return [[] for _ in agents]
    try:
        tools, rejected = _announced(here)
    except (
        CliError,
        LogError,
        CodecError,
    ) as problem:  # they are published: that nobody could look is no reason to fail
        note(f"whether their tools are there could not be seen: {problem}")
        return [[] for _ in agents]
    found = ([pattern_problem(pattern, tools, rejected) for pattern in agent.tools] for agent in agents)
    return [[problem for problem in problems if problem is not None] for problems in found]


def _announced(here: Session) -> tuple[dict[str, list[str]], list[str]]:
    """Names of tools by toolset, and the keys of manifests that define nothing, as the loop sees them."""
    tools: dict[str, list[str]] = {}
    rejected = []
    for key, received in here.table("tool-manifests").items():
        name = key.decode("utf-8", "replace")
        try:
            manifest = here.codec.decode(received.value, ToolManifest)
            taken = manifest_problem(name, manifest, here.topic("tool-requests.")) is None
        except Unreadable:
            taken = False
        if taken:
            tools.setdefault(manifest.toolset, []).append(manifest.tool)
        else:
            rejected.append(name)
    return tools, rejected


@app.command("list")
def list_agents(
    context: typer.Context, json: Annotated[bool, typer.Option("--json", help="One JSON object an agent.")] = False
) -> None:
    """List the agents that can be started."""
    found = sorted(_known(session(context)).values())
    if json:
        for agent in found:
            emit(_plain(agent))
        return
    if found:
        table(
            ("agent", "version", "model", "tools", "kind"),
            [(a.name, a.version, a.model, _some(a.tools), _kind(a)) for a in found],
        )
    note(counted(len(found), "agent") if found else "no agents: publish one with turnlog agents apply FILE.yaml")


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent: see `turnlog agents list`.")],
    json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """Show one agent as it is published."""
    agent = _known(session(context)).get(name)
    if agent is None:
        raise CliError(f"there is no agent {name!r}", "list what there is: turnlog agents list", Exit.UNKNOWN)
    if json:
        return emit(_plain(agent))
    shown = agent._asdict()
    times = {field.removesuffix("_ms"): span(shown.pop(field)) for field in list(shown) if field.endswith("_ms")}
    if agent.deadline_ms == 0:
        times["deadline"] = "none"
    instructions = shown.pop("instructions")
    fields(
        [
            *(
                (field, "none" if value == () else str(value).lower() if isinstance(value, bool) else value)
                for field, value in {**shown, "tools": " ".join(agent.tools), **times}.items()
            )
        ]
    )
    say()
    say(instructions.rstrip())
    return None


def _known(here: Session) -> dict[str, AgentSpec]:
    found = {}
    for key, received in here.table("agents").items():
        try:
            agent = here.codec.decode(received.value, AgentSpec)
        except Unreadable as problem:
            note(f"agent {key.decode('utf-8', 'replace')} cannot be read: {problem}")
            continue
        found[agent.name] = agent
    return found


def _some(tools: tuple[str, ...], most: int = 3) -> str:
    """The first tools and how many there are: `agents show` names them all."""
    return " ".join(tools[:most]) + (f" … ({len(tools)})" if len(tools) > most else "")


def _kind(agent: AgentSpec) -> str:
    return "conversation" if agent.conversation else "one answer"


def _plain(agent: AgentSpec) -> dict[str, object]:
    return {**plain(agent), "model_settings": jsonlib.loads(agent.model_settings)}
