"""What tests of Turnlog, and of programs on Turnlog, are written with: shipped with the library."""

from turnlog.testing.memory_log import MemoryCluster, MemoryHost, Move

__all__ = ["MemoryCluster", "MemoryHost", "Move"]
