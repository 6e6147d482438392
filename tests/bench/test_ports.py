"""The ports of a run's servers stay reserved for these servers, even while the servers are down."""

from __future__ import annotations

import contextlib
import socket

import pytest

from routekeeper.bench.ports import BLOCK, BLOCKS, HOST, NoPorts, Ports

CLUSTER = 150
"""Number of ports that a test reserves at once. One cluster and the proxy's links need fewer."""


def test_ports_of_one_run_are_not_given_again_before_its_servers_listen_on_them() -> None:
    with contextlib.closing(Ports()) as ports:
        servers, links = ports.take(CLUSTER), ports.take(CLUSTER)
    assert len({*servers, *links}) == 2 * CLUSTER


def test_comparisons_side_by_side_share_no_port_even_of_servers_that_are_down() -> None:
    with contextlib.ExitStack() as stack:
        each = [stack.enter_context(contextlib.closing(Ports())).take(CLUSTER) for _ in range(3)]
    assert len({port for ports in each for port in ports}) == 3 * CLUSTER


def test_long_comparison_gets_ports_for_ever_and_none_that_is_taken() -> None:
    with contextlib.closing(Ports()) as ports, socket.socket() as held:
        first = ports.take(CLUSTER)
        held.bind((HOST, first[0]))
        later = [set(ports.take(CLUSTER)) for _ in range(20)]
        assert not any(first[0] in taken for taken in later)
        assert any(set(first) & taken for taken in later)
        with pytest.raises(NoPorts, match="need"):
            ports.take(BLOCKS * BLOCK)
