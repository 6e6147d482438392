"""RocketMQ's subcommands that this tool lacks, each with the reason and a substitute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Absent:
    """The text about a subcommand of RocketMQ's tool that RouteKeeper does not have.

    Attributes:
        reason: Reason why RouteKeeper does not have the subcommand.
        instead: Advice on what to use instead.
    """

    reason: str
    instead: str

    def line(self, name: str) -> str:
        """Return the line to print if a user calls the subcommand."""
        return f"mqadmin {name} is not in RouteKeeper: {self.reason}; instead: {self.instead}"


_NO_ACL_2: Final = "ACL 2.0 of RocketMQ 5.x is not supported"
_ACL_1: Final = "use accounts of ACL 1.0: updateAclConfig, getAclConfig (docs/security.md)"
_NO_CONTROLLER: Final = "there is no controller, because brokers here have no slaves"
_NO_COLD_DATA: Final = "brokers here do not distinguish cold data from other data"
_NO_STATIC: Final = "static topics (logical queues) are not supported"
_NO_ROCKSDB: Final = "brokers here do not use RocksDB"
_THEIRS: Final = "use RocketMQ's own mqadmin with RocketMQ's brokers"

#: The subcommands of RocketMQ 5.3.3 that this tool lacks. This tool has all subcommands of 4.9.7.
ABSENT: Final[Mapping[str, Absent]] = {
    "addBroker": Absent("there are no broker containers", "start one more mqbroker"),
    "checkRocksdbCqWriteProgress": Absent(
        _NO_ROCKSDB, "queryCq -t TOPIC -q QUEUE -i INDEX reads a queue's index"
    ),
    "cleanBrokerMetadata": Absent(
        _NO_CONTROLLER, "skip this step: the nameservers remove a stopped broker themselves"
    ),
    "copyAcl": Absent(f"{_NO_ACL_2}, so there are no rules to copy", _ACL_1),
    "copyUser": Absent(f"{_NO_ACL_2}, so there are no users to copy", _ACL_1),
    "createAcl": Absent(f"{_NO_ACL_2}, so a rule would protect nothing", _ACL_1),
    "createUser": Absent(f"{_NO_ACL_2}, so a user would protect nothing", _ACL_1),
    "deleteAcl": Absent(f"{_NO_ACL_2}, so there is no rule to delete", _ACL_1),
    "deleteUser": Absent(f"{_NO_ACL_2}, so there is no user to delete", _ACL_1),
    "dumpCompactionLog": Absent(
        "topics with compaction are not supported", "printMsg -t TOPIC reads a topic"
    ),
    "electMaster": Absent(_NO_CONTROLLER, "start the stopped broker again: its store holds its messages"),
    "exportMetadataInRocksDB": Absent(_NO_ROCKSDB, "exportMetadata -c CLUSTER"),
    "exportPopRecord": Absent(
        "POP consumption is not supported", "consumerProgress -g GROUP shows a group's progress"
    ),
    "getAcl": Absent(f"{_NO_ACL_2}, so there is no rule to show", _ACL_1),
    "getBrokerEpoch": Absent(
        _NO_CONTROLLER, "brokerStatus -b ADDRESS shows where the broker's log begins and ends"
    ),
    "getColdDataFlowCtrInfo": Absent(
        _NO_COLD_DATA, "consumerProgress -g GROUP shows groups that are far behind"
    ),
    "getControllerConfig": Absent(_NO_CONTROLLER, "getNamesrvConfig shows the nameservers' settings"),
    "getControllerMetaData": Absent(
        _NO_CONTROLLER, "raftStatus shows the leader of nameservers in raft mode"
    ),
    "getSyncStateSet": Absent(_NO_CONTROLLER, "clusterList shows all brokers"),
    "getUser": Absent(f"{_NO_ACL_2}, so there is no user to show", _ACL_1),
    "listAcl": Absent(f"{_NO_ACL_2}, so there are no rules to list", _ACL_1),
    "listUser": Absent(f"{_NO_ACL_2}, so there are no users to list", _ACL_1),
    "remappingStaticTopic": Absent(
        _NO_STATIC, "updateTopic changes the number of a topic's queues at each broker"
    ),
    "removeBroker": Absent(
        "there are no broker containers", "stop the broker: mqshutdown broker, or SIGTERM"
    ),
    "removeColdDataFlowCtrGroupConfig": Absent(_NO_COLD_DATA, _THEIRS),
    "resetMasterFlushOffset": Absent(
        "brokers here have no slaves, so they store no flush offset of a master", _THEIRS
    ),
    "rocksDBConfigToJson": Absent(
        _NO_ROCKSDB, "exportMetadata -c CLUSTER, or read the store's config folder, which holds JSON"
    ),
    "setCommitLogReadAheadMode": Absent(
        "brokers here do not tell the operating system how to read ahead", "skip this step"
    ),
    "setConsumeMode": Absent("POP consumption is not supported, so there is only one mode", "skip this step"),
    "updateAcl": Absent(f"{_NO_ACL_2}, so a rule would protect nothing", _ACL_1),
    "updateColdDataFlowCtrGroupConfig": Absent(_NO_COLD_DATA, _THEIRS),
    "updateControllerConfig": Absent(
        _NO_CONTROLLER, "updateNamesrvConfig -k KEY -v VALUE changes nameservers"
    ),
    "updateStaticTopic": Absent(_NO_STATIC, "updateTopic -t TOPIC -c CLUSTER creates a topic at each broker"),
    "updateUser": Absent(f"{_NO_ACL_2}, so a user would protect nothing", _ACL_1),
}
_BY_NAME: Final = {name.lower(): name for name in ABSENT}


def absent_line(name: str) -> str | None:
    """Return the line to print for a subcommand in :data:`ABSENT`; None for any other name."""
    known = _BY_NAME.get(name.lower())
    return None if known is None else ABSENT[known].line(known)
