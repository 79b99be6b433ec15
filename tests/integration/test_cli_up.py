"""`turnlog up` as a stranger meets it: everything starts, a run goes through, everything is gone after Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = """
name: talk
version: "1"
model: scripted/echo
instructions: Say it again.
tools: [weather/*]
"""
TOOLS = """
from turnlog.tools import ToolContext, Toolset

tools = Toolset("weather", version="1")

@tools.tool()
async def forecast(ctx: ToolContext, city: str) -> str:
    "The weather of tomorrow."
    return f"Sunny in {city}"
"""


def alive_in(folder: Path) -> list[str]:
    """Processes that work in this folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and Path(os.readlink(process / "cwd")) == folder:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_everything_starts_works_and_stops(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(AGENT)
    (tmp_path / "mytools.py").write_text(TOOLS)
    env = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    root = str(Path(__file__).parents[2])
    env |= {"TURNLOG_MODELS__SCRIPTED": "true", "PYTHONPATH": root}
    program = [sys.executable, "-m", "turnlog.cli.main"]

    def turnlog(*arguments: str) -> str:
        done = subprocess.run(
            [*program, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    up = subprocess.Popen(
        [*program, "up", "--port", "0", "--worker", "mytools:tools", "--json"],
        cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert up.stdout is not None
        ready = up.stdout.readline()
        assert ready, up.stderr.read() if up.stderr else ""
        assert json.loads(ready)["services"] == ["loop", "worker-0-mytools"]
        assert "published" in turnlog("agents", "apply", "agent.yaml")
        assert (
            json.loads(turnlog("run", "talk", "-i", "hello", "--run-id", "r1", "--wait", "--json"))["answer"] == "hello"
        )
        assert "run_succeeded" in turnlog("runs", "show", "r1", "--journal")
        assert ": no fault" in turnlog("verify", "--all")
        os.killpg(up.pid, signal.SIGINT)
        assert up.wait(60) == 0
    finally:
        if up.poll() is None:
            os.killpg(up.pid, signal.SIGKILL)
        up.communicate()
    assert alive_in(tmp_path) == []
