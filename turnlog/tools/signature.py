"""From a function's signature: the JSON Schema the model sees, and the reader that turns argument text into keyword arguments.

Both come from one pydantic type, so what is announced is what is accepted. Parameter descriptions come from `Annotated[...,
Field(description=...)]` or from the docstring's `Args:` section (Google's form).
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, NotRequired

import typing_extensions
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, PydanticSerializationError

from turnlog.core.ids import canonical_json, parse_json
from turnlog.tools.context import ToolContext

# Made at run time, which type checkers do not follow; pydantic wants this one before Python 3.12.
_typed_dict: Any = typing_extensions.TypedDict

ReadArguments = Callable[[str], dict[str, Any]]
"""Turns the text of a call's arguments into keyword arguments. Raises BadArguments."""


class BadArguments(ValueError):
    """The arguments do not fit the signature; the message tells the model how to mend the call."""


class UnsupportedSignature(TypeError):
    """The function cannot be a tool; the message says why and what to change."""


class Signature(NamedTuple):
    """What a function says about itself."""

    wants_context: bool
    description: str
    parameters: str
    """JSON Schema as text, properties in the order of the signature."""
    read: ReadArguments


def signature_of(function: Callable[..., Any], *, takes_text: bool, parameters: Mapping[str, Any] | None) -> Signature:
    """Read a function. `parameters` replaces the schema that is shown; with `**arguments` in the signature nothing is coerced.

    Raises UnsupportedSignature.
    """
    own = _parameters(function)
    wants_context = _takes_context(function, own)
    arguments = own[1:] if wants_context else own
    description, about = _docstring(function)
    if takes_text:
        shown = _TEXT_SCHEMA if parameters is None else _checked(parameters)
        return Signature(wants_context, description, shown, _text_reader(arguments))
    if arguments and arguments[-1].kind is inspect.Parameter.VAR_KEYWORD:
        if parameters is None:
            raise UnsupportedSignature("**arguments needs an explicit JSON Schema: tool(parameters={...})")
        return Signature(wants_context, description, _checked(parameters), _read_object)
    adapter = _adapter(arguments, _types(function, arguments), about)
    shown = _json_text(_schema(adapter)) if parameters is None else _checked(parameters)
    return Signature(wants_context, description, shown, _reader(adapter))


_TEXT_SCHEMA = canonical_json({"type": "object", "properties": {}})


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as problem:
        raise UnsupportedSignature(f"its signature cannot be read: {problem}") from None
    for place, parameter in enumerate(found):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise UnsupportedSignature(f"*{parameter.name} is not supported: calls have named arguments")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and place:
            raise UnsupportedSignature(f"{parameter.name!r} is positional-only: calls have named arguments")
    return found


def _takes_context(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    """Whether the first parameter is the context: annotated as ToolContext. Others must not be."""
    hints = _hints(function, {p.name for p in parameters})
    first = parameters[0] if parameters else None
    for parameter in parameters[1:]:
        if hints.get(parameter.name) is ToolContext:
            raise UnsupportedSignature(f"{parameter.name!r} is a ToolContext: that must be the first parameter")
    if first is None:
        return False
    if hints.get(first.name) is ToolContext:
        return True
    if first.name in ("ctx", "context", "self") and first.annotation is inspect.Parameter.empty:
        raise UnsupportedSignature(f"its first parameter {first.name!r} has no type: write `{first.name}: ToolContext`")
    if first.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise UnsupportedSignature(f"{first.name!r} is positional-only: calls have named arguments")
    return False


def _hints(function: Callable[..., Any], names: set[str]) -> dict[str, Any]:
    """Types of these parameters. The return type is left alone: it may name what exists for type checkers only."""
    target = function
    while True:
        if hasattr(target, "func"):  # functools.partial
            target = target.func
        elif hasattr(target, "__wrapped__"):
            target = target.__wrapped__
        elif inspect.isfunction(target) or inspect.ismethod(target):
            break
        else:
            target = type(target).__call__
            break
    written = getattr(target, "__annotations__", {})
    holder = type("Annotations", (), {"__annotations__": {n: t for n, t in written.items() if n in names}})
    try:
        return typing.get_type_hints(holder, globalns=getattr(target, "__globals__", {}), include_extras=True)
    except NameError as problem:
        raise UnsupportedSignature(
            f"the type {problem.name!r} is not known where the module is read: "
            "types of tool parameters must be importable names of the module, outside `if TYPE_CHECKING`"
        ) from None


def _types(function: Callable[..., Any], arguments: list[inspect.Parameter]) -> dict[str, Any]:
    hints = _hints(function, {p.name for p in arguments})
    for parameter in arguments:
        if parameter.name not in hints:
            raise UnsupportedSignature(f"the parameter {parameter.name!r} has no type: the model needs its schema")
    return hints


def _adapter(
    arguments: list[inspect.Parameter], types: Mapping[str, Any], about: Mapping[str, str]
) -> TypeAdapter[dict[str, Any]]:
    fields: dict[str, Any] = {}
    for parameter in arguments:
        kind = types[parameter.name]
        if parameter.name in about and not _described(kind):
            kind = Annotated[kind, Field(description=about[parameter.name])]
        if parameter.default is not inspect.Parameter.empty:
            kind = NotRequired[_with_default(kind, parameter.default)]
        fields[parameter.name] = kind
    shape: Any = _typed_dict("Arguments", fields)
    # What the model adds beyond the schema is an error it can mend, not something to drop silently.
    shape.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        return TypeAdapter(shape)
    except (PydanticSchemaGenerationError, PydanticUserError) as problem:
        raise UnsupportedSignature(f"a parameter's type has no JSON form: {str(problem).splitlines()[0]}") from None


def _described(kind: Any) -> bool:
    return any(getattr(extra, "description", None) for extra in getattr(kind, "__metadata__", ()))


def _with_default(kind: Any, default: Any) -> Any:
    """The type with its default shown in the schema. The default itself stays the function's: an absent argument is not passed."""
    try:
        shown = TypeAdapter(kind).dump_python(default, mode="json", warnings=False)
        canonical_json(shown)
    except (PydanticSerializationError, PydanticUserError, ValueError, TypeError):
        return kind
    return Annotated[kind, Field(json_schema_extra={"default": shown})]


class _Untitled(GenerateJsonSchema):
    """Without the titles that pydantic makes from names: the model pays for every token and learns nothing from them."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        return value  # the order of the signature: models fill in arguments in the order they read

    def generate(
        self, schema: CoreSchema, mode: typing.Literal["validation", "serialization"] = "validation"
    ) -> JsonSchemaValue:
        made = super().generate(schema, mode)
        made.pop("title", None)
        return made


def _schema(adapter: TypeAdapter[dict[str, Any]]) -> JsonSchemaValue:
    try:
        return adapter.json_schema(schema_generator=_Untitled)
    except PydanticUserError as problem:
        raise UnsupportedSignature(f"a parameter's type has no JSON Schema: {str(problem).splitlines()[0]}") from None


def _json_text(schema: JsonSchemaValue) -> str:
    return json.dumps(schema, separators=(",", ":"), allow_nan=False)


def _checked(parameters: Mapping[str, Any]) -> str:
    try:
        text = _json_text(dict(parameters))
    except (ValueError, TypeError) as problem:
        raise UnsupportedSignature(f"parameters is no JSON: {problem}") from None
    if parameters.get("type") != "object":
        raise UnsupportedSignature(
            'parameters must be the JSON Schema of an object: {"type": "object", "properties": ...}'
        )
    return text


def _reader(adapter: TypeAdapter[dict[str, Any]]) -> ReadArguments:
    validate, fallback = adapter.validator.validate_json, adapter.validator.validate_python

    def read(text: str) -> dict[str, Any]:
        try:
            made: dict[str, Any] = validate(text)
        except ValidationError as problem:
            if problem.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
                raise BadArguments(_explained(problem)) from None
        else:
            return made
        # Python's parser knows JSON that pydantic's does not (a lone surrogate in a string), and has the better message.
        try:
            made = fallback(_read_object(text))
        except ValidationError as problem:
            raise BadArguments(_explained(problem)) from None
        return made

    return read


def _explained(problem: ValidationError) -> str:
    errors = problem.errors(include_url=False, include_context=False)
    lines = [f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in errors[:10]]
    more = f" (and {len(errors) - 10} more)" if len(errors) > 10 else ""
    return f"The arguments do not fit: {'; '.join(lines)}{more}. Mend them and call the tool again."


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as problem:
        raise BadArguments(f"The arguments are not JSON: {problem}. Call the tool again with a JSON object.") from None
    if not isinstance(value, dict):
        raise BadArguments("The arguments are JSON but no object. Call the tool again with a JSON object.")
    return value


def _text_reader(arguments: list[inspect.Parameter]) -> ReadArguments:
    if len(arguments) != 1 or arguments[0].kind is inspect.Parameter.VAR_KEYWORD:
        raise UnsupportedSignature("with takes_text it must have one parameter for the text (beside the context)")
    name = arguments[0].name
    return lambda text: {name: text}


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):\s*$")
_ENTRY = re.compile(r"^(\*{0,2}\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """(prose before the first section, descriptions of the `Args:` section by parameter)."""
    if not (inspect.isroutine(function) or hasattr(function, "__wrapped__")):
        return "", {}  # a callable object or partial shows its class's docstring, which is not about the tool
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in (inspect.getdoc(function) or "").splitlines():
        head = _SECTION.match(line)
        if head:
            current = head.group(1)
        sections.setdefault(current, []).append("" if head else line)
    entries = sections.get("Args") or sections.get("Arguments") or sections.get("Parameters") or []
    return "\n".join(sections[""]).strip(), _entries(entries)


def _entries(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name, indent = "", 0
    for line in lines:
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        entry = _ENTRY.match(text)
        if entry and (not name or depth <= indent):
            name, indent = entry.group(1).lstrip("*"), depth
            found[name] = entry.group(2)
        elif text and name:
            found[name] = f"{found[name]} {text}".strip()
    return found
