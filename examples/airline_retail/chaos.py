"""Kills services and the broker while a play goes on, with SIGKILL, at moments drawn from a seed.

The first kills take each victim once, in drawn order, so that even a short play meets all of them; then chance alone decides.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from turnlog.local.errors import LocalError
from turnlog.local.supervisor import System

BROKER = "broker"
FIRST_AFTER_S = (0.2, 1.0)
BETWEEN_S = (0.5, 3.0)
"""How long everything is up between two kills, beside as long as the last victim took to come back: where a machine is so busy
that recovery takes most of the time, a fixed pause would leave none for work."""
DOWN_S = (0.0, 1.0)
"""How long a victim stays dead."""
REVIVALS = 5


class Chaos:
    """One thread that kills and revives. Each victim serves again before the next one dies: what is tested is recovery, and a
    system that is never up recovers from nothing."""

    def __init__(self, system: System, seed: int, progress: Callable[[str], None] = lambda _: None) -> None:
        self.kills: Counter[str] = Counter()
        self.unasked: Counter[str] = Counter()
        """Services that somebody else had to start again: a victim's death must not take others with it."""
        self.failure: Exception | None = None
        self._pids: dict[str, int] = {}
        self._system = system
        self._chance = random.Random(seed)
        self._progress = progress
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)

    @property
    def victims(self) -> list[str]:
        services = sorted(service.name for service in self._system.services)
        return services if self._system.broker is None else [*services, BROKER]

    def __enter__(self) -> "Chaos":
        self._pids = {service.name: service.pid for service in self._system.services}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kills nothing more; everything is up again when this returns, unless `failure` says why not."""
        self._stopping.set()
        self._thread.join()
        self._count_unasked()

    def _run(self) -> None:
        try:
            self._go_on()
        except Exception as error:  # noqa: BLE001 - told by whoever leaves the block: a thread has nobody to raise to
            self.failure = error

    def _go_on(self) -> None:
        once_each = self._chance.sample(self.victims, len(self.victims))
        pause = self._chance.uniform(*FIRST_AFTER_S)
        while not self._stopping.wait(pause):
            victim = once_each.pop() if once_each else self._chance.choice(self.victims)
            pause = self._chance.uniform(*BETWEEN_S)
            down_s = self._chance.uniform(*DOWN_S)
            pause += self._kill(victim, down_s)
            self._count_unasked()

    def _kill(self, victim: str, down_s: float) -> float:
        """Kills and revives; returns how many seconds it took to serve again."""
        self._progress(f"kill -9 {victim}")
        self.kills[victim] += 1
        if victim == BROKER:
            self._system.kill_broker()
        else:
            self._system.child(victim).kill()
        self._stopping.wait(down_s)
        began = time.monotonic()
        self._revive(victim)
        return time.monotonic() - began

    def _revive(self, victim: str) -> None:
        """A busy machine may be too slow for a start's own deadline: then it is asked again, some times."""
        for attempt in range(1, REVIVALS + 1):
            try:
                if victim == BROKER:
                    return self._system.restart_broker()
                service = self._system.child(victim)
                service.start()
                self._pids[victim] = service.pid
                return None
            except LocalError as error:
                if attempt == REVIVALS:
                    raise
                self._progress(f"{victim} is not up yet: {error}")

    def _count_unasked(self) -> None:
        for service in self._system.services:
            if service.pid != self._pids[service.name]:
                self.unasked[service.name] += 1
                self._pids[service.name] = service.pid
