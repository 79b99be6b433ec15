"""From settings to a `LoopService`: the one place where the loop's parts meet the real Kafka, disk and clocks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from services.loop.arrivals import Reception
from services.loop.effects import letter_of
from services.loop.outbox import Outbox
from services.loop.settings import LoopSettings
from services.loop.shell import Bounds, Counters, Shell
from services.loop.tables import Tables
from services.loop.tokens import ReplyTokens
from turnlog.blobs import DirectoryBlobs
from turnlog.codec import Codec
from turnlog.core.agents import AgentSpec
from turnlog.core.records import (
    Command,
    CommandOutcome,
    DeadLetter,
    JournalRecord,
    LedgerEntry,
    RunSummary,
    ToolManifest,
    ToolResult,
)  # fmt: skip
from turnlog.kafka.jobs import LOADING, ThreadRunner
from turnlog.kafka.opening import Clients
from turnlog.kafka.ownership import FencedWriter
from turnlog.kafka.port import Cluster, Partition, Reader, Received
from turnlog.models.provider import Provider
from turnlog.schema_check import check_arguments


class Misconfigured(Exception):
    """The settings do not allow a start; the message says what to set."""


def reply_tokens(settings: LoopSettings) -> ReplyTokens:
    """The installation's secrets. Raises Misconfigured without one."""
    found = [s.get_secret_value().encode() for s in (settings.secret, settings.secret_previous) if s is not None]
    if not found:
        raise Misconfigured("no installation secret: set TURNLOG_SECRET (16 bytes or more, the same for all loops)")
    try:
        return ReplyTokens(found)
    except ValueError as problem:
        raise Misconfigured(str(problem)) from problem


def codec_for(settings: LoopSettings) -> Codec:
    """The codec, with the registry's ids for the topics the loop writes where a registry is configured."""
    t = settings.topics
    topics: dict[str, type] = {
        t.journal: JournalRecord, t.run_state: RunSummary, t.ledger: LedgerEntry, t.outcomes: CommandOutcome,
        t.dead_letters: DeadLetter, t.commands: Command, t.results: ToolResult, t.agents: AgentSpec, t.manifests: ToolManifest,
    }  # fmt: skip
    return Codec.of(settings, topics)


def blob_directory(settings: LoopSettings) -> Path:
    return settings.blobs if settings.blobs is not None else settings.state_dir / "blobs"


def partition_count(cluster: Cluster, settings: LoopSettings, answer_s: float) -> int:
    """Partitions of `commands`, from a cluster that answers within `answer_s`. Raises Misconfigured, LogError."""
    admin = cluster.admin()
    try:
        found = admin.topics([settings.topics.commands], timeout_s=answer_s)
    finally:
        admin.close()
    if settings.topics.commands not in found:
        raise Misconfigured(
            f"topic {settings.topics.commands} does not exist: create the topics with `turnlog topics create`"
        )
    return found[settings.topics.commands].partitions


def make_shell(
    settings: LoopSettings, cluster: Cluster, providers: Provider, tokens: ReplyTokens, codec: Codec, *, ordinal: int, partitions: int,
) -> Shell:  # fmt: skip
    """Everything a loop process works with. Joins no group and reads nothing yet."""
    runner = ThreadRunner()
    topics = settings.topics
    name = f"{settings.instance}-{ordinal}"
    consumer = cluster.consumer(f"{settings.topic_prefix}loop", instance_id=f"{settings.topic_prefix}loop-{name}")
    clients = Clients(consumer, cluster.admin(), cluster.reader("loop"))
    outbox = Outbox(cluster)
    counters = Counters()

    def read_gap(partition: Partition, start: int, end: int, then: Callable[..., None]) -> None:
        runner.submit(LOADING, lambda: [r for b in clients.reader.read(partition, start, end) for r in b], then)

    def now() -> int:
        return time.time_ns() // 1_000_000

    def reject(record: Received, reason: str, detail: str) -> None:
        Counters.count(counters.dead_letters, reason)
        letter = letter_of(record, reason, detail, "loop", now())
        outbox.send(topics.dead_letters, codec.encode(letter), letter.key, lambda: None, kept=True)

    tables = Tables(
        _table_reader(cluster), codec, topics.agents, topics.manifests, f"{settings.topic_prefix}tool-requests.", reject
    )
    return Shell(
        topics=topics, partitions=partitions, owner_name=f"{socket.gethostname()}/{name}", build=settings.build, codec=codec,
        reception=Reception(codec, tokens), tokens=tokens, tables=tables, outbox=outbox,
        writer=FencedWriter(cluster, topics.journal, read_gap), clients=clients, runner=runner, providers=providers,
        blobs=DirectoryBlobs(blob_directory(settings)), blobs_shared=settings.blobs_shared, validate=check_arguments, now=now, clock=time.monotonic,
        verify=settings.verify, bounds=bounds_of(settings), counters=counters,
    )  # fmt: skip


def _table_reader(cluster: Cluster) -> Reader:
    return cluster.reader("tables")


def bounds_of(settings: LoopSettings) -> Bounds:
    return Bounds(
        snapshot_bytes=settings.snapshot_bytes,
        floor_bytes=settings.floor_bytes,
        park_after_ms=int(settings.park_after_s * 1000),
        journal_keep_ms=int(settings.journal_keep_days * 24 * 3_600_000),
    )
