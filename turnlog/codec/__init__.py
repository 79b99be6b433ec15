"""Records as bytes. `Codec` is all that services need; see schemas/README.md for what stands where."""

from turnlog.codec.codec import Codec
from turnlog.codec.errors import (
    REASONS,
    CodecError,
    Reason,
    RegistryRefused,
    RegistryUnavailable,
    Unencodable,
    Unreadable,
)
from turnlog.codec.plain import from_plain, to_plain
from turnlog.codec.registry import Registry
from turnlog.codec.schemas import TOP_LEVEL

__all__ = [
    "REASONS",
    "TOP_LEVEL",
    "Codec",
    "CodecError",
    "Reason",
    "Registry",
    "RegistryRefused",
    "RegistryUnavailable",
    "Unencodable",
    "Unreadable",
    "from_plain",
    "to_plain",
]
