"""murmur2 as Java has it: the golden values of org.apache.kafka.common.utils.UtilsTest."""

from __future__ import annotations

import pytest

from turnlog.kafka.partitioner import murmur2, partition_of

GOLDEN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), GOLDEN.items())
def test_golden_values(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


@pytest.mark.parametrize("key", [b"", b"a", b"ab", b"run-1", b"x" * 10_000])
def test_every_key_has_one_partition(key: bytes) -> None:
    assert partition_of(key, 12) in range(12)
    assert partition_of(key, 1) == 0
