"""Tests of the memory for topic names.

The table stores each name only once, and it stores no name of a refused registration.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable
from sys import intern

import pytest

from routekeeper.nameserver.commands import TableLimits, decode_command, encode_command
from routekeeper.nameserver.handlers import decide_registration
from routekeeper.nameserver.registration import Registration, decode_registration
from routekeeper.nameserver.routes.image import encode_image
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.topics import COPIED_FROM
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, Request
from routekeeper.nameserver.verdicts import Applied, Rejected, Verdict
from routekeeper.remoting.codes import RequestCode
from tests.registrations import body_of, fields_of
from tests.tables import check_table

LIMITS = TableLimits(COPIED_FROM, 10 * COPIED_FROM, 10, 100 * COPIED_FROM, "", 50)


def names_of(count: int, first: int = 0) -> Iterable[str]:
    """Yield ``count`` topic names, from the number ``first`` on, each as a new string object."""
    return (f"orders-{first + number:07d}" for number in range(count))


def register(
    table: RouteTable, broker: int, topics: Iterable[str], *, counter: int = 1, queues: int = 8
) -> Verdict:
    """Register a broker's topics.

    As in a nameserver, the request and the command are encoded and decoded, which makes new string objects.
    """
    body = body_of(topics, counter=counter, queues=queues)
    fields = fields_of(body, f"b{broker}", f"10.0.0.{broker}:10911")
    decoded = decode_registration(Request(code=RequestCode.REGISTER_BROKER, ext_fields=fields, body=body))
    assert isinstance(decoded, Registration)
    command = decide_registration(table.view, decoded, NamesrvSettings(), limits=LIMITS)
    assert not isinstance(command, Answer)
    verdict = table.apply(decode_command(encode_command(command)))  # type: ignore[arg-type]
    check_table(table)
    return verdict


def interned(names: Iterable[str]) -> list[str]:
    """Return the names that Python has interned.

    The table must not intern names, because Python 3.12 never frees an interned string.
    """
    return [name for name in names if intern(name) is not name]


@pytest.mark.parametrize("count", [3, COPIED_FROM], ids=["few", "many"])
def test_brokers_with_the_same_topics_share_the_objects_of_their_names(count: int) -> None:
    table = RouteTable()
    for broker in 1, 2, 3:
        assert isinstance(register(table, broker, names_of(count)), Applied)
    assert isinstance(register(table, 3, names_of(count), counter=2, queues=4), Applied)
    topics = table.topics
    kept = {id(name) for name in topics.entries}
    assert len(kept) == count
    for pool in topics.pools.values():
        assert {id(name) for name in pool.topics} == kept
    assert {id(name) for name in topics.marks} == kept


def test_table_shares_names_after_it_is_restored() -> None:
    table = RouteTable()
    register(table, 1, names_of(3))
    again = RouteTable.restore(encode_image(table.copy_for_snapshot()))
    register(again, 2, names_of(4))
    first, second = (pool.topics for pool in again.topics.pools.values())
    assert {id(name) for name in first} < {id(name) for name in second}
    assert not interned(names_of(4))


def test_no_name_of_a_stranger_is_interned() -> None:
    table = RouteTable()
    assert isinstance(register(table, 1, names_of(COPIED_FROM // 2)), Applied)
    assert not interned(names_of(COPIED_FROM // 2))
    assert isinstance(register(table, 2, names_of(COPIED_FROM, first=COPIED_FROM)), Rejected)
    assert not interned(names_of(COPIED_FROM, first=COPIED_FROM))


@pytest.mark.slow
def test_refused_registrations_keep_no_memory() -> None:
    table, count = RouteTable(), COPIED_FROM + 1
    register(table, 1, names_of(10))
    sizes = []
    tracemalloc.start()
    try:
        for turn in range(1, 6):
            assert isinstance(register(table, 2, names_of(count, first=turn * count)), Rejected)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # If the table stored the names of only one refused registration, each name would take 60 bytes. The limit
    # is half of this, because the test itself also allocates about 30 kB.
    assert sizes[-1] - sizes[0] < 30 * count
