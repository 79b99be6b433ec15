"""What a log's end is boiled down to, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turnlog.local.last_words import LINE_CHARS, last_words, told


def line(level: str, message: str, **more: str) -> str:
    return json.dumps(
        {"at": "2026-01-01T00:00:00Z", "level": level, "logger": "turnlog.loop", "message": message, **more}
    )


TRACEBACK = """Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "mytools.py", line 3, in <module>
    tools = Toolset("a b")
            ^^^^^^^^^^^^^^
ValueError: 'a b' is no name
"""
KAFKA = """2026-01-01T00:00:00,000 INFO  starting (kafka.server.KafkaServer)
2026-01-01T00:00:00,001 ERROR Exiting Kafka due to fatal exception (kafka.Kafka$)
org.apache.kafka.common.config.ConfigException: Invalid value 0 for num.io.threads
\tat org.apache.kafka.common.config.ConfigDef.parse(ConfigDef.java:515)
\t... 12 more
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("\n".join(line("INFO", f"step {n}") for n in range(9)), "step 6\nstep 7\nstep 8"),
        (f"{line('INFO', 'begins')}\n{line('ERROR', 'no secret')}\n{line('INFO', 'stopped')}", "no secret"),
        (line("ERROR", "it broke", exception=TRACEBACK), "it broke\nValueError: 'a b' is no name"),
        (f"{line('INFO', 'begins')}\n{TRACEBACK}", "ValueError: 'a b' is no name"),
        (
            KAFKA,
            KAFKA.splitlines()[1]
            + "\norg.apache.kafka.common.config.ConfigException: Invalid value 0 for num.io.threads",
        ),
        (
            "turnlog loop: settings: 1 problem\nmodels\n  no URL\n",
            "turnlog loop: settings: 1 problem\nmodels\n  no URL",
        ),
        ('{"message": cut', '{"message": cut'),
        ("x" * 9_999, "x" * LINE_CHARS + "…"),
    ],
)
def test_what_is_told_of_a_log(log: str, words: str) -> None:
    assert told(log) == words


def test_only_what_was_written_since_counts(tmp_path: Path) -> None:
    log = tmp_path / "loop.log"
    log.write_text(line("ERROR", "of the last start") + "\n")
    began = log.stat().st_size
    log.write_text(log.read_text() + line("INFO", "of this one") + "\n")
    assert last_words(log, since=began) == "of this one"
    assert last_words(tmp_path / "none.log") == ""
