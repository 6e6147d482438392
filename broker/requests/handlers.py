"""Request codes and their handlers. The broker does not support other codes.

This module accesses files only through the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from routekeeper.broker.errors import Refusal
from routekeeper.broker.requests import (
    admin,
    client_requests,
    forwarding,
    group_requests,
    inspection,
    lists,
    pulling,
    queries,
    sending,
)
from routekeeper.broker.requests.forwarding import AskAll, Forward
from routekeeper.broker.requests.pulling import Park
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.frame import FRAME_SIZE_MAX

#: Results of a handler:
#: - an answer;
#: - an answer that waits for the disk or the nameservers;
#: - a request that the broker sends to one client, or to several clients;
#: - an answer that is made in steps;
#: - a pull request that waits for new messages.
Outcome = RemotingCommand | Later | Forward | AskAll | Stepwise | Park
Serve = Callable[[BrokerState, Call], Outcome]

LITE_PULL_MESSAGE: Final = 361

HANDLERS: Final[Mapping[int, Serve]] = MappingProxyType(
    {
        RequestCode.SEND_MESSAGE: sending.send,
        RequestCode.SEND_MESSAGE_V2: sending.send,
        RequestCode.SEND_BATCH_MESSAGE: sending.send,
        RequestCode.CONSUMER_SEND_MSG_BACK: sending.send_back,
        RequestCode.PULL_MESSAGE: pulling.pull_message,
        LITE_PULL_MESSAGE: pulling.pull_message,
        RequestCode.QUERY_CONSUMER_OFFSET: pulling.query_consumer_offset,
        RequestCode.UPDATE_CONSUMER_OFFSET: pulling.update_consumer_offset,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: pulling.search_offset,
        RequestCode.GET_MAX_OFFSET: pulling.max_offset,
        RequestCode.GET_MIN_OFFSET: pulling.min_offset,
        RequestCode.GET_EARLIEST_MSG_STORETIME: pulling.earliest_store_time,
        RequestCode.GET_ALL_CONSUMER_OFFSET: pulling.all_consumer_offsets,
        RequestCode.GET_ALL_DELAY_OFFSET: pulling.all_delay_offsets,
        RequestCode.HEART_BEAT: client_requests.heartbeat,
        RequestCode.UNREGISTER_CLIENT: client_requests.unregister_client,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: client_requests.consumer_list,
        RequestCode.LOCK_BATCH_MQ: client_requests.lock_queues,
        RequestCode.UNLOCK_BATCH_MQ: client_requests.unlock_queues,
        RequestCode.CHECK_CLIENT_CONFIG: client_requests.check_client_config,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: client_requests.consumer_connections,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: client_requests.producer_connections,
        RequestCode.GET_CONSUMER_RUNNING_INFO: forwarding.running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: forwarding.consume_directly,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: client_requests.update_group,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: lists.create_groups,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: client_requests.all_groups,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: client_requests.delete_group,
        RequestCode.UPDATE_AND_CREATE_TOPIC: admin.create_topic,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: lists.create_topics,
        RequestCode.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
        RequestCode.GET_ALL_TOPIC_CONFIG: admin.all_topics,
        RequestCode.GET_TOPIC_CONFIG: admin.topic_config,
        RequestCode.GET_TOPIC_STATS_INFO: admin.topic_stats,
        RequestCode.GET_CONSUME_STATS: admin.consume_stats,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.topic_consumers,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: group_requests.reset_offset,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: group_requests.consumer_status,
        RequestCode.QUERY_CONSUME_TIME_SPAN: group_requests.consume_time_span,
        RequestCode.QUERY_CORRECTION_OFFSET: group_requests.correction_offset,
        RequestCode.CLONE_GROUP_OFFSET: group_requests.clone_offset,
        RequestCode.GET_BROKER_CONSUME_STATS: group_requests.broker_consume_stats,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: group_requests.topics_of_consumer,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: group_requests.subscription_of_consumer,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: group_requests.group_config,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: inspection.clean_up,
        RequestCode.DELETE_EXPIRED_COMMITLOG: inspection.clean_up,
        RequestCode.CLEAN_UNUSED_TOPIC: inspection.clean_unused_topics,
        RequestCode.VIEW_BROKER_STATS_DATA: inspection.broker_stats,
        RequestCode.QUERY_CONSUME_QUEUE: inspection.query_consume_queue,
        RequestCode.GET_ALL_PRODUCER_INFO: inspection.all_producers,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: admin.system_topics,
        RequestCode.QUERY_MESSAGE: queries.query_message,
        RequestCode.VIEW_MESSAGE_BY_ID: admin.view_message,
        RequestCode.GET_BROKER_CONFIG: admin.broker_config,
        RequestCode.UPDATE_BROKER_CONFIG: admin.update_config,
        RequestCode.GET_BROKER_RUNTIME_INFO: admin.runtime_info,
        RequestCode.GET_BROKER_HA_STATUS: admin.ha_status,
    }
)


#: Largest body of an answer in bytes. It leaves 64 KiB of a frame for the header.
_BODY_MAX: Final = FRAME_SIZE_MAX - 64 * 1024
#: Requests whose answers may come later: answers that wait for the disk, the nameservers or a client, and
#: answers that are made in steps. The broker serves other requests between two steps.
MAY_WAIT: Final = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
    }
)


#: Requests that store messages.
SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)


#: The group of requests under which ``/metrics`` counts the time of a request, by request code.
GROUPS: Final[Mapping[int, str]] = {
    **dict.fromkeys(HANDLERS, "admin"),
    **dict.fromkeys(SENDS, "send"),
    RequestCode.PULL_MESSAGE: "pull",
    LITE_PULL_MESSAGE: "pull",
    **dict.fromkeys(
        (
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.GET_MIN_OFFSET,
            RequestCode.HEART_BEAT,
            RequestCode.UNREGISTER_CLIENT,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.LOCK_BATCH_MQ,
            RequestCode.UNLOCK_BATCH_MQ,
            RequestCode.CHECK_CLIENT_CONFIG,
        ),
        "client",
    ),
}


def serve(state: BrokerState, call: Call) -> Outcome:
    """Serve a request whose code is in :data:`HANDLERS`. Turn a handler's :class:`Refusal` into the answer.

    Raises:
        RemotingError: If the request's arguments or body cannot be read.
    """
    try:
        outcome = HANDLERS[call.request.code](state, call)
    except Refusal as refusal:
        if call.request.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            state.stats.refused[refusal.reason] += 1
        return call.request.reply(refusal.code, remark=refusal.remark)
    if isinstance(outcome, RemotingCommand) and len(outcome.body) > _BODY_MAX:
        remark = f"the answer has {len(outcome.body)} bytes, at most {_BODY_MAX} fit a frame"
        return call.request.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
    return outcome
