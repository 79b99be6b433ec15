"""Which of our settings a refusal of the client library speaks of.

librdkafka checks its properties when a client is made, and says what is wrong by its own names. No later try can succeed: whoever
serves ends with that, and whoever set it reads the name of the variable.
"""

from __future__ import annotations

import re

from turnlog.kafka.port import LogError

_FIXED = re.compile(r"^([a-z.]+) is fixed to ")  # our own words: turnlog.kafka.client
_PROPERTY = re.compile(r'(?<!value ")\b[a-z]+(?:\.[a-z]+)+\b')
_ANY = "properties are set by TURNLOG_KAFKA__<PROPERTY>, with _ for each dot"


def setting_problem(error: LogError) -> str | None:
    """What is wrong with the settings and which variables say so, if that is what the error is about; None for any other error."""
    if error.code != "_INVALID_ARG":
        return None
    found = dict.fromkeys(_FIXED.findall(str(error)) or _PROPERTY.findall(str(error)))
    named = (f"TURNLOG_KAFKA__{name.replace('.', '_').upper()}" for name in found)
    return f"{error} ({', '.join(named) or _ANY})"
