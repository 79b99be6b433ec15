"""What a service shows of itself: health over HTTP, metrics, log lines, settings."""

from __future__ import annotations

import io
import json
import logging
import re
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, Field

from services.loop.settings import LoopSettings
from tests.tidy.checkout import ROOT
from turnlog.obs import Health, Metrics, bound, configure_logging, observe, serve
from turnlog.obs.logs import HumanFormatter, JsonFormatter
from turnlog.obs.metrics import SECONDS
from turnlog.settings import (
    OF_OTHERS,
    BadSettings,
    KafkaProperties,
    Settings,
    from_environment,
    settings_rows,
    settings_table,
    unread_variables,
)
from turnlog.tools.settings import WorkerSettings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


# ---------------------------------------------------------------- health


def test_ready_means_every_condition_holds_and_live_means_every_heart_beats() -> None:
    clock = Clock()
    health = Health(clock)
    beat = health.heartbeat("poll", 5.0)
    assert health.ready() == {"service": "starting"}
    condition = health.require("kafka")
    assert health.ready() == {"kafka": "starting"}
    condition.met()
    assert health.ready() == {}
    condition.unmet("no broker")
    assert health.require("kafka").reason == "no broker"
    condition.met()
    clock.now += 5.1
    assert health.live() == {"poll": "no sign of life for 5 s (at most 5 s)"}
    assert health.ready() == health.live(), "what is dead is not ready"
    beat.beat()
    assert health.live() == {}
    health.forget("poll")
    clock.now += 100
    assert health.live() == {}


def test_the_server_answers_probes_with_reasons(tmp_path: Path) -> None:
    clock = Clock()
    health, metrics = Health(clock), Metrics("test")
    condition = health.require("kafka", "joining")
    health.heartbeat("poll", 1.0)
    server = serve(health, metrics, port=0, port_file=tmp_path / "port")
    try:
        url = f"http://127.0.0.1:{(tmp_path / 'port').read_text().strip()}"
        assert get(f"{url}/health/live") == (200, '{"live": true, "reasons": {}}')
        assert get(f"{url}/health/ready") == (503, '{"ready": false, "reasons": {"kafka": "joining"}}')
        condition.met()
        assert get(f"{url}/health/ready?x=1")[0] == 200
        clock.now += 2
        assert get(f"{url}/health/live")[0] == 503
        assert get(f"{url}/nope")[0] == 404
        status, text = get(f"{url}/metrics")
        assert status == 200
        assert "python_info" in text
        with pytest.raises(OSError, match="in use"):
            serve(health, metrics, port=server.port)
    finally:
        server.close()


# ---------------------------------------------------------------- metrics


def test_cheap_counters_are_exported_like_any_other() -> None:
    metrics = Metrics("worker")
    metrics.tally("calls_total", "Calls.", tool="a").count += 2
    metrics.tally("calls_total", "Calls.", tool="b").count += 3
    assert metrics.tally("calls_total", "Calls.", tool="a").count == 2
    spread = metrics.spread("call_seconds", "Time.", tool="a")
    for seconds in (0.0005, 0.0006, 1000.0):
        spread.note(seconds)
    metrics.reading("depth", "Depth.", lambda: 7.0)
    metrics.counter("plain", "Plain.").inc()
    metrics.histogram("plain_seconds", "Plain.").observe(1)
    metrics.gauge("level", "Level.").set(4)
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    calls = {s.labels["tool"]: s.value for s in families["turnlog_worker_calls"].samples}
    assert calls == {"a": 2.0, "b": 3.0}
    samples = {(s.name, s.labels.get("le")): s.value for s in families["turnlog_worker_call_seconds"].samples}
    assert samples["turnlog_worker_call_seconds_bucket", "0.0005"] == 1
    assert samples["turnlog_worker_call_seconds_bucket", "0.001"] == 2
    assert samples["turnlog_worker_call_seconds_bucket", "+Inf"] == 3
    assert samples["turnlog_worker_call_seconds_sum", None] == pytest.approx(1000.0011)
    assert families["turnlog_worker_depth"].samples[0].value == 7.0
    assert families["turnlog_worker_plain"].samples[0].value == 1.0
    assert len([key for key in samples if key[1]]) == len(SECONDS) + 1


def test_a_metric_has_one_set_of_labels() -> None:
    metrics = Metrics("worker")
    metrics.tally("calls_total", "Calls.", tool="a")
    with pytest.raises(ValueError, match="labels"):
        metrics.tally("calls_total", "Calls.", agent="a")


# ---------------------------------------------------------------- logs


@pytest.fixture
def logging_untouched() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.logThreads, logging.logProcesses, logging._srcfile
    yield
    root.handlers[:], root.level = before[0], before[1]
    logging.logThreads, logging.logProcesses, logging._srcfile = before[2:]
    logging.logMultiprocessing = True


@pytest.mark.usefixtures("logging_untouched")
def test_a_log_line_is_one_json_object_with_its_context() -> None:
    out = io.StringIO()
    configure_logging("worker", "INFO", "json", out)
    log = logging.getLogger("turnlog.test")
    log.debug("not written")
    bound(log, run="r", key="k").info("hello %s\n", "x", extra={"turn": 3, "run": "other"})
    try:
        raise ValueError("\x1b[31m")
    except ValueError:
        log.exception("failed")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["message"] == "hello x\n"
    assert (first["run"], first["turn"], first["key"]) == ("other", 3, "k")
    assert (first["level"], first["logger"], first["service"]) == ("INFO", "turnlog.test", "worker")
    assert first["at"].endswith("Z")
    assert len(first["at"]) == len("2026-01-01T00:00:00.000Z")
    assert "ValueError" in second["exception"]


def record(message: str, created: float = 0.0) -> logging.LogRecord:
    made = logging.LogRecord("turnlog.x", logging.INFO, "", 0, message, (), None)
    made.created = created
    return made


def test_times_are_utc_with_milliseconds() -> None:
    formatter = JsonFormatter("s")
    assert json.loads(formatter.format(record("m", 1_700_000_000.25)))["at"] == "2023-11-14T22:13:20.250Z"
    assert json.loads(formatter.format(record("m", 1_700_000_000.5)))["at"] == "2023-11-14T22:13:20.500Z"


def test_lines_for_people_escape_what_would_drive_their_terminal() -> None:
    made = record("red \x1b[31m")
    made.key = "k"
    line = HumanFormatter().format(made)
    assert "\x1b" not in line
    assert "red \\x1b[31m  key=k" in line
    assert " x: " in line


# ---------------------------------------------------------------- settings


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TURNLOG_KAFKA__SASL_MECHANISM": "PLAIN",
        "TURNLOG_KAFKA__SASL_PASSWORD": "hunter2",
        "TURNLOG_KAFKA__SOCKET_TIMEOUT_MS": "5",
        "TURNLOG_KAFKA__SASL_OAUTHBEARER_CONFIG": '{"a":1}',
        "TURNLOG_TOPIC_PREFIX": "x.",
        "TURNLOG_SECRET": "hunter3",
        "TURNLOG_OBS__PORT": "8080",
        "TURNLOG_LOG__LEVEL": "DEBUG",
        "TURNLOG_REGISTRY_URL": "",
    }.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.kafka == {
        "bootstrap.servers": "127.0.0.1:9092",
        "sasl.mechanism": "PLAIN",
        "sasl.password": "hunter2",
        "socket.timeout.ms": "5",
        "sasl.oauthbearer.config": '{"a":1}',
    }
    assert settings.topic_prefix == "x."
    assert settings.obs.port == 8080
    assert settings.registry_url is None
    assert settings.secret is not None
    assert settings.secret.get_secret_value() == "hunter3"
    assert "hunter" not in f"{settings!r} {settings!s} {settings.kafka}"
    assert "PLAIN" in repr(settings.kafka)


def test_a_bad_setting_is_named_and_its_value_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_PARTITIONS", "hunter2")
    monkeypatch.setenv("TURNLOG_LOG__LEVEL", "LOUD")
    with pytest.raises(BadSettings) as problem:
        from_environment(Settings)
    partitions, level = str(problem.value).splitlines()
    assert partitions.startswith("setting TURNLOG_PARTITIONS: Input should be a valid integer")
    assert level.startswith("setting TURNLOG_LOG__LEVEL: Input should be 'DEBUG'")
    assert "hunter2" not in str(problem.value)
    assert "hunter2" not in "".join(traceback.format_exception(problem.value))


def test_what_must_be_json_and_is_not_is_a_bad_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNLOG_KAFKA", "hunter2")
    with pytest.raises(
        BadSettings, match="setting TURNLOG_KAFKA, or one that begins with TURNLOG_KAFKA__, is not the JSON"
    ):
        from_environment(Settings)


def test_properties_are_text() -> None:
    given = KafkaProperties.of({"enable_x": True, "BOOTSTRAP_SERVERS": "a:1", "n": 5})
    assert given == {"bootstrap.servers": "a:1", "enable.x": "true", "n": "5"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TURNLOG_PREFIX", "TURNLOG_TOPIC_PREFIX"),
        ("TURNLOG_BOOTSTRAP_SERVERS", "TURNLOG_KAFKA__BOOTSTRAP_SERVERS"),
        ("TURNLOG_KAFKA_SASL_MECHANISM", "TURNLOG_KAFKA__SASL_MECHANISM"),
        ("TURNLOG_LOG_LEVEL", "TURNLOG_LOG__LEVEL"),
        ("TURNLOG_REPLICATON", "TURNLOG_REPLICATION"),
        ("TURNLOG_PARTITION", "TURNLOG_PARTITIONS"),
        ("TURNLOG_OPENAI_API_KEY", "TURNLOG_MODELS__OPENAI__API_KEY"),
        ("turnlog_cache", "TURNLOG_CACHE_DIR"),
        ("TURNLOG_TOPIC_PREFIX", None),
        ("turnlog_topic_prefix", None),
        ("TURNLOG_KAFKA__ANY_PROPERTY", None),
        ("TURNLOG_KAFKA", None),
        ("TURNLOG_WEATHER_STATION", None),
        ("TURNLOG_SHOP_DATABASE", None),
        ("TOPIC_PREFIX", None),
    ],
)
def test_a_variable_that_nobody_reads_names_the_one_that_is_meant(name: str, meant: str | None) -> None:
    told = unread_variables({name: "x"})
    wanted = [] if meant is None else [f"the environment variable {name} is read by nobody: is {meant} meant?"]
    assert told == wanted


def test_no_variable_of_ours_is_told_by_any_program() -> None:
    rows = [*settings_rows(LoopSettings), *settings_rows(WorkerSettings)]
    named = {row.name for row in rows if "<" not in row.name}
    ours = re.compile(r"\bTURNLOG_[A-Z_]*[A-Z]\b")
    reads = [ROOT / "dev", ROOT / "docker-compose.yml", *(ROOT / "turnlog" / "local").glob("*.py")]
    reads += [*ROOT.glob("tests/*.py"), *ROOT.glob("tests/simulation/*.py"), *ROOT.glob("bench/*.py")]
    named |= {name for path in reads for name in ours.findall(path.read_text())}
    assert len(named) > 40
    assert unread_variables(dict.fromkeys(named, "x")) == []
    assert OF_OTHERS.isdisjoint(row.name for row in settings_rows(Settings)), "what all share need not be listed"


@pytest.mark.usefixtures("logging_untouched")
def test_a_service_says_in_its_log_what_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNLOG_PREFIX", "x.")
    observe("loop", Settings()).close()
    assert capsys.readouterr().err.count("is TURNLOG_TOPIC_PREFIX meant?") == 1


class Part(BaseModel):
    depth: int = Field(default=3, description="How deep.")


class Mine(Settings):
    part: Part = Field(default_factory=Part)
    parts: dict[str, Part] = Field(default_factory=dict, description="Parts by name.")
    needed: str = Field(description="Must be given.")


def test_the_settings_table_lists_every_variable_with_default_and_description() -> None:
    rows = {row.name: row for row in settings_rows(Mine)}
    assert rows["TURNLOG_PART__DEPTH"] == ("TURNLOG_PART__DEPTH", "3", "How deep.")
    assert rows["TURNLOG_PARTS__<NAME>__<SETTING>"].description == "Parts by name."
    assert "TURNLOG_PARTS__DEPTH" not in rows
    assert rows["TURNLOG_NEEDED"].default == "(required)"
    assert rows["TURNLOG_KAFKA__BOOTSTRAP_SERVERS"].default == "127.0.0.1:9092"
    assert all(row.description for row in rows.values())
    table = settings_table(Mine)
    assert "TURNLOG_OBS__PORT  [0]" in table
    assert "How deep." in table
