"""Settings of model providers, as they come from the environment.

Services declare `models: ModelsSettings = {}` in their pydantic settings (prefix `TURNLOG_`, nested delimiter `__`):

    TURNLOG_MODELS__OPENAI__API_KEY=...                    OpenAI itself, as `openai/<model>`
    TURNLOG_MODELS__LOCAL__KIND=openai                     another server of the same API, as `local/<model>`
    TURNLOG_MODELS__LOCAL__BASE_URL=http://127.0.0.1:8000/v1
    TURNLOG_MODELS__LOCAL__HEADERS={"x-team": "billing"}   more headers, as JSON
    TURNLOG_MODELS__SCRIPTED=true                          the scripted models, never on by default

The name is the part of an agent's `model` before the first slash, in lower case. `KIND` defaults to the name; `=true` alone
means "this kind, with its defaults", `=false` takes a provider away. A kind reads its own settings and refuses others by name.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, model_validator
from pydantic_core import PydanticCustomError

UNKNOWN_SETTING = "unknown_setting"
"""Type of the error about a setting that its kind does not know; `ctx` has its `name` and the `known` ones."""


def variable(*names: str) -> str:
    """The environment variable of a provider, or of one of its settings."""
    return "__".join(("TURNLOG_MODELS", *(name.upper() for name in names)))


class ProviderSettings(BaseModel):
    """What is common to all kinds. Fields of the kind itself are kept as they came, for the kind to validate."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    kind: str = ""
    """Which implementation: `openai`, `scripted`, or one that an installed package adds. Empty: the provider's own name."""
    api_key: SecretStr = SecretStr("")
    headers: dict[str, SecretStr] = {}
    """Sent with every request, over everything Turnlog sets itself. Secret, since some providers take their key here."""


class KindSettings(ProviderSettings):
    """Base for the settings of one kind: what it does not know is a mistake of whoever set it."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing_unknown(cls, given: dict[str, Any]) -> dict[str, Any]:
        unknown = next((name for name in given if name not in cls.model_fields), None)
        if unknown is not None:
            known = ", ".join(sorted(name.upper() for name in cls.model_fields))
            raise PydanticCustomError(
                UNKNOWN_SETTING, "{name} is no setting (there are: {known})", {"name": unknown, "known": known}
            )
        return given


def _providers(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    switched = {str(name).lower(): _switched(str(name), settings) for name, settings in value.items()}
    return {name: settings for name, settings in switched.items() if settings is not None}


def _switched(name: str, settings: Any) -> Any:
    """`true` and its like as "with defaults", `false` as None. Raises ValueError for other words."""
    match str(settings).strip().lower() if isinstance(settings, str | bool | int) else settings:
        case "true" | "1" | "yes" | "on":
            return {}
        case "false" | "0" | "no" | "off" | "":
            return None
    if isinstance(settings, str):
        raise ValueError(
            f"{variable(name)} is true, false or JSON; settings have a name each, as {variable(name, 'kind')}"
        )
    return settings


MODELS_HELP = (
    "Model providers; NAME is what stands before the slash in an agent's model. For openai/gpt-4o: "
    "TURNLOG_MODELS__OPENAI__API_KEY; besides __BASE_URL, __KIND, __HEADERS. "
    "TURNLOG_MODELS__SCRIPTED=true allows scripted/echo, which needs no key."
)

ModelsSettings = Annotated[dict[str, ProviderSettings], BeforeValidator(_providers)]
"""Provider settings by provider name."""
