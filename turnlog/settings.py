"""Settings of every service: environment variables `TURNLOG_...`, nested names joined by `__`, and a table that lists them.

Services subclass `Settings` for what is theirs alone. Nothing is read at import; `from_environment` reads it once.
No secret is ever printed: secrets are `SecretStr`, and Kafka properties show the values of harmless names only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, GetCoreSchemaHandler, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticUndefined, core_schema
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from turnlog import __version__

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_TELLTALE = ("password", "secret", "token", "key", "jaas", "oauth", "credential")


class KafkaProperties(dict[str, str]):
    """Raw librdkafka properties by their own names; everything that librdkafka knows is passed through.

    `TURNLOG_KAFKA__SASL_MECHANISM` is `sasl.mechanism`: lower case, `_` read as `.` (no settable librdkafka property has an
    underscore). `bootstrap.servers` is filled in when absent. `repr` hides the values of names that smell of credentials.
    """

    def __repr__(self) -> str:
        shown = {name: "***" if _is_secret(name) else value for name, value in self.items()}
        return f"KafkaProperties({shown})"

    __str__ = __repr__

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> KafkaProperties:
        named = {name.lower().replace("_", "."): _as_text(value) for name, value in given.items()}
        return cls({"bootstrap.servers": DEFAULT_BOOTSTRAP, **named})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls.of, core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
        )


def _is_secret(name: str) -> bool:
    return any(word in name for word in _TELLTALE)


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ObsSettings(BaseModel):
    """Where health and metrics are served."""

    host: str = Field(
        default="127.0.0.1", description="Address of the health and metrics server; loopback unless told otherwise."
    )
    port: int = Field(
        default=0, ge=0, le=65535, description="Its port; 0 takes a free one, which is written to the log."
    )
    port_file: Path | None = Field(default=None, description="File to write the port in use to, for scripts.")


class LogSettings(BaseModel):
    """How log lines are written (to standard error)."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least level that is written."
    )
    format: Literal["auto", "json", "human"] = Field(
        default="auto",
        description="json: one object a line; human: for terminals; auto: human on a terminal, else json.",
    )


class Settings(BaseSettings):
    """What all services share."""

    model_config = SettingsConfigDict(
        env_prefix="TURNLOG_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="ignore",
        validate_default=True,
        hide_input_in_errors=True,
    )

    kafka: KafkaProperties = Field(
        default_factory=lambda: KafkaProperties.of({}),
        description="librdkafka properties: TURNLOG_KAFKA__SASL_MECHANISM is sasl.mechanism, and so on.",
    )
    topic_prefix: str = Field(
        default="turnlog.",
        pattern=r"^[A-Za-z0-9._-]*$",
        max_length=100,
        description="Put before every topic and group name; one per installation.",
    )
    partitions: int = Field(
        default=4,
        ge=1,
        le=10_000,
        description="Partitions of the co-partitioned topics; fixed for the life of the installation.",
    )
    replication: int = Field(default=1, ge=1, le=10, description="Replicas of each topic; 3 on a real cluster.")
    secret: SecretStr | None = Field(
        default=None, description="Installation secret that signs reply tokens; the loop needs it."
    )
    secret_previous: SecretStr | None = Field(
        default=None, description="The secret before the last rotation, still accepted."
    )
    registry_url: str | None = Field(
        default=None, description="Schema registry (Confluent API); without one, ids come from the numbered files."
    )
    registry_register: bool = Field(
        default=True, description="Register schemas the registry lacks; false where a pipeline or an operator does."
    )
    state_dir: Path = Field(
        default=Path(".turnlog"), description="Where the embedded default keeps its data and generated secret."
    )
    build: str = Field(
        default=__version__, min_length=1, description="Name of this build, recorded with what it writes."
    )
    obs: ObsSettings = Field(default_factory=ObsSettings, description="Health and metrics.")
    log: LogSettings = Field(default_factory=LogSettings, description="Log lines.")


S = TypeVar("S", bound=BaseSettings)


class BadSettings(ValueError):
    """What the environment says wrong: a line for each variable, by its name. Secrets are not shown."""


def from_environment(kind: type[S], **given: Any) -> S:
    """The settings of a process, read once; `given` goes before the environment. Raises BadSettings."""
    try:
        return kind(**given)
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix") or ""
        names = [f"{prefix}{'__'.join(map(str, one['loc']))}".upper() for one in error.errors()]
        said = [one["msg"].removeprefix("Value error, ") for one in error.errors()]
        lines = [f"{name}: {what}" for name, what in zip(names, said, strict=True)]
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        name = f"{kind.model_config.get('env_prefix') or ''}{field[1] if field else '...'}".upper()
        lines = [f"{name}, or one that begins with {name}__, is not the JSON it must be"]
    raise BadSettings("\n".join(f"setting {line}" for line in lines))


class SettingRow(NamedTuple):
    """One line of the settings table."""

    name: str
    default: str
    description: str


def settings_rows(settings: type[BaseSettings]) -> list[SettingRow]:
    """Every environment variable the settings class reads, in the order of its fields, nested ones spelt out."""
    config = settings.model_config
    prefix, delimiter = config.get("env_prefix") or "", config.get("env_nested_delimiter") or "__"
    return list(_rows(settings.model_fields, prefix, delimiter))


def _rows(fields: Mapping[str, FieldInfo], prefix: str, delimiter: str) -> Iterator[SettingRow]:
    for name, field in fields.items():
        full = f"{prefix}{name}".upper()
        nested = _nested_model(field.annotation)
        if get_origin(field.annotation) is dict and nested is not None:
            yield SettingRow(f"{full}{delimiter}<NAME>{delimiter}<SETTING>", "", field.description or "")
        elif nested is not None:
            yield from _rows(nested.model_fields, f"{full}{delimiter}", delimiter)
        elif field.annotation is KafkaProperties:
            about = field.description or ""
            yield SettingRow(f"{full}{delimiter}BOOTSTRAP_SERVERS", DEFAULT_BOOTSTRAP, "Addresses of the cluster.")
            yield SettingRow(f"{full}{delimiter}<PROPERTY>", "", about)
        else:
            yield SettingRow(full, _default_text(field), field.description or "")


def _nested_model(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    default = field.get_default(call_default_factory=False)
    return "" if default is None or default is PydanticUndefined else str(default)


def settings_table(settings: type[BaseSettings]) -> str:
    """The table for `--help`: one block a setting, name and default on the first line, description below."""
    rows = settings_rows(settings)
    lines = []
    for row in rows:
        lines.append(f"  {row.name}" + (f"  [{row.default}]" if row.default else ""))
        lines.append(f"      {row.description}")
    return "Settings (environment variables, defaults in brackets):\n" + "\n".join(lines)


# ---------------------------------------------------------------- variables that nobody reads

NEAR: Final = 0.75
_OTHERS: Final = """
    BLOBS BLOBS_SHARED FLOOR_BYTES INSTANCE JOURNAL_KEEP_DAYS PARK_AFTER_S PROCESSES SESSION_TIMEOUT_MS SNAPSHOT_BYTES VERIFY
    WORKER__TASKS WORKER__THREADS WORKER__UNDER_WAY WORKER__UNDER_WAY_MB WORKER__KNOWN WORKER__KNOWN_MB WORKER__COMMIT_EVERY_S
    WORKER__DRAIN_S WORKER__INSTANCE_ID MODELS__OPENAI__API_KEY MODELS__OPENAI__BASE_URL MODELS__SCRIPTED
    JAVA CACHE_DIR MAVEN_REPOSITORY TOOLSET TEST_BOOTSTRAP TEST_DOCKER TEST_REGISTRY TEST_SEED SIMULATION_SEEDS
    """
OF_OTHERS: Final = frozenset(f"TURNLOG_{name}" for name in _OTHERS.split())
"""What is read by some program of ours and is no field of `Settings`: the loop's and the worker's own settings, those of the embedded
Kafka, of docker-compose.yml and of the tests. One environment serves several programs, so none warns of another's variables."""
_FAMILIES: Final = ("TURNLOG_KAFKA__", "TURNLOG_MODELS__")
"""Beginnings of names whose rest is free: librdkafka refuses a wrong property, and a model's kind a wrong setting."""


def unread_variables(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable `TURNLOG_...` that no program of ours reads and that is probably meant to be one.

    Toolsets may have variables of their own with our prefix. So one is told only when a name of ours is near: written alike
    (difflib's ratio of what follows the prefix is 0.75 or more), or with all its words in that name (PREFIX for TOPIC_PREFIX).
    """
    known = {row.name for row in settings_rows(Settings) if "<" not in row.name} | OF_OTHERS
    ours = sorted(name for name in environment if name.upper().startswith("TURNLOG_"))
    found = ((name, _nearest(name.upper(), known)) for name in ours)
    return [f"the environment variable {name} is read by nobody: is {near} meant?" for name, near in found if near]


def _nearest(name: str, known: set[str]) -> str | None:
    """The name of ours that is probably meant; None for one of ours, and for one that resembles none."""
    if name in known or name.startswith(_FAMILIES) or name in {family.removesuffix("__") for family in _FAMILIES}:
        return None
    for family in _FAMILIES:
        if name.startswith(family.removesuffix("_")):
            return family + name[len(family) - 1 :]
    alike = {other: _likeness(name, other) for other in known}
    best = max(sorted(alike), key=alike.__getitem__)
    return best if alike[best] >= NEAR else None


def _likeness(name: str, other: str) -> float:
    mine, theirs = (text.removeprefix("TURNLOG_") for text in (name, other))
    ratio = SequenceMatcher(None, mine, theirs).ratio()
    return max(ratio, NEAR + ratio / 10) if _words(mine) <= _words(theirs) else ratio


def _words(name: str) -> set[str]:
    return {word for word in name.split("_") if word}
