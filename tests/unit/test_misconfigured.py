"""Settings with which no try can succeed end a service with 2 and the name of the variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_cluster import ThreadedCluster
from tests.tidy.checkout import ROOT
from turnlog.codec import Codec, RegistryRefused
from turnlog.kafka.port import Refused, Retryable
from turnlog.kafka.properties import setting_problem
from turnlog.tools import Toolset
from turnlog.tools.settings import WorkerSettings
from turnlog.tools.worker import run_worker

REFUSED = {"TURNLOG_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT", "TURNLOG_KAFKA__SASL_MECHANISM": "PLAIN"}


@pytest.mark.parametrize("program", [["services.loop"], ["services.tool_worker", "examples.first_tool:tools"]])
@pytest.mark.parametrize(
    ("variables", "named"),
    [
        (REFUSED, "(TURNLOG_KAFKA__SASL_USERNAME, TURNLOG_KAFKA__SASL_PASSWORD)"),
        ({"TURNLOG_KAFKA__ACKS": "1"}, "(TURNLOG_KAFKA__ACKS)"),
    ],
)
def test_a_property_that_librdkafka_refuses(
    program: list[str], variables: dict[str, str], named: str, tmp_path: Path
) -> None:
    environment = {**os.environ, **variables, "TURNLOG_SECRET": "x" * 16, "TURNLOG_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", *program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_whose_schemas_the_registry_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise RegistryRefused("incompatible")

    monkeypatch.setattr(Codec, "of", refuse)
    monkeypatch.chdir(tmp_path)
    cluster = ThreadedCluster()
    assert run_worker(Toolset("t", version="1"), settings=WorkerSettings(), cluster=cluster) == 2


def test_only_a_refused_property_is_a_setting() -> None:
    assert setting_problem(Retryable("timed out", "_TIMED_OUT")) is None
    assert setting_problem(Refused("no", "POLICY_VIOLATION")) is None
    said = setting_problem(Refused('Invalid value "a.b" for configuration property "ssl.ca.location"', "_INVALID_ARG"))
    assert said is not None
    assert said.endswith(" (TURNLOG_KAFKA__SSL_CA_LOCATION)")
