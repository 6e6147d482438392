"""Requests about clients and groups: 34, 35, 38, 41, 42, 46, 200, 201, 203, 204, 207.

This module does no I/O and reads no clock.

Source: ClientManageProcessor, ConsumerManageProcessor and AdminBrokerProcessor, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routekeeper.broker.errors import Refusal
from routekeeper.broker.requests.audited import NAMED_MAX, group_text
from routekeeper.broker.requests.pulling import codes_of_subscription
from routekeeper.broker.store.steps import no_work
from routekeeper.broker.tables.group_configs import group_fault
from routekeeper.broker.tables.groups import Client
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise, Work
from routekeeper.broker.tables.topics import name_fault, retry_topic
from routekeeper.remoting.addresses import charged_host
from routekeeper.remoting.bodies import (
    ConsumerIdList,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    ProducerConnection,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from routekeeper.remoting.bounds import NAME_MAX
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import (
    ConsumerGroupFields,
    DeleteGroupFields,
    ProducerGroupFields,
    UnregisterClientFields,
)
from routekeeper.remoting.lenient import as_object, loads
from routekeeper.remoting.names import GROUP_LENGTH_MAX, GROUP_TOPIC_LENGTH_MAX

_UNIT_SUB: Final = 2


def heartbeat(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 34: register the client, and create its groups and their retry topics.

    Raises:
        Refusal: If a consumer group has an illegal name, or if the memory for all clients would exceed its
            bound.
    """
    data = HeartbeatData.decode(call.request.body)
    for consumer in data.consumers:
        fault = name_fault(consumer.group_name, length_max=GROUP_LENGTH_MAX)
        if fault is not None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"group {consumer.group_name!r}: {fault}")
    client = Client(
        connection=call.connection,
        client_id=data.client_id,
        client_addr=str(call.peer),
        language=call.request.language,
        version=call.request.version,
        host=charged_host(call.peer.ip),
    )
    state.require_room_for_client(client, data)
    for consumer in data.consumers:
        topic = retry_topic(consumer.group_name)
        try:
            group_config = state.group_config(consumer.group_name, now_ms=call.now_ms)
            state.require_room_for_topics(topic)
        except Refusal:  # The heartbeat succeeds nevertheless. The reason for the refusal is logged.
            continue
        if group_config is not None and name_fault(topic, length_max=GROUP_TOPIC_LENGTH_MAX) is None:
            state.ensure_group_topic(
                topic,
                queue_nums=group_config.retry_queue_nums,
                now_ms=call.now_ms,
                sys_flag=_UNIT_SUB if consumer.unit_mode else 0,
            )
    notify_changed(state, state.clients.heartbeat(client, data, now=call.now))
    return call.request.reply()


def notify_changed(state: BrokerState, groups: tuple[str, ...]) -> None:
    """Tell members of changed groups to rebalance.

    Do nothing if a setting of the broker, or of the group, turns these notices off.
    """
    if not state.config.notify_consumer_ids_changed_enable:
        return
    for group in groups:
        config = state.groups.get(group)
        if config is None or config.notify_consumer_ids_changed_enable:
            state.effects.notify.append(group)


def unregister_client(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 35, UNREGISTER_CLIENT."""
    fields = UnregisterClientFields.parse(call.request.ext_fields)
    changed = state.clients.unregister(
        call.connection, producer_group=fields.producer_group, consumer_group=fields.consumer_group
    )
    notify_changed(state, changed)
    return call.request.reply()


def consumer_list(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 38, GET_CONSUMER_LIST_BY_GROUP.

    Raises:
        Refusal: If the group has no member.
    """
    group = ConsumerGroupFields.parse(call.request.ext_fields).consumer_group
    found = state.clients.consumer_group(group)
    if found is None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    return call.request.reply(body=ConsumerIdList(consumer_ids=found.client_ids()).encode())


def lock_queues(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 41, LOCK_BATCH_MQ.

    Raises:
        Refusal: If the request names a queue with a broker name that is too long.
    """
    asked = LockBatch.decode(call.request.body)
    longest = max((len(queue.broker_name) for queue in asked.queues), default=0)
    if longest > NAME_MAX:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER, f"brokerName of {longest} characters: allowed are {NAME_MAX}"
        )
    host = charged_host(call.peer.ip)
    locked = state.locks.lock(asked.consumer_group, asked.client_id, asked.queues, now=call.now, host=host)
    return call.request.reply(body=LockBatchResponse(locked=locked).encode())


def unlock_queues(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 42, UNLOCK_BATCH_MQ."""
    asked = LockBatch.decode(call.request.body)
    state.locks.unlock(asked.consumer_group, asked.client_id, asked.queues)
    return call.request.reply()


def check_client_config(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 46: check that this broker can filter by a subscription.

    Raises:
        Refusal: If this broker cannot filter by the subscription.
    """
    if call.request.body:
        subscription = as_object(loads(call.request.body), "client config").get("subscriptionData")
        if subscription is not None:
            codes_of_subscription(SubscriptionData.from_json(subscription))
    return call.request.reply()


def consumer_connections(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 203, GET_CONSUMER_CONNECTION_LIST.

    Raises:
        Refusal: If the group has no member.
    """
    group = ConsumerGroupFields.parse(call.request.ext_fields).consumer_group
    found = state.clients.consumer_group(group)
    if found is None:
        raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
    return call.request.reply(body=found.describe().encode())


def producer_connections(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 204, GET_PRODUCER_CONNECTION_LIST.

    Raises:
        Refusal: If the group has no member.
    """
    group = ProducerGroupFields.parse(call.request.ext_fields).producer_group
    found = state.clients.producers(group)
    if not found:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
    body = ProducerConnection(connections=tuple(client.to_connection() for client in found)).encode()
    return call.request.reply(body=body)


def update_group(state: BrokerState, call: Call) -> RemotingCommand | Later:
    """Serve request 200: create or change a group. The answer waits until the group is on disk.

    Raises:
        Refusal: If the group has an illegal name or a number outside its range, or if there would be too
            many groups.
    """
    config = SubscriptionGroupConfig.decode(call.request.body)
    note_groups(state, state.effects.about, [config])
    checked_group(config)
    state.require_room_for_groups(config.group_name)
    if state.groups.put(config, now_ms=call.now_ms):
        state.effects.save_groups = True
    return Later(reply=call.request.reply(), groups_saved=True)


def all_groups(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 201, GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return call.request.reply(body=state.groups.to_json())


def delete_group(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 207: delete a group, and also its offsets if the request asks for that.

    The answer waits until the group, and the offsets if requested, are deleted on disk, too.
    """
    fields = DeleteGroupFields.parse(call.request.ext_fields)
    with_offsets = bool(fields.remove_offset or fields.clean_offset)
    about = state.effects.about
    about |= {"group": fields.group_name, "offsets": "removed" if with_offsets else "kept"}
    if (old := state.groups.get(fields.group_name)) is not None:
        about["old"] = group_text(old)
    return Stepwise(_delete(state, call, fields.group_name, with_offsets=with_offsets), asked=call.request)


def _delete(state: BrokerState, call: Call, group: str, *, with_offsets: bool) -> Work:
    if state.groups.delete(group, now_ms=call.now_ms):
        state.effects.save_groups = True
    if with_offsets:
        for _ in state.offsets.drop_group(group):
            yield no_work
    return Later(reply=call.request.reply(), groups_saved=True, offsets_saved=with_offsets)


def checked_group(config: SubscriptionGroupConfig) -> None:
    """Check a group's name and numbers.

    Raises:
        Refusal: If the name or a number is not allowed.
    """
    fault = name_fault(config.group_name, length_max=GROUP_LENGTH_MAX) or group_fault(config)
    if fault is not None:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"group {config.group_name!r}: {fault}")


def note_groups(
    state: BrokerState, about: dict[str, str], configs: Sequence[SubscriptionGroupConfig]
) -> None:
    """Add the old and the new configuration of the first NAMED_MAX changed groups to the audit line."""
    some = configs[:NAMED_MAX]
    if len(configs) != 1:
        about["count"] = str(len(configs))
    about["group"] = " ".join(config.group_name for config in some)
    olds = [state.groups.get(config.group_name) for config in some]
    if any(olds):
        about["old"] = "; ".join("none" if old is None else group_text(old) for old in olds)
    about["new"] = "; ".join(map(group_text, some))
