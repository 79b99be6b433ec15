"""What Ctrl-C makes of conversations that are under way."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from examples.airline_retail.driver import Driver, Played
from examples.airline_retail.play import Teller
from examples.airline_retail.recording import DATA_DIR, load_recordings
from turnlog.client import TimedOut


class SilentClient:
    """A client of a system that never answers."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def submit(self, *arguments: Any, **options: Any) -> None:
        """Taken, as it seems."""

    def wait(self, *arguments: Any) -> Any:
        self.asked.set()
        raise TimedOut("not yet")


def test_what_a_stop_broke_off_is_no_conversation_that_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    recordings = list(load_recordings(DATA_DIR / "sample.jsonl").values())[:2]
    client, told = SilentClient(), list[Played]()
    driver = Driver(client, "p", concurrency=2, timeout_s=60.0, progress=told.append)  # type: ignore[arg-type]
    players = threading.Thread(target=driver.play, args=(recordings,))
    players.start()
    assert client.asked.wait(10)
    driver.stop()
    players.join(10)
    assert told == []
    Teller(2, quiet=True).stopped("play")
    assert capsys.readouterr().err == "play: stopped after 0 of 2 conversations\n"
