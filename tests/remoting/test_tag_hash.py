"""Tests that hashes of long tags equal Java's, and that they take little time.

Any client may send tags of any length.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.remoting.message import tag_hash
from tests.cost import least_cpu_s


def by_definition(tag: str) -> int:
    """Return the hash as the documentation of Java's ``String.hashCode`` defines it."""
    data = tag.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value & 0x80000000 else value


@given(st.text(st.characters(), min_size=1, max_size=40), st.integers(1, 400))
def test_hash_of_a_tag_of_any_length_is_java_s(text: str, times: int) -> None:
    assert tag_hash(text * times) == by_definition(text * times)


@pytest.mark.parametrize("unit", ["\0", "a", "\uffff", "\ud800", "\U0010ffff"], ids=ascii)
@pytest.mark.parametrize("length", [*range(70), *range(4090, 4100), 8191, 8192, 8193, 32_767, 100_001])
def test_hash_is_java_s_at_the_bounds_of_its_steps(unit: str, length: int) -> None:
    assert tag_hash(unit * length) == by_definition(unit * length)
    assert tag_hash("z" + unit * length) == by_definition("z" + unit * length)


def test_long_tag_is_not_hashed_unit_by_unit() -> None:
    tag = "long tag" * 32_768
    slow = least_cpu_s(lambda: lambda: by_definition(tag), below=0.0)
    assert least_cpu_s(lambda: lambda: tag_hash(tag), below=slow / 4) < slow / 4
