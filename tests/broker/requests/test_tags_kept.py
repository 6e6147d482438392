"""The broker caches the hashes of short tags only, so that long tags of any client use no memory."""

from __future__ import annotations

import tracemalloc

from routekeeper.broker.requests.tags import cached_tag_hash
from routekeeper.remoting.message import tag_hash


def test_long_tags_cost_no_memory_once_they_are_hashed() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(60):
            tag = f"{number}" + "\U0001f600" * 900
            assert cached_tag_hash(tag) == tag_hash(tag)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000
