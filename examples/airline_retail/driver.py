"""Plays the recorded users: starts each run, says what the user said whenever the run waits for input, and sees it end.

One thread a run: what a person at a terminal would do, and easy to read. Nothing here looks at what the agent says; that it is
right is judged afterwards, from the journal (`judge`).
"""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from examples.airline_retail.agents import agent_name
from examples.airline_retail.recording import Ending, Recording
from turnlog.client import Client, CommandRefused, NotAcknowledged, TimedOut, ended
from turnlog.core.records import RunSummary
from turnlog.kafka.port import LogError

START_REFUSED_S = 60.0
"""How long a start may be refused: a loop learns of agents and tools a moment after they are published."""
PAUSE_S = 0.2
SLICE_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True)
class Played:
    """How a run went. `problem` is empty if it ended as recorded."""

    recording: Recording
    run_id: str
    problem: str
    seconds: float


class Driver:
    """Plays recordings against a running system. `play_id` must be new for each play of one installation."""

    def __init__(
        self,
        client: Client,
        play_id: str,
        *,
        concurrency: int,
        timeout_s: float,
        progress: Callable[[Played], None] = lambda _: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`timeout_s` bounds the whole play; `progress` is called after each run that a stop did not break off, in any thread but
        never in two at once; `check` raises when there is no use in waiting any longer."""
        self._client = client
        self._play_id = play_id
        self._concurrency = concurrency
        self._deadline = time.monotonic() + timeout_s
        self._progress = progress
        self._check = check
        self._telling = threading.Lock()
        self._stopping = threading.Event()

    def play(self, recordings: Iterable[Recording]) -> list[Played]:
        """Plays all of them, at most `concurrency` at once, and returns them in the given order. What goes wrong with a run is
        said in its `Played`; nothing is raised for it."""
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="user") as users:
            try:
                return list(users.map(self._play_one, recordings))
            finally:  # after Ctrl-C nobody waits for an hour of conversations
                self._stopping.set()

    def stop(self) -> None:
        """Lets every conversation end at its next wait, with a problem."""
        self._stopping.set()

    def _play_one(self, recording: Recording) -> Played:
        began = time.monotonic()
        run_id = f"{self._play_id}.{recording.id}"
        try:
            problem = self._converse(recording, run_id)
        except Exception as error:  # noqa: BLE001 - one run's failure is a line in the report, whatever it is
            problem = f"{type(error).__name__}: {error}"
        played = Played(recording, run_id, problem, time.monotonic() - began)
        if not (problem and self._stopping.is_set()):  # one that was broken off is no conversation that went wrong
            with self._telling:
                self._progress(played)
        return played

    def _converse(self, recording: Recording, run_id: str) -> str:
        """The whole conversation; returns what went wrong, in words."""
        self._start(recording, run_id)
        for turn, text, final in recording.inputs():
            summary = self._await(run_id, partial(_over_or_waiting, turn))
            if ended(summary):
                return f"ended at turn {summary.turn}, where the user would reply to turn {turn}: {_said(summary)}"
            self._insist(partial(self._say, run_id, turn, text, final))
        return self._close(recording, run_id)

    def _start(self, recording: Recording, run_id: str) -> None:
        patience = time.monotonic() + START_REFUSED_S
        while self._slice_s():
            try:
                self._insist(lambda: self._submit(recording, run_id))
                self._await(run_id, lambda summary: True)
                return
            except CommandRefused:
                if time.monotonic() > patience:
                    raise
                self._stopping.wait(PAUSE_S)

    def _submit(self, recording: Recording, run_id: str) -> None:
        labels = {"play": self._play_id, "recording": recording.id}
        agent, limit = agent_name(recording), recording.turn_limit
        self._client.submit(agent, recording.opening, run_id, labels=labels, turn_limit=limit)

    def _say(self, run_id: str, turn: int, text: str, final: bool) -> None:
        """The command's id follows from its place, so that saying it again says it once."""
        self._client.input(run_id, text, final, command_id=f"{run_id}:reply:{turn}")

    def _close(self, recording: Recording, run_id: str) -> str:
        """Waits for the end and compares it with the recorded one."""
        if recording.ending is Ending.OPEN:
            summary = self._await(run_id, partial(_over_or_waiting, len(recording.steps) - 1))
            self._insist(lambda: self._client.cancel(run_id, "the recording ends here", command_id=f"{run_id}:close"))
            return "" if not ended(summary) else f"does not wait for its user: {_said(summary)}"
        summary = self._await(run_id, ended)
        wanted = "stopped" if recording.ending is Ending.TURN_LIMIT else "succeeded"
        if summary.status == wanted and summary.turn == len(recording.steps) - 1:
            return ""
        return f"wanted {wanted} at turn {len(recording.steps) - 1}, got {_said(summary)} at turn {summary.turn}"

    def _await(self, run_id: str, until: Callable[[RunSummary], bool]) -> RunSummary:
        """Waits in slices, so that a stop and the deadline are noticed. Raises TimeoutError, CommandRefused."""
        while True:
            try:
                return self._client.wait(run_id, self._slice_s(), until)
            except TimedOut:
                continue

    def _slice_s(self) -> float:
        """How long to wait before looking up again. Raises TimeoutError when the play is over, and what `check` raises."""
        self._check()
        left = self._deadline - time.monotonic()
        if left <= 0 or self._stopping.is_set():
            raise TimeoutError("the play was stopped" if left > 0 else "the play's time is over")
        return min(left, SLICE_S)

    def _insist(self, send: Callable[[], T]) -> T:
        """Sends until the log has it: a broker that is killed and comes back must not end a conversation."""
        while True:
            try:
                return send()
            except (NotAcknowledged, LogError):
                if time.monotonic() > self._deadline or self._stopping.wait(PAUSE_S):
                    raise


def _over_or_waiting(turn: int, summary: RunSummary) -> bool:
    """Whether the run is over, or waits for its user's reply to this turn."""
    return ended(summary) or (summary.status == "waiting" and summary.turn >= turn)


def _said(summary: RunSummary) -> str:
    return " ".join(part for part in (summary.status, summary.reason, summary.error or "") if part)
