"""Health of a service: named conditions it must meet to be ready, heartbeats it must give to count as alive.

Live asks "should this process be killed?": only a heartbeat that stopped says yes. Ready asks "is it doing its work now?":
every condition must hold. Any thread may change or read; each change is one assignment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Condition:
    """Something that must hold for the service to be ready. Unmet from birth, with a reason."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason: str | None = reason

    @property
    def reason(self) -> str | None:
        """Why it does not hold; None while it does."""
        return self._reason

    def met(self) -> None:
        """It holds. The change is logged once."""
        if self._reason is not None:
            self._reason = None
            _log.info("%s: ready", self.name)

    def unmet(self, reason: str) -> None:
        """It does not hold, because of `reason`. A new reason is logged once."""
        if self._reason != reason:
            self._reason = reason
            _log.warning("%s: not ready: %s", self.name, reason)


class Heartbeat:
    """A sign of life that must come at least every `max_age_s`. `beat` costs one clock read."""

    def __init__(self, name: str, max_age_s: float, clock: Callable[[], float]) -> None:
        self.name = name
        self._max_age_s = max_age_s
        self._clock = clock
        self._last = clock()

    def beat(self) -> None:
        self._last = self._clock()

    @property
    def reason(self) -> str | None:
        """Why it counts as dead; None while it lives."""
        age = self._clock() - self._last
        return None if age <= self._max_age_s else f"no sign of life for {age:.0f} s (at most {self._max_age_s:g} s)"


class Health:
    """The conditions and heartbeats of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._conditions: dict[str, Condition] = {}
        self._heartbeats: dict[str, Heartbeat] = {}

    def require(self, name: str, reason: str = "starting") -> Condition:
        """Register a condition (or return the one of that name). Not ready until it is `met`."""
        return self._conditions.setdefault(name, Condition(name, reason))

    def forget(self, name: str) -> None:
        """Drop a condition or heartbeat (its part has left the process on purpose)."""
        self._conditions.pop(name, None)
        self._heartbeats.pop(name, None)

    def heartbeat(self, name: str, max_age_s: float) -> Heartbeat:
        """Register a heartbeat; it counts as given now."""
        return self._heartbeats.setdefault(name, Heartbeat(name, max_age_s, self._clock))

    def live(self) -> dict[str, str]:
        """What speaks against being alive, by name; empty when alive."""
        return {name: reason for name, beat in list(self._heartbeats.items()) if (reason := beat.reason)}

    def ready(self) -> dict[str, str]:
        """What speaks against being ready, by name; empty when ready. What is not alive is not ready, and neither is a service
        that has not named a condition yet: probes come before a start is through."""
        if not self._conditions:
            return {"service": "starting"}
        unmet = {name: reason for name, condition in list(self._conditions.items()) if (reason := condition.reason)}
        return {**unmet, **self.live()}
