"""Java's default partitioner, so that MemoryLog puts every key where a real cluster does.

org.apache.kafka.common.utils.Utils.murmur2; golden values in tests/contract/test_partitioning.py.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned."""
    length = len(data)
    h = 0x9747B28C ^ length
    for at in range(0, length - length % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if tail := data[length - length % 4 :]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key. As in Java, the sign bit is dropped, not negated."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
