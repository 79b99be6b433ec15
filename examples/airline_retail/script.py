"""What a model that follows a recording answers, and what it must have been told before. Pure; the wire is Chat Completions.

The check is the point: the model answers a turn only if the request is the one the recording leads to, word for word. So a
run that finishes has carried every prompt, reply, call and tool result unchanged through the whole system.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from examples.airline_retail.recording import FREE_TEXT_TOOLS, Call, Recording, Step, TrueCall, Truth, recording_id

Json = dict[str, Any]
SHOWN_CHARS = 300


class Unexpected(ValueError):
    """The request is not the one the recording leads to; the message says where it first differs."""


@dataclass(frozen=True)
class Script:
    """Everything the model goes by. Without the truth of a recording the texts of its tool results are not checked."""

    recordings: Mapping[str, Recording]
    truths: Mapping[str, Truth]
    prompts: Mapping[str, str]
    tools: Mapping[str, list[Json]]
    """By domain, as they were offered."""

    def step(self, run_id: str, turn: int, request: Json) -> Step:
        """The recorded answer to this request. Raises Unexpected."""
        recording = self._recording(run_id)
        if not 0 <= turn < len(recording.steps):
            raise Unexpected(f"turn {turn} was never recorded: {recording.id} has {len(recording.steps)}")
        _compare_tools(self.tools[recording.domain], request.get("tools") or [])
        truth = self.truths.get(recording.id)
        expected = transcript(recording, truth, self.prompts[recording.prompt_ref], turn)
        for number, (wanted, given) in enumerate(zip_longest(expected, request.get("messages") or [])):
            _compare_message(number, wanted, given)
        return recording.steps[turn]

    def _recording(self, run_id: str) -> Recording:
        try:
            return self.recordings[recording_id(run_id)]
        except (ValueError, KeyError) as error:
            raise Unexpected(f"run {run_id!r} plays no recording this model knows: {error}") from error


@dataclass(frozen=True)
class ToolResult:
    """What the model must be told of a call. `truth` is None where nobody knows."""

    call: Call
    truth: TrueCall | None


Message = tuple[str, str | None] | Step | ToolResult
"""One message the model must have been sent: a role and its text, its own answer, or the result of a call."""


def transcript(recording: Recording, truth: Truth | None, prompt: str, turn: int) -> Iterator[Message]:
    """What was said before this turn, in order."""
    results = iter(truth.calls if truth else ())
    yield "system", prompt
    yield "user", recording.opening
    for step in recording.steps[:turn]:
        yield step
        for call in step.calls:
            yield ToolResult(call, next(results, None))
        if step.user_reply is not None:
            yield "user", step.user_reply


def completion(step: Step, request: Json, answer_id: str, created: int) -> Json:
    """The step as a response body. Token counts are a quarter of the characters, which is what English text comes to."""
    message: Json = {"role": "assistant", "content": step.content, "refusal": None}
    if step.calls:
        message["tool_calls"] = [_wire_call(call) for call in step.calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "tool_calls" if step.calls else "stop",
    }
    return {
        "id": answer_id,
        "object": "chat.completion",
        "created": created,
        "model": request.get("model", "recorded"),
        "choices": [choice],
        "usage": _usage(request, message),
    }


def _wire_call(call: Call) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(request: Json, message: Json) -> Json:
    prompt = len(json.dumps(request.get("messages"))) // 4 + 1
    answer = len(json.dumps(message)) // 4 + 1
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _compare_tools(offered: list[Json], given: Any) -> None:
    """The order of tools does not matter. The schema of a tool with free text does not either: there is nothing to describe."""
    wanted, got = ({tool["function"]["name"]: tool["function"] for tool in tools} for tools in (offered, given))
    if wanted.keys() != got.keys():
        raise Unexpected(f"tools offered: wanted {sorted(wanted)}, got {sorted(got)}")
    for name, function in wanted.items():
        parts = ("description",) if name in FREE_TEXT_TOOLS else ("description", "parameters")
        for part in parts:
            if function[part] != got[name].get(part):
                raise Unexpected(f"{part} of tool {name}: {_difference(function[part], got[name].get(part))}")


def _compare_message(number: int, wanted: Message | None, given: Json | None) -> None:
    if wanted is None or given is None:
        raise Unexpected(f"message {number}: wanted {_shown(wanted)}, got {_shown(given)}")
    got = _comparable(given)
    if isinstance(wanted, ToolResult) and wanted.truth is None:
        got["content"] = None
    if isinstance(wanted, ToolResult) and wanted.truth and wanted.truth.error:
        _compare_refusal(number, wanted.truth.output, got["content"])
        got["content"] = wanted.truth.output
    expected = _expected(wanted)
    for part in dict.fromkeys([*expected, *got]):
        if expected.get(part) != got.get(part):
            raise Unexpected(f"message {number}, {part}: {_difference(expected.get(part), got.get(part))}")


def _compare_refusal(number: int, output: str, given: str | None) -> None:
    """A refusal may come fenced: its text is a tool's, and a model should be able to tell."""
    if output not in (given or ""):
        raise Unexpected(f"message {number}, content: {_difference(output, given)}")


def _expected(wanted: Message) -> Json:
    match wanted:
        case Step():
            return {"role": "assistant", "content": wanted.content or "", "calls": list(map(_wire_call, wanted.calls))}
        case ToolResult():
            content = wanted.truth.output if wanted.truth else None
            return {"role": "tool", "content": content, "tool_call_id": wanted.call.id}
        case (role, text):
            return {"role": role, "content": text}


def _comparable(given: Json) -> Json:
    """A message with what varies between clients evened out: the name of the system's role, null for no text, text in parts."""
    content = given.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    role = "system" if given.get("role") == "developer" else given.get("role")
    message: Json = {"role": role, "content": content or ""}
    if role == "assistant":
        message["calls"] = given.get("tool_calls") or []
    if role == "tool":
        message["tool_call_id"] = given.get("tool_call_id")
    return message


def _difference(wanted: Any, got: Any) -> str:
    return f"wanted {_shown(wanted)}, got {_shown(got)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(text)} characters)"
