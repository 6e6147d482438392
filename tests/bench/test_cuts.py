"""Each case of a fault hits the right server and cuts all links of the case and no other link."""

from __future__ import annotations

import itertools

import pytest

from routekeeper.bench.chance import stream
from routekeeper.bench.cuts import SIDES, directions, struck_server
from routekeeper.bench.plan import CASES, SWEEPS, Kind, load_plan
from routekeeper.bench.schedule import block_seed

SERVERS = ["nameserver-0", "nameserver-1", "nameserver-2"]
BROKERS = ["broker-0", "broker-1", "broker-2"]


def cut(kind: Kind, case: str, target: int = 0, broker: int | None = None) -> set[tuple[str, str]]:
    found = directions(kind, case, servers=SERVERS, target=target, brokers=BROKERS, broker=broker)
    assert len(found) == len(set(found))
    return set(found)


def sides(found: set[tuple[str, str]]) -> set[frozenset[str]]:
    """Return the groups of processes that can reach each other if these links are cut."""
    names = [*SERVERS, *BROKERS, *SIDES]
    return {frozenset(other for other in names if (name, other) not in found) for name in names}


@pytest.mark.parametrize(
    ("scenario", "case", "leader", "struck"),
    [
        ("leader-fails", "kill", 2, 2),
        ("leader-fails", "kill", None, 1),
        ("messages", "leader-cable", 0, 0),
        ("messages", "1-2", 0, 1),
        ("partition", "1-2", 0, 1),
        ("partition", "1-2", 1, 1),
        ("partition", "leader-four", 0, 0),
        ("partition", "leader-four", None, 1),
        ("partition", "follower-four", 0, 1),
        ("partition", "follower-four", 1, 2),
        ("nameserver-restarts", "one-empty", None, 1),
        ("nameserver-restarts", "one-empty", 0, 1),
        ("nameserver-restarts", "one-empty", 1, 2),
    ],
)
def test_leader_is_struck_where_the_case_says_so_and_a_partition_parts_whichever_was_drawn(
    scenario: str, case: str, leader: int | None, struck: int
) -> None:
    assert struck_server(scenario, case, count=3, drawn=1, leader=leader) == struck


def test_restart_of_the_last_server_that_leads_is_the_first_ones() -> None:
    assert struck_server("nameserver-restarts", "one-empty", count=3, drawn=2, leader=2) == 0


def test_server_that_a_partition_parts_is_drawn_anew_in_each_round() -> None:
    (series,) = load_plan("compare").series
    found = []
    for seed in range(4):
        for block in range(1, series.blocks + 1):
            chance = stream(block_seed(seed, series.name, block), "targets of partition 1-2")
            found.append(struck_server("partition", "1-2", count=3, drawn=chance.randrange(3), leader=0))
    assert {*found} == {0, 1, 2}
    assert found.count(0) < 12, "not the leader most of the time"


def test_cable_of_a_broker_is_cut_in_both_directions_and_no_other() -> None:
    found = cut("cable", "cable", broker=1)
    assert found == {
        pair for other in (*SERVERS, *SIDES) for pair in (("broker-1", other), (other, "broker-1"))
    }


def test_cable_of_a_server_is_cut_to_servers_brokers_and_clients() -> None:
    found = cut("cable", "cable", target=2)
    others = {*SERVERS, *BROKERS, *SIDES} - {"nameserver-2"}
    assert found == {pair for other in others for pair in (("nameserver-2", other), (other, "nameserver-2"))}


def test_one_way_cut_lets_nothing_out_and_everything_in() -> None:
    found = cut("oneway", "oneway", target=1)
    assert {sender for sender, _ in found} == {"nameserver-1"}
    assert {receiver for _, receiver in found} == {*SERVERS, *BROKERS, *SIDES} - {"nameserver-1"}


@pytest.mark.parametrize("case", ["1-2", *SWEEPS])
@pytest.mark.parametrize("target", range(3))
def test_partition_leaves_one_server_with_a_broker_and_half_of_the_clients(target: int, case: str) -> None:
    alone = frozenset({SERVERS[target], "broker-0", "side-a"})
    everybody = frozenset({*SERVERS, *BROKERS, *SIDES})
    assert sides(cut("partition", case, target)) == {alone, everybody - alone}


@pytest.mark.parametrize("target", range(3))
def test_partition_1_1_1_leaves_every_server_alone_with_a_broker(target: int) -> None:
    groups = sides(cut("partition", "1-1-1", target))
    assert {frozenset(name for name in group if name in SERVERS) for group in groups} == {
        frozenset({name}) for name in SERVERS
    }
    assert [sum(name in BROKERS for name in group) for group in groups] == [1, 1, 1]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(groups, 2))
    (first,) = (group for group in groups if SERVERS[target] in group)
    assert "side-a" in first


def test_broker_and_nameserver_lose_each_other_only() -> None:
    found = cut("partition", "broker-nameserver", target=1, broker=2)
    assert found == {("nameserver-1", "broker-2"), ("broker-2", "nameserver-1")}


def test_faults_of_processes_cut_nothing() -> None:
    kinds = {kind for cases in CASES.values() for kind in cases.values()}
    for kind in kinds - {"cable", "oneway", "partition"}:
        assert cut(kind, kind) == set()


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_brokers_than_servers_leave_no_name_out(count: int) -> None:
    found = directions("partition", "1-1-1", servers=SERVERS, target=0, brokers=BROKERS[:count], broker=None)
    assert {name for pair in found for name in pair} == {*SERVERS, *BROKERS[:count], *SIDES}
