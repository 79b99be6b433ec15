"""A start that waits for what is away: Kafka, a schema registry, a right that somebody has yet to grant.

A service that ended instead would be started again for ever by its supervisor, with a pause that grows, and could be asked nothing
meanwhile. So it says in health and log what it waits for, and tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from turnlog.obs.health import Condition

T = TypeVar("T")

FIRST_S: Final = 1.5
LATER_S: Final = 10.0
"""How long an attempt may wait for its first answer. The first is short, so that an absent cluster is in the log soon; the others let a
slow one through."""
AGAIN_S: Final = 1.0


def until_there(
    attempt: Callable[[float], T],
    condition: Condition,
    away: tuple[type[Exception], ...],
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """What `attempt` returns, once it does; it is given the seconds that its first question may take.

    While it raises one of `away`, that is why `condition` does not hold (a new reason is a warning in the log), and after a pause it is
    tried again, for ever: to stop, raise from `pause` or from a signal handler. Any other error passes through. Whether the condition
    holds in the end is for the caller to say.
    """
    answer_s = FIRST_S
    while True:
        try:
            return attempt(answer_s)
        except away as problem:
            condition.unmet(f"{problem}; it is tried again")
        answer_s = LATER_S
        pause(AGAIN_S)
