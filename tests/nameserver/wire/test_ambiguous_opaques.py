"""Tests that the route cache answers like the full parser if a header has two fields "opaque"."""

from __future__ import annotations

import pytest

from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.frame import encode_frame
from tests.nameserver.wire.test_route_cache import cache_of, in_full, lead, table_of

#: Headers with two ids of the request ("opaque"). The cache reads the id at ``%d``; the other id is always 6.
AMBIGUOUS = {
    "twice": b'{"code":105,"extFields":{"topic":"T"},"opaque":%d,"version":479,"opaque":6}',
    "among the arguments first": b'{"code":105,"extFields":{"opaque":%d,"topic":"T"},"flag":0,"opaque":6}',
    "in a member that is skipped": b'{"code":105,"x":{"opaque":%d},"extFields":{"topic":"T"},"opaque":6}',
}


@pytest.mark.parametrize("header", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_opaque_that_stands_in_two_places_is_answered_as_the_parser_reads_it(header: bytes) -> None:
    table = table_of("T")
    cache = cache_of(table)
    reader = cache.reader()
    for digit in (6, 6, 7, 8, 6, 5):
        data = encode_frame(header % digit, codec=HeaderCodec.JSON)
        answers: list[bytes] = []
        whole = reader.whole(data)
        assert whole is None or whole == in_full(table, data)
        if lead(reader, data, answers):
            assert b"".join(answers) == in_full(table, data)
