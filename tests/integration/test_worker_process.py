"""The tool worker as it is deployed: processes on real Kafka, killed, stopped, and joined by others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker_fixture import SharedBroker
from turnlog.codec import Codec
from turnlog.core.ids import call_key
from turnlog.core.records import DeadLetter, ToolManifest, ToolRequest, ToolResult
from turnlog.kafka.client import KafkaCluster
from turnlog.kafka.port import Partition, Received
from turnlog.kafka.topics import Layout, create_topics
from turnlog.tools.worker import worker_group, worker_topics

CODEC = Codec()
PARTITIONS = 4
PATIENCE_S = 40.0
ROOT = Path(__file__).parents[2]


def until(done: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := done()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)
    return found


class Process:
    """A worker process."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        self.port_file = folder / f"{name}.port"
        self.log = folder / f"{name}.log"
        own = {"TURNLOG_OBS__PORT_FILE": str(self.port_file), "EFFECTS": str(folder / "effects")}
        command = [sys.executable, "-m", "services.tool_worker", "tests.integration.worker_tools:tools"]
        with self.log.open("w") as log:
            self._popen = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment, **own}, stderr=log)

    def health(self, kind: str = "ready") -> dict[str, Any]:
        try:
            port = int(self.port_file.read_text())
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/{kind}", timeout=5) as answer:
                return dict(json.loads(answer.read()))
        except urllib.error.HTTPError as refused:
            with refused:
                return dict(json.loads(refused.read()))
        except (OSError, ValueError):
            return {}

    def count(self, name: str) -> float:
        port = int(self.port_file.read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"turnlog_worker_{name}"))

    def until_ready(self) -> Process:
        until(lambda: self.health().get("ready"), f"ready: {self.health()} {self.log.read_text()}")
        return self

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def wait(self, seconds: float = PATIENCE_S) -> int:
        return self._popen.wait(seconds)

    def end(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()


class Shop:
    """An installation with its topics, its workers, and the loop's side of the conversation."""

    def __init__(self, bootstrap: str, prefix: str, folder: Path) -> None:
        self.prefix, self.folder = prefix, folder
        self.environment = {
            "TURNLOG_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "TURNLOG_TOPIC_PREFIX": prefix,
            "TURNLOG_WORKER__DRAIN_S": "5",
        }
        self.cluster = KafkaCluster({"bootstrap.servers": bootstrap})
        self.admin = self.cluster.admin()
        create_topics(self.admin, Layout(prefix=prefix, partitions=PARTITIONS))
        self.topics = worker_topics(prefix, "shop")
        self.producer = self.cluster.producer("test")
        self.results_topic = f"{prefix}tool-results"
        self._reader = self.cluster.reader(f"{prefix}test")
        self._reader.follow({Partition(self.results_topic, i): 0 for i in range(PARTITIONS)})
        self._results: list[Received] = []
        self.processes: list[Process] = []

    def start(self, name: str = "w", **environment: str) -> Process:
        process = Process(name, self.folder, {**self.environment, **environment})
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.end()
        self._reader.close()
        self.producer.close()
        self.admin.close()

    def ask(
        self, n: int, tool: str = "quick", arguments: Any = None, *, attempt: int = 1, not_after_s: float = 120
    ) -> str:
        """Request call number `n`; its partition is n modulo PARTITIONS."""
        run = f"run{n}"
        key = call_key(run, 0, 0, tool, "{}")
        request = ToolRequest(
            run, key, 0, 0, attempt, tool, json.dumps({"n": n} if arguments is None else arguments), False,
            int((time.time() + not_after_s) * 1000), self.results_topic, n % PARTITIONS, b"token%d" % attempt, "agent",
        )  # fmt: skip
        self.put(key.encode(), CODEC.encode(request), n)
        return key

    def put(self, key: bytes | None, value: bytes | None, n: int) -> None:
        self.producer.produce(self.topics.requests, value, key=key, partition=n % PARTITIONS)
        assert self.producer.flush(10) == 0

    def results(self) -> list[ToolResult]:
        self._results += self._reader.poll(0.05)
        return [CODEC.decode(record.value, ToolResult) for record in self._results]

    def answered(self) -> set[str]:
        return {result.call_key for result in self.results()}

    def effects(self) -> list[tuple[str, int, int, str]]:
        """(key, attempt, pid, start or end)"""
        file = self.folder / "effects"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(key, int(attempt), int(pid), what) for key, attempt, pid, what in map(str.split, lines)]

    def committed(self) -> dict[int, int]:
        partitions = [Partition(self.topics.requests, i) for i in range(PARTITIONS)]
        found = self.admin.group_positions(self.topics.group, partitions)
        return {p.index: at.offset for p, at in found.items() if at is not None}

    def everything(self, topic: str) -> list[Received]:
        partitions = [Partition(topic, i) for i in range(self.admin.topics([topic])[topic].partitions)]
        reader = self.cluster.reader(f"{self.prefix}all")
        try:
            bounds = {partition: reader.bounds(partition) for partition in partitions}
            return [r for p in partitions for batch in reader.read(p, *bounds[p]) for r in batch]
        finally:
            reader.close()

    def manifests(self) -> dict[str, ToolManifest | None]:
        records = self.everything(f"{self.prefix}tool-manifests")
        return {
            (r.key or b"").decode(): None if r.value is None else CODEC.decode(r.value, ToolManifest) for r in records
        }


@pytest.fixture
def shop(broker: SharedBroker, topic_prefix: str, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(broker.bootstrap, topic_prefix, tmp_path)
    yield made
    made.close()


def test_requests_are_answered_once_each_and_positions_follow(shop: Shop) -> None:
    worker = shop.start().until_ready()
    keys = {shop.ask(n) for n in range(200)}
    keys.add(shop.ask(200, "slow", {"seconds": 0.3}))
    keys.add(shop.ask(201, "blocking", {"seconds": 0.3}))
    until(lambda: shop.answered() == keys, "all answered")
    results = shop.results()
    assert len(results) == len(keys)
    assert {r.content for r in results} == {f"quick {n}" for n in range(200)} | {"slow", "blocking"}
    assert all(r.reply_token == b"token1" and r.status == "ok" for r in results)
    until(lambda: sum(shop.committed().values()) == 202, "everything committed")
    assert worker.count("requests_total") == 202
    assert worker.health("live") == {"live": True, "reasons": {}}
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_repeated_request_is_answered_and_not_executed(shop: Shop) -> None:
    worker = shop.start().until_ready()
    key = shop.ask(1, "slow", {"seconds": 0.5})
    until(shop.effects, "started")
    shop.ask(1, "slow", {"seconds": 0.5})
    until(lambda: len(shop.results()) == 2, "both answered")
    shop.ask(1, "slow", {"seconds": 0.5}, attempt=2)
    until(lambda: len(shop.results()) == 3, "the third answered")
    assert [(r.call_key, r.reply_token) for r in shop.results()] == [(key, b"token1")] * 2 + [(key, b"token2")]
    assert len(shop.effects()) == 2, "one start, one end"
    assert worker.count("joined_total") == 1
    assert worker.count("answered_from_known_total") == 1


def test_what_was_not_answered_comes_again_after_kill_9(shop: Shop) -> None:
    environment = {"TURNLOG_WORKER__INSTANCE_ID": "shop-0"}
    first = shop.start("first", **environment).until_ready()
    done = [shop.ask(n) for n in range(8)]
    until(lambda: set(done) <= shop.answered(), "the quick ones answered")
    until(lambda: sum(shop.committed().values()) == 8, "and committed")
    open_ = [shop.ask(n, "slow", {"seconds": 1.0}) for n in range(100, 104)]
    until(lambda: len([e for e in shop.effects() if e[3] == "start"]) == 4, "four started")
    first.signal(signal.SIGKILL)
    first.wait()
    shop.start("second", **environment).until_ready()
    until(lambda: set(open_) <= shop.answered(), "answered by the second")
    assert len(shop.results()) == 12, "nothing that was committed is answered again"
    starts = [e[0] for e in shop.effects() if e[3] == "start"]
    assert sorted(starts) == sorted(open_ * 2), "at least once, with the same key"
    until(lambda: sum(shop.committed().values()) == 12, "everything committed")


def test_sigterm_finishes_what_runs_commits_and_leaves_at_once(shop: Shop) -> None:
    first = shop.start("first").until_ready()
    keys = {shop.ask(n, "slow", {"seconds": 1.0}) for n in range(4)} | {shop.ask(9, "blocking", {"seconds": 1.0})}
    until(lambda: len([e for e in shop.effects() if e[3] == "start"]) == 5, "five started")
    first.signal(signal.SIGTERM)
    begun = time.monotonic()
    assert first.wait() == 0
    assert time.monotonic() - begun < 4
    until(lambda: shop.answered() == keys, "all answered")
    assert sum(shop.committed().values()) == 5
    shop.start("second").until_ready()
    begun = time.monotonic()
    key = shop.ask(20)
    until(lambda: key in shop.answered(), "the next one answered")
    assert time.monotonic() - begun < 5, "no session timeout was waited for"
    assert len(shop.results()) == 6
    assert len([e for e in shop.effects() if e[3] == "start"]) == 5


def test_a_second_sigterm_ends_the_drain(shop: Shop) -> None:
    first = shop.start("first", TURNLOG_WORKER__DRAIN_S="30").until_ready()
    shop.ask(1, "slow", {"seconds": 20})
    until(shop.effects, "started")
    first.signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(1.0)
    first.signal(signal.SIGTERM)
    assert first.wait(10) == 0
    assert not shop.answered()


def test_a_drain_that_runs_out_of_time_leaves_the_call_to_the_next_owner(shop: Shop) -> None:
    first = shop.start("first", TURNLOG_WORKER__DRAIN_S="0.5").until_ready()
    key = shop.ask(1, "slow", {"seconds": 3})
    until(shop.effects, "started")
    first.signal(signal.SIGTERM)
    assert first.wait(5) == 0
    assert not shop.answered()
    assert not shop.committed().get(1)
    shop.start("second").until_ready()
    until(lambda: key in shop.answered(), "answered by the second")


def test_a_second_worker_takes_its_share_without_a_call_run_twice(shop: Shop) -> None:
    first = shop.start("first").until_ready()
    keys = {shop.ask(n, "slow", {"seconds": 1.5}) for n in range(40)}
    until(lambda: len([e for e in shop.effects() if e[3] == "start"]) == 40, "all started")
    second = shop.start("second").until_ready()
    more = set()
    n = 1000
    end = time.monotonic() + PATIENCE_S
    while not second.count("requests_total"):
        assert time.monotonic() < end
        more.add(shop.ask(n))
        n += 1
        shop.results()
        time.sleep(0.05)
    until(lambda: shop.answered() == keys | more, "all answered")
    starts = [e[0] for e in shop.effects() if e[3] == "start"]
    assert sorted(starts) == sorted(keys), "the first finished its calls before it gave partitions up"
    assert len(shop.results()) == len(keys | more)
    pids = {e[2] for e in shop.effects()}
    assert len(pids) == 2
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    last = {shop.ask(n) for n in range(5000, 5008)}
    until(lambda: last <= shop.answered(), "the second serves all partitions")


def test_late_requests_and_bad_bytes_do_not_hold_up_their_partition(shop: Shop) -> None:
    worker = shop.start().until_ready()
    shop.ask(0, not_after_s=-1)
    shop.put(b"k", b"nonsense", 0)
    shop.put(b"k", None, 0)
    shop.put(None, b"\0\0\0\0\7x", 0)
    key = shop.ask(4)
    unknown = shop.ask(8, "missing")
    until(lambda: {key, unknown} <= shop.answered(), "the good ones answered")
    until(lambda: shop.committed().get(0) == 6, "everything committed")
    letters = [CODEC.decode(r.value, DeadLetter) for r in shop.everything(f"{shop.prefix}dead-letters")]
    assert [(x.reason, x.source.offset, x.service) for x in sorted(letters, key=lambda x: x.source.offset)] == [
        ("not_avro", 1, "tool_worker"),
        ("null_value", 2, "tool_worker"),
        ("unknown_schema_id", 3, "tool_worker"),
    ]
    assert worker.count("refused_late_total") == 1
    assert not [e for e in shop.effects() if e[0].startswith("run0:")]
    missing = next(r for r in shop.results() if r.call_key == unknown)
    assert (missing.status, missing.error, missing.retryable) == ("error", "unknown_tool", True)


def test_manifests_are_announced_kept_and_withdrawn(shop: Shop) -> None:
    def run(name: str, **environment: str) -> int:
        worker = shop.start(name, **environment).until_ready()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        return len(shop.everything(f"{shop.prefix}tool-manifests"))

    assert run("first") == 3
    quick = shop.manifests()["shop/quick"]
    assert quick is not None
    assert (quick.toolset, quick.tool, quick.version, quick.topic) == ("shop", "quick", "1", shop.topics.requests)
    assert json.loads(quick.parameters)["required"] == ["n"]
    assert quick.description == "Answer at once."
    assert run("again") == 3, "nothing is written that stands there already"
    assert run("fewer", SHOP_WITHOUT_BLOCKING="1") == 4
    assert shop.manifests()["shop/blocking"] is None
    assert run("newer", SHOP_VERSION="2") == 7
    found = shop.manifests()["shop/blocking"]
    assert found is not None
    assert found.version == "2"


@pytest.mark.slow
def test_a_worker_without_kafka_says_so_and_starts_when_it_comes(
    own_broker: Callable[..., Any], topic_prefix: str, tmp_path: Path
) -> None:
    broker = own_broker()
    bootstrap = broker.bootstrap
    _, _, port = bootstrap.rpartition(":")
    broker.kill()
    environment = {"TURNLOG_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "TURNLOG_TOPIC_PREFIX": topic_prefix}
    worker = Process("early", tmp_path, environment)
    try:
        until(lambda: worker.health("live").get("live"), "alive")
        assert not worker.health()["ready"]
        broker = own_broker(port=int(port))
        shop = Shop(bootstrap, topic_prefix, tmp_path)
        shop.processes.append(worker)
        try:
            worker.until_ready()
            key = shop.ask(1)
            until(lambda: key in shop.answered(), "answered")
            assert shop.topics.group == worker_group(topic_prefix, "shop")
        finally:
            shop.close()
    finally:
        worker.end()


def test_help_lists_the_settings() -> None:
    command = [sys.executable, "-m", "services.tool_worker", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    assert "TURNLOG_WORKER__DRAIN_S  [10.0]" in done.stdout
    assert "TURNLOG_KAFKA__BOOTSTRAP_SERVERS" in done.stdout


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere", "is not MODULE:TOOLSET"),
        ("no.such.module:tools", "there is no module"),
        ("json:tools", "has no toolset 'tools'; it has none"),
    ],
)
def test_a_wrong_target_is_said_in_one_line(target: str, said: str) -> None:
    command = [sys.executable, "-m", "services.tool_worker", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
