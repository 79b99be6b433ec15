"""Reading recordings: the endings, the inputs, and files that are not of the form."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.airline_retail.recording import (
    DATA_DIR,
    DOMAINS,
    NO_PROMPT,
    BadRecording,
    Ending,
    load_recordings,
    load_tools,
    load_truths,
    prompts_for,
    recording_id,
)

SAMPLE = load_recordings(DATA_DIR / "sample.jsonl")


def step(content: str | None = None, *tools: str, reply: str | None = None) -> dict[str, Any]:
    calls = [{"id": "call_1", "name": name, "arguments": "{}"} for name in tools]
    return {"assistant": {"content": content, "tool_calls": calls}, "tool_results": [], "user_reply": reply}


def line(*steps: dict[str, Any], **changes: Any) -> str:
    row = {"id": "r", "domain": "retail", "system_prompt_ref": "p", "user_turns": ["Hi"], "steps": list(steps)}
    return json.dumps(row | changes) + "\n"


@pytest.mark.parametrize(
    ("steps", "ending", "turn_limit"),
    [
        ([step("Hello", reply="Bye ###STOP###")], Ending.FINAL_INPUT, None),
        ([step(None, "transfer_to_human_agents")], Ending.TOOL, None),
        ([step("Hello", reply="Go on"), step(None, "think")], Ending.TURN_LIMIT, 2),
        ([step("Hello", reply="Go on")], Ending.TURN_LIMIT, 1),
        ([step("Hello")], Ending.OPEN, None),
    ],
)
def test_the_ending_is_read_from_the_last_step(
    tmp_path: Path, steps: list[dict[str, Any]], ending: Ending, turn_limit: int | None
) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(line(*steps))
    recording = load_recordings(path)["r"]
    assert (recording.ending, recording.turn_limit) == (ending, turn_limit)


def test_only_the_last_reply_can_be_final() -> None:
    inputs = list(SAMPLE["tau-retail-gpt4o-1120-advice-t022-r22"].inputs())
    assert [final for _, _, final in inputs] == [False] * (len(inputs) - 1) + [True]
    assert not any(final for _, _, final in SAMPLE["tau-airline-gpt4o-t033-r0"].inputs())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "line 1: JSONDecodeError"),
        ("[]\n", "line 1: TypeError"),
        (line(step("Hello"), domain="telecom"), "'telecom' is none of airline, retail"),
        (line(), "without steps"),
        (line(step("Hello")) * 2, "line 2: 'r' was there before"),
        (line(step("Hello"), user_turns=None), "line 1: TypeError"),
    ],
)
def test_a_foreign_file_is_refused_with_line_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with pytest.raises(BadRecording, match=reason):
        load_recordings(path)


def test_a_run_id_names_its_recording() -> None:
    assert recording_id("p-1.tau.x") == "tau.x"
    for bad in ("tau", ".tau", "p."):
        with pytest.raises(ValueError, match="play id"):
            recording_id(bad)


def test_a_prompt_that_is_not_at_hand_is_no_reason_not_to_play() -> None:
    recording = replace(next(iter(SAMPLE.values())), prompt_ref="0f0f")
    assert prompts_for([recording])["0f0f"] == f"{NO_PROMPT} 0f0f"


def test_the_example_has_all_that_its_sample_needs() -> None:
    truths = load_truths(DATA_DIR / "sample_truth.jsonl")
    offered = {domain: {tool["function"]["name"] for tool in load_tools(domain)} for domain in DOMAINS}
    for recording in SAMPLE.values():
        calls = [call.name for _, _, call in recording.calls()]
        assert [call.name for call in truths[recording.id].calls] == calls
        assert not prompts_for([recording])[recording.prompt_ref].startswith(NO_PROMPT)
        assert set(calls) <= offered[recording.domain]
