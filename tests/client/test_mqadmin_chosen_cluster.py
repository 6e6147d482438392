"""Subcommands of mqadmin use only the cluster and the time that the operator named."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.client.mqadmin import __main__ as mqadmin
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import BrokerData, ClusterInfo, encode_cluster_info
from tests.client.mqadmin import mqadmin as run


@pytest.mark.parametrize(
    "argv",
    [
        ("updateBrokerConfig", "-c", "DefaultCluster", "-k", "fileReservedTime", "-v", "24"),
        ("updateSubGroup", "-c", "DefaultCluster", "-g", "g"),
        ("deleteSubGroup", "-c", "DefaultCluster", "-g", "g", "-r", "true"),
        ("cleanExpiredCQ", "-c", "DefaultCluster"),
        ("cleanUnusedTopic",),
        ("deleteExpiredCommitLog", "-c", "DefaultCluster"),
        ("getBrokerConfig", "-c", "DefaultCluster"),
        ("brokerStatus", "-c", "DefaultCluster"),
    ],
    ids=lambda argv: argv[0],
)
def test_without_a_nameserver_no_cluster_is_changed(
    argv: tuple[str, ...], new_peer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the address of a nameserver, mqadmin must change nothing.

    If mqadmin asked a nameserver of this machine instead, it could change another cluster with the same name.
    """
    local = new_peer(lambda request: request.reply(1, remark="not this cluster"))
    monkeypatch.setattr(mqadmin, "_UNUSED_NAMESERVER", local.addr)
    code, _, err = run(*argv)
    assert (code, err) == (1, f"mqadmin {argv[0]}: needs a nameserver: name it by -n or NAMESRV_ADDR\n")
    assert not local.requests


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_a_time_before_1970_is_refused_because_brokers_take_it_for_the_end(
    new_peer: Callable[..., Any],
) -> None:
    peer = new_peer(lambda request: request.reply(1, remark="no request is expected"))
    code, _, err = run(
        *("resetOffsetByTime", "-g", "g", "-t", "T", "-b", peer.addr, "-s", "1970-01-01#00:00:00:000"),
        namesrv=peer.addr,
    )
    assert (code, err) == (
        1,
        "mqadmin resetOffsetByTime: -s '1970-01-01#00:00:00:000' is before 1970-01-01 00:00 UTC;"
        " 0 is the beginning\n",
    )
    assert not [one for one in peer.requests if one.code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET]


@pytest.mark.parametrize("refused", [False, True], ids=["deleted", "the broker refuses"])
def test_deleting_a_group_leaves_its_topics_in_other_clusters(
    refused: bool, new_peer: Callable[..., Any]
) -> None:
    peer = new_peer()

    def answer(request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            info = ClusterInfo(
                broker_addr_table={
                    "a": BrokerData(cluster="A", broker_name="a", broker_addrs={0: peer.addr}),
                },
                cluster_addr_table={"A": ("a",), "B": ("b",)},
            )
            return request.reply(body=encode_cluster_info(info))
        if request.code == RequestCode.DELETE_TOPIC_IN_BROKER and refused:
            return request.reply(1, remark="refused by the test")
        return request.reply()

    peer.answer = answer
    code, _, _ = run("deleteSubGroup", "-c", "A", "-g", "g", namesrv=peer.addr)
    asked = [dict(one.ext_fields) for one in peer.requests if one.code == RequestCode.DELETE_TOPIC_IN_NAMESRV]
    assert code == refused
    assert [(one["topic"], one["clusterName"]) for one in asked] == (
        [] if refused else [("%RETRY%g", "A"), ("%DLQ%g", "A")]
    )
