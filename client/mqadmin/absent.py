"""RocketMQ's subcommands that this tool lacks: the reason, and how to reach the same here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Absent:
    """A subcommand of RocketMQ's tool that is not offered.

    Attributes:
        reason: Why it is not.
        instead: How to reach the same, as far as that is possible.
    """

    reason: str
    instead: str

    def line(self, name: str) -> str:
        """Return the line that somebody reads who asks for the subcommand."""
        return f"mqadmin {name} is not in RouteKeeper: {self.reason}; instead {self.instead}"


_NO_ACCESS: Final = "brokers here check nobody's access"
_NETWORK: Final = "bind the ports inside your network (docs/security.md)"
_NO_CONTROLLER: Final = "there is no controller, because brokers here have no slaves"
_NO_COLD_DATA: Final = "brokers here do not tell cold data from other data"
_NO_STATIC: Final = "static topics (logical queues) are not served"
_NO_ROCKSDB: Final = "brokers here keep no RocksDB"
_THEIRS: Final = "use RocketMQ's own mqadmin with RocketMQ's brokers"

#: By name, as RocketMQ 4.9.7 and 5.3.3 have them; those of both first.
ABSENT: Final[Mapping[str, Absent]] = {
    "allocateMQ": Absent(
        "queues are shared out by the members of a group themselves",
        "see who has which queue: consumerProgress -g GROUP -s true",
    ),
    "checkMsgSendRT": Absent(
        "it measures how long sends take from one machine",
        "time sendMessage -t TOPIC -p TEXT, or run mqbench",
    ),
    "clusterRT": Absent(
        "it measures without end how long sends to each cluster take",
        "run mqbench, or watch /metrics of mqbroker --http",
    ),
    "exportConfigs": Absent(
        "it writes a file under a fixed name", "redirect getBrokerConfig -o json and getNamesrvConfig -o json"
    ),
    "exportMetadata": Absent(
        "it writes a file under a fixed name",
        "redirect topicList -o json, topicRoute -t TOPIC -o json and getConsumerConfig -g GROUP -o json",
    ),
    "exportMetrics": Absent(
        "it writes a file under a fixed name",
        "redirect clusterList -o json, brokerStatus -o json and statsAll -o json",
    ),
    "printMsgByQueue": Absent(
        "consumeMessage reads one queue, too", "consumeMessage -t TOPIC -b BROKER_NAME -i QUEUE_ID"
    ),
    "queryMsgTraceById": Absent(
        "brokers and clients here write no message trace",
        "see what became of a message in each group: queryMsgByUniqueKey -t TOPIC -i ID",
    ),
    "sendMsgStatus": Absent(
        "it measures sends to one broker",
        "sendMessage -t TOPIC -b BROKER_NAME -p TEXT prints the result of one",
    ),
    "startMonitoring": Absent(
        "it is a server that watches how far groups are behind",
        "consumerProgress -g GROUP, or alert on /metrics of mqbroker --http (docs/operations.md)",
    ),
    # 4.9.7
    "clusterAclConfigVersion": Absent(f"{_NO_ACCESS}, so there is no version of the rules", _NETWORK),
    "deleteAclConfig": Absent(f"{_NO_ACCESS}, so there is no account to delete", _NETWORK),
    "getAclConfig": Absent(f"{_NO_ACCESS}, so there are no accounts to show", _NETWORK),
    "updateAclConfig": Absent(f"{_NO_ACCESS}, so an account would protect nothing", _NETWORK),
    "updateGlobalWhiteAddr": Absent(f"{_NO_ACCESS}, so a list of addresses would protect nothing", _NETWORK),
    # 5.3.3
    "addBroker": Absent("there are no broker containers", "start one more mqbroker"),
    "checkRocksdbCqWriteProgress": Absent(
        _NO_ROCKSDB, "queryCq -t TOPIC -q QUEUE -i INDEX reads a queue's index"
    ),
    "cleanBrokerMetadata": Absent(_NO_CONTROLLER, "leave it out: the nameservers remove a broker that ended"),
    "copyAcl": Absent(f"{_NO_ACCESS}, so there are no rules to copy", _NETWORK),
    "copyUser": Absent(f"{_NO_ACCESS}, so there are no users to copy", _NETWORK),
    "createAcl": Absent(f"{_NO_ACCESS}, so a rule would protect nothing", _NETWORK),
    "createUser": Absent(f"{_NO_ACCESS}, so a user would protect nothing", _NETWORK),
    "deleteAcl": Absent(f"{_NO_ACCESS}, so there is no rule to delete", _NETWORK),
    "deleteUser": Absent(f"{_NO_ACCESS}, so there is no user to delete", _NETWORK),
    "dumpCompactionLog": Absent("topics with compaction are not served", "printMsg -t TOPIC reads a topic"),
    "electMaster": Absent(_NO_CONTROLLER, "start the broker that ended again: its store has its messages"),
    "exportMetadataInRocksDB": Absent(
        _NO_ROCKSDB, "redirect topicList -o json and getConsumerConfig -g GROUP -o json"
    ),
    "exportPopRecord": Absent(
        "consumption by POP is not served", "consumerProgress -g GROUP shows how far a group is"
    ),
    "getAcl": Absent(f"{_NO_ACCESS}, so there is no rule to show", _NETWORK),
    "getBrokerEpoch": Absent(_NO_CONTROLLER, "brokerStatus -b ADDRESS shows where its log begins and ends"),
    "getColdDataFlowCtrInfo": Absent(
        _NO_COLD_DATA, "consumerProgress -g GROUP shows groups that are far behind"
    ),
    "getControllerConfig": Absent(_NO_CONTROLLER, "getNamesrvConfig shows the nameservers' settings"),
    "getControllerMetaData": Absent(
        _NO_CONTROLLER, "raftStatus shows the leader of nameservers in raft mode"
    ),
    "getSyncStateSet": Absent(_NO_CONTROLLER, "clusterList shows all brokers"),
    "getUser": Absent(f"{_NO_ACCESS}, so there is no user to show", _NETWORK),
    "haStatus": Absent("brokers here have no slaves, so nothing is replicated", "brokerStatus -b ADDRESS"),
    "listAcl": Absent(f"{_NO_ACCESS}, so there are no rules to list", _NETWORK),
    "listUser": Absent(f"{_NO_ACCESS}, so there are no users to list", _NETWORK),
    "remappingStaticTopic": Absent(_NO_STATIC, "updateTopic changes a topic's queues at each broker"),
    "removeBroker": Absent(
        "there are no broker containers", "stop the broker: mqshutdown broker, or SIGTERM"
    ),
    "removeColdDataFlowCtrGroupConfig": Absent(_NO_COLD_DATA, _THEIRS),
    "resetMasterFlushOffset": Absent(
        "brokers here have no slaves, so no offset of a master's disk is kept", _THEIRS
    ),
    "rocksDBConfigToJson": Absent(
        _NO_ROCKSDB, "read the store's config folder, which holds JSON, or getConsumerConfig -g GROUP -o json"
    ),
    "setCommitLogReadAheadMode": Absent(
        "brokers here give the system no advice on reading ahead", "leave it out"
    ),
    "setConsumeMode": Absent("consumption by POP is not served, so there is one mode", "leave it out"),
    "updateAcl": Absent(f"{_NO_ACCESS}, so a rule would protect nothing", _NETWORK),
    "updateColdDataFlowCtrGroupConfig": Absent(_NO_COLD_DATA, _THEIRS),
    "updateControllerConfig": Absent(
        _NO_CONTROLLER, "updateNamesrvConfig -k KEY -v VALUE changes nameservers"
    ),
    "updateStaticTopic": Absent(_NO_STATIC, "updateTopic -t TOPIC -c CLUSTER makes a topic at each broker"),
    "updateSubGroupList": Absent(
        "it reads many groups from a file", "updateSubGroup -g GROUP for each of them"
    ),
    "updateTopicList": Absent("it reads many topics from a file", "updateTopic -t TOPIC for each of them"),
    "updateUser": Absent(f"{_NO_ACCESS}, so a user would protect nothing", _NETWORK),
}
#: Other names that RocketMQ's tool finds them by.
ALIASES: Final[Mapping[str, str]] = {
    "deleteAccessConfig": "deleteAclConfig",
    "getAccessConfigSubCommand": "getAclConfig",
}
_BY_NAME: Final = {name.lower(): name for name in ABSENT} | {
    alias.lower(): name for alias, name in ALIASES.items()
}


def absent_line(name: str) -> str | None:
    """Return why a subcommand is not offered, no matter the case of its name; None if RocketMQ has none."""
    known = _BY_NAME.get(name.lower())
    return None if known is None else ABSENT[known].line(known)
