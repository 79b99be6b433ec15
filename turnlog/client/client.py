"""The client: commands out, summaries and outcomes back. See the package's docstring for a first example."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from turnlog.client import commands, tables
from turnlog.client.commands import StartRequest
from turnlog.client.errors import BadCommand, CommandRefused, NotConnected, RunUnknown, TimedOut
from turnlog.client.links import Append, Follower, Receipt, Sender
from turnlog.client.watch import Board, Until, Watch, ended, idle
from turnlog.codec.errors import Unreadable
from turnlog.core.events import TERMINAL, Event
from turnlog.core.ids import run_id_problem
from turnlog.core.records import Command, CommandOutcome, RunSummary
from turnlog.journal.entries import judged
from turnlog.journal.reading import JournalReader
from turnlog.kafka.fenced import PartitionFold, Verdict
from turnlog.kafka.partitioner import partition_of
from turnlog.kafka.port import Cluster, Headers, LogError, Partition, Reader, Received, Retryable, TooLarge

if TYPE_CHECKING:
    from turnlog.settings import Settings

_log = logging.getLogger(__name__)

T = TypeVar("T")

COMMANDS, RUN_STATE, OUTCOMES, JOURNAL = "commands", "run-state", "command-outcomes", "journal"
SEND_TIMEOUT_S = 30.0
CONTACT_S = 5.0
"""How long the first question to the cluster may stay without an answer, before it counts as not connected."""


class ClientCodec(Protocol):
    """What is needed of `turnlog.codec.Codec`."""

    def encode(self, record: Any, /) -> bytes: ...
    def decode(self, data: bytes | None, kind: type[T], /) -> T: ...


class RecordedEvent(NamedTuple):
    """An event of a run as the journal has it. `last`: nothing follows it in its step."""

    step: int
    offset: int
    event: Event
    last: bool


class JournalMark(NamedTuple):
    """A place in the journal from which a run's events can be followed without reading what lies before."""

    partition: Partition
    offset: int
    token: bytes | None


class Client:
    """Starts, steers and watches runs. Thread-safe; close it, or use it in a `with` block.

    Ordering: commands of one client to one run arrive in the order of the calls that returned. A call that raises `TimedOut`
    promises nothing either way. Two threads are started with the first command or wait; nothing is connected before. A cluster that
    does not answer the first question within 5 s is NotConnected, whatever the call's own timeout; the message names its address.
    """

    def __init__(
        self, cluster: Cluster, codec: ClientCodec, prefix: str = "turnlog.", *, name: str = "turnlog-client"
    ) -> None:
        self._cluster = cluster
        self._codec = codec
        self._prefix = prefix
        self._name = name
        self._board = Board()
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._sender: Sender | None = None
        self._follower: Follower | None = None
        self._lookup: Reader | None = None
        self._listeners: list[Callable[[RunSummary], object]] = []
        self._closed = False

    @classmethod
    def connect(cls, bootstrap: str | None = None, settings: Settings | None = None) -> Client:
        """A client of a real cluster. Settings come from the environment (`TURNLOG_...`) unless given; `bootstrap` wins over them.
        Where none of these names a cluster, the broker that `turnlog up` runs from this folder is taken, if it does."""
        from turnlog.client.connect import connected

        cluster, codec, prefix = connected(bootstrap, settings)
        return cls(cluster, codec, prefix)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait up to ten seconds for commands under way, then let go of everything. Whoever still waits gets an error."""
        with self._lock:
            self._closed = True
            sender, follower, lookup = self._sender, self._follower, self._lookup
            self._sender = self._follower = self._lookup = None
        self._board.fail(NotConnected("the client is closed"))
        if sender is not None:
            sender.close()
        if follower is not None:
            follower.close()
        if lookup is not None:
            lookup.close()

    # ---------------------------------------------------------------- commands

    def submit(
        self,
        agent: str,
        input: str | None = None,  # noqa: A002  # the word of the domain
        run_id: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        agent_version: str | None = None,
        turn_limit: int | None = None,
        tool_call_budget: int | None = None,
        deadline_s: float | None = None,
        command_id: str | None = None,
        traceparent: str | None = None,
        acknowledged: bool = True,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> RunHandle:
        """Start a run. Returns once the log has the command (with `acknowledged=False`: once it is queued); that the loop took it
        is told by `outcome(handle.command_id)`, and by `wait`.

        Idempotent by `run_id`: again with the same one starts nothing. Raises BadCommand (nothing was sent), NotConnected,
        NotAcknowledged (send it again), or the log's own error.
        """
        request = StartRequest(
            agent, input, run_id, labels or {}, agent_version, turn_limit, tool_call_budget, deadline_s, command_id
        )
        command = commands.start(request)
        receipt = self._send(command, timeout_s, traceparent)
        if acknowledged:
            receipt.wait(timeout_s)
        return RunHandle(self, command.run_id, command.command_id)

    def submit_many(self, requests: Iterable[StartRequest], *, timeout_s: float = 300.0) -> list[RunHandle]:
        """Start many runs, pipelined; returns once the log has all commands. Raises like `submit`, at the first that fails: those
        before it were sent, and all of them may be submitted again where they have run ids."""
        deadline = time.monotonic() + timeout_s
        sent = [
            (command, self._send(command, deadline - time.monotonic())) for command in map(commands.start, requests)
        ]
        for _, receipt in sent:
            receipt.wait(max(0.0, deadline - time.monotonic()))
        return [RunHandle(self, command.run_id, command.command_id) for command, _ in sent]

    def input(
        self,
        run_id: str,
        text: str,
        final: bool = False,
        *,
        command_id: str | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> str:
        """Say something to the run; `final` ends it with that. Returns the command's id once the log has it."""
        return self._say(commands.send_input(run_id, text, final, command_id), timeout_s)

    def cancel(
        self, run_id: str, reason: str = "", *, command_id: str | None = None, timeout_s: float = SEND_TIMEOUT_S
    ) -> str:
        """Ask the run to end now. Returns the command's id once the log has it."""
        return self._say(commands.cancel(run_id, reason, command_id), timeout_s)

    def resume(
        self, run_id: str, turns: int = 0, *, command_id: str | None = None, timeout_s: float = SEND_TIMEOUT_S
    ) -> str:
        """Let a stopped run go on for `turns` more turns (0: its own limit again). Returns the command's id once the log has it."""
        return self._say(commands.resume(run_id, turns, command_id), timeout_s)

    def ask(self, run_id: str, text: str, *, timeout_s: float = 120.0) -> RunSummary:
        """Say something and wait until the run has answered: it waits for input again, or is over. Raises CommandRefused, TimedOut."""
        deadline = time.monotonic() + timeout_s
        command_id = self.input(run_id, text, timeout_s=timeout_s)
        step = self.outcome(command_id, max(0.0, deadline - time.monotonic())).step
        return self.wait(run_id, max(0.0, deadline - time.monotonic()), idle, after_step=step or 0)

    def _say(self, command: Command, timeout_s: float) -> str:
        self._send(command, timeout_s).wait(timeout_s)
        return command.command_id

    def _send(self, command: Command, timeout_s: float, traceparent: str | None = None) -> Receipt:
        value = commands.encoded(command, self._codec)
        sender = self._started()
        self._board.watch_command(command.command_id)
        if command.kind == "start":
            self._board.watch_run(command.run_id, look=False)
            self._board.forget_problem(command.run_id)
        receipt = Receipt(f"the {command.kind} command {command.command_id!r}")

        def settle(error: LogError | None) -> None:
            receipt.settle(error)
            if error is not None:
                self._board.lose_command(command.command_id, command.run_id, command.kind, error)

        headers: Headers = () if traceparent is None else (("traceparent", traceparent.encode("ascii")),)
        try:
            sender.append(
                Append(self._prefix + COMMANDS, command.run_id.encode(), value, headers),
                settle,
                time.monotonic() + timeout_s,
            )
        except TooLarge as problem:
            raise BadCommand(f"the command has {len(value)} bytes, more than the cluster takes: {problem}") from problem
        return receipt

    # ---------------------------------------------------------------- what became of it

    def outcome(self, command_id: str, timeout_s: float = SEND_TIMEOUT_S) -> CommandOutcome:
        """What became of a command, accepted or duplicate. Raises CommandRefused, TimedOut, or the log's error.

        Outcomes of other clients' commands are found too, as long as the topic keeps them.
        """
        deadline = time.monotonic() + timeout_s
        self._started()
        if self._board.watch_command(command_id):
            self._look_for_outcome(command_id)
        outcome = self._board.await_outcome(command_id, deadline)
        if outcome is None:
            raise TimedOut(f"no outcome of command {command_id!r} within {timeout_s:g} s: is the loop running?")
        if outcome.outcome == "refused":
            raise CommandRefused(outcome)
        return outcome

    def wait(
        self, run_id: str, timeout_s: float | None = None, until: Until = ended, *, after_step: int = 0
    ) -> RunSummary:
        """The run's first summary at `after_step` or later for which `until` holds; by default, once it is over. `idle` also ends
        when it waits for its user. Without `timeout_s` it waits for ever.

        Summaries are coalesced: not every state is seen. Raises CommandRefused if the run's start (sent by this client) was
        refused, RunUnknown for an id that is none, TimedOut with what is known in its message.
        """
        _good_run_id(run_id)
        deadline = time.monotonic() + (1e9 if timeout_s is None else timeout_s)
        self._started()
        watch = self._board.watch_run(run_id, look=True)
        while True:
            summary = self._board.await_run(watch, until, after_step, deadline)
            if summary is not None:
                return summary
            if watch.look:
                self._look(watch)
            elif time.monotonic() >= deadline:
                known = "nothing is known of it yet" if watch.summary is None else f"it is {_said(watch.summary)}"
                raise TimedOut(f"waited {timeout_s or 0:g} s in vain for run {run_id!r}: {known}")

    def _look(self, watch: Watch) -> None:
        """Read the topic once for a run that this client did not start."""
        self._board.looked(watch)
        found = self._look_for_run(watch.run_id)
        if found is not None and self._board.take_summary(found):
            self._tell(found)

    def get(self, run_id: str) -> RunSummary:
        """The run's newest summary, read from the topic. Raises RunUnknown."""
        _good_run_id(run_id)
        found = self._look_for_run(run_id)
        if found is None:
            raise RunUnknown(run_id)
        return found

    def runs(self) -> Iterator[RunSummary]:
        """The newest summary of every run that is known, in no order."""
        for partition in self._partitions(RUN_STATE):
            yield from tables.newest_summaries(self._reader(), self._codec, [partition]).values()

    def run(self, run_id: str) -> RunHandle:
        """A handle of a run that exists already, whoever started it, also in another process or before this one.

        Nothing is asked of the cluster here: that there is no such run is told by `get` (RunUnknown), by the outcome of a command
        to it, and by a `wait` whose time is over. Its `outcome()` is that of the start command, which has the id that follows from
        the run's; a start with a `command_id` of its caller is not found by it. Raises BadCommand for an id that no run can have.
        """
        _good_run_id(run_id)
        return RunHandle(self, run_id, commands.start_command_id(run_id))

    def on_update(self, listener: Callable[[RunSummary], object]) -> None:
        """Call `listener` with every new summary of the runs that this client started or waits for.

        It runs in the client's follower thread, so it must return soon and must not wait for the client (submitting with
        `acknowledged=False` is fine); from asyncio hand it on with `loop.call_soon_threadsafe`. What it raises is logged.
        """
        self._started()
        self._listeners.append(listener)

    # ---------------------------------------------------------------- the journal

    def journal(self) -> JournalReader:
        """The journal, for reading runs as they were recorded."""
        return JournalReader(self._reader(), self._codec, self._prefix + JOURNAL, self._count(JOURNAL))

    def mark(self, run_id: str) -> JournalMark:
        """The journal's end now, where this run lies: taken before a run starts, its `events` need not be looked for."""
        journal = self.journal()
        partition = journal.partition_of(run_id)
        _, end = journal.bounds(partition)
        return JournalMark(partition, end, journal.token_before(partition, end))

    def events(
        self, run_id: str, since: JournalMark | None = None, timeout_s: float | None = None
    ) -> Iterator[RecordedEvent]:
        """The run's events as they are recorded, from its first (or from `since`) to its end; a run that waits is waited for.

        Only what counts by rule J1 is told. Raises TimedOut, and Unreadable for a record this build cannot read.
        """
        _good_run_id(run_id)
        deadline = time.monotonic() + (1e9 if timeout_s is None else timeout_s)
        if since is None:
            partition = self.journal().partition_of(run_id)
            since = JournalMark(partition, self._reader().bounds(partition)[0], None)
        reader = self._cluster.reader(f"{self._name}-events")
        try:
            reader.follow({since.partition: since.offset})
            fold = PartitionFold(since.token, keep_ended_from=0)
            while time.monotonic() < deadline:
                batch = reader.poll(min(0.5, max(0.0, deadline - time.monotonic())))
                for entry in judged(fold, batch, self._codec, run_id):
                    if entry.verdict is not Verdict.STEP:
                        continue
                    if entry.record is None:
                        raise Unreadable("bad_bytes", f"step {entry.step} at offset {entry.offset}: {entry.why}")
                    events = entry.record.events
                    yield from (RecordedEvent(entry.step, entry.offset, event, event is events[-1]) for event in events)
                    if any(event.kind in TERMINAL for event in events):
                        return
            raise TimedOut(f"run {run_id!r} did not end within {timeout_s or 0:g} s")
        finally:
            reader.close()

    # ---------------------------------------------------------------- wiring

    def _started(self) -> Sender:
        """The threads, started at the first need. Positions are fixed here, so nothing sent later can be missed."""
        if self._sender is not None:
            return self._sender
        self._count(COMMANDS)  # a missing topic is told now; the producer would take 30 s to
        offsets = {p: self._reader().bounds(p)[1] for topic in (RUN_STATE, OUTCOMES) for p in self._partitions(topic)}
        with self._lock:
            if self._closed:
                raise NotConnected("the client is closed")
            if self._sender is None:
                reader = self._cluster.reader(f"{self._name}-follower")
                self._follower = Follower(reader, offsets, self._take, self._board.fail, self._name)
                self._sender = Sender(self._cluster, self._name)
            return self._sender

    def _reader(self) -> Reader:
        with self._lock:
            if self._closed:
                raise NotConnected("the client is closed")
            if self._lookup is None:
                self._lookup = self._cluster.reader(f"{self._name}-lookup")
            return self._lookup

    def _count(self, topic: str) -> int:
        """The partition count of a topic of ours; asked once. Raises NotConnected."""
        known = self._counts.get(topic)
        if known is None:
            name = self._prefix + topic
            admin = self._cluster.admin()
            try:
                info = admin.topics([name], timeout_s=CONTACT_S).get(name)
            except Retryable as problem:
                raise NotConnected(str(problem)) from problem
            finally:
                admin.close()
            if info is None:
                raise NotConnected(
                    f"the cluster has no topic {name!r}: run `turnlog topics create`, or check TURNLOG_TOPIC_PREFIX"
                )
            known = self._counts[topic] = info.partitions
        return known

    def _partitions(self, topic: str) -> list[Partition]:
        return [Partition(self._prefix + topic, index) for index in range(self._count(topic))]

    def _look_for_run(self, run_id: str) -> RunSummary | None:
        home = Partition(self._prefix + RUN_STATE, partition_of(run_id.encode(), self._count(RUN_STATE)))
        return tables.newest_summaries(self._reader(), self._codec, [home], only=run_id).get(run_id)

    def _look_for_outcome(self, command_id: str) -> None:
        home = Partition(self._prefix + OUTCOMES, partition_of(command_id.encode(), self._count(OUTCOMES)))
        self._take(list(tables.all_records(self._reader(), [home])))

    def _take(self, batch: list[Received]) -> None:
        for received in batch:
            try:
                self._take_one(received)
            except Unreadable as problem:
                _log.warning("%s[%d]@%d: %s", received.topic, received.partition, received.offset, problem)

    def _take_one(self, received: Received) -> None:
        if received.value is None:
            return
        if received.topic == self._prefix + RUN_STATE:
            if self._board.watches(received.key):
                summary = self._codec.decode(received.value, RunSummary)
                if self._board.take_summary(summary):
                    self._tell(summary)
        elif self._board.awaits(received.key):
            self._board.take_outcome(self._codec.decode(received.value, CommandOutcome))

    def _tell(self, summary: RunSummary) -> None:
        for listener in self._listeners:
            try:
                listener(summary)
            except Exception:  # a stranger's code must not end the client's thread  # noqa: BLE001
                _log.exception("a listener of the client failed on run %s", summary.run_id)


class RunHandle:
    """A run that was submitted, or named to `Client.run`: the client's calls without naming it again."""

    __slots__ = ("_client", "command_id", "run_id")

    def __init__(self, client: Client, run_id: str, command_id: str) -> None:
        self._client = client
        self.run_id = run_id
        self.command_id = command_id

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r})"

    def wait(self, timeout_s: float | None = None, until: Until = ended, *, after_step: int = 0) -> RunSummary:
        """See `Client.wait`."""
        return self._client.wait(self.run_id, timeout_s, until, after_step=after_step)

    def get(self) -> RunSummary:
        """See `Client.get`."""
        return self._client.get(self.run_id)

    def outcome(self, timeout_s: float = SEND_TIMEOUT_S) -> CommandOutcome:
        """What became of the start command: see `Client.outcome`."""
        return self._client.outcome(self.command_id, timeout_s)

    def ask(self, text: str, *, timeout_s: float = 120.0) -> RunSummary:
        """See `Client.ask`."""
        return self._client.ask(self.run_id, text, timeout_s=timeout_s)

    def input(self, text: str, final: bool = False, *, command_id: str | None = None) -> str:
        """See `Client.input`."""
        return self._client.input(self.run_id, text, final, command_id=command_id)

    def cancel(self, reason: str = "") -> str:
        """See `Client.cancel`."""
        return self._client.cancel(self.run_id, reason)

    def resume(self, turns: int = 0) -> str:
        """See `Client.resume`."""
        return self._client.resume(self.run_id, turns)

    def events(self, since: JournalMark | None = None, timeout_s: float | None = None) -> Iterator[RecordedEvent]:
        """See `Client.events`."""
        return self._client.events(self.run_id, since, timeout_s)


def _good_run_id(run_id: str) -> None:
    problem = run_id_problem(run_id)
    if problem is not None:
        raise BadCommand(problem)


def _said(summary: RunSummary) -> str:
    return f"{summary.status}, waiting for {summary.waits_for}" if summary.waits_for else summary.status
