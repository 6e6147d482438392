"""Operators' requests about a broker's internal state: 306, 315, 316, 321, 328, 329.

This module accesses files only through the store.

Source: AdminBrokerProcessor, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from routekeeper.broker.errors import Refusal
from routekeeper.broker.requests.pulling import codes_of_subscription
from routekeeper.broker.store.steps import no_work
from routekeeper.broker.tables.groups import Client
from routekeeper.broker.tables.state import BrokerState, Call, Stepwise, Work
from routekeeper.broker.tables.stats import Growth
from routekeeper.remoting.admin_fields import BrokerStatsFields, QueryConsumeQueueFields
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand

#: Largest number of consume queue entries in one answer.
ENTRIES_MAX: Final = 1024
#: Largest number of producers in one answer. A larger answer would not fit in a frame.
PRODUCERS_MAX: Final = 50_000
#: Number of producers that one step of request 328 adds to the answer.
_DESCRIBED: Final = 1000


def broker_stats(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 315, VIEW_BROKER_STATS_DATA.

    Raises:
        Refusal: If there is no statistic with this name and key.
    """
    fields = BrokerStatsFields.parse(call.request.ext_fields)
    name, key = fields.stats_name, fields.stats_key
    item = state.stats.items.get((name, key))
    if item is None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    body = {
        member: _growth(item.growth(span))
        for span, member in enumerate(("statsMinute", "statsHour", "statsDay"))
    }
    return call.request.reply(body=orjson.dumps(body))


def _growth(growth: Growth) -> dict[str, Any]:
    return {"avgpt": float(growth.per_time), "sum": growth.sum, "tps": float(growth.per_second)}


def query_consume_queue(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 321: list entries of a queue, and show which entries a group's subscription matches.

    Raises:
        Refusal: If the queue does not exist, or the number of entries is out of range.
    """
    fields = QueryConsumeQueueFields.parse(call.request.ext_fields)
    topic, queue_id = fields.topic, fields.queue_id
    if state.store.bounds(topic, queue_id)[1] == 0:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
    if not 1 <= fields.count <= ENTRIES_MAX:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"count={fields.count} is outside 1..{ENTRIES_MAX}")
    low, high = state.store.bounds(topic, queue_id)
    body: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low}
    subscription, codes = None, None
    if fields.consumer_group:
        online = state.clients.consumer_group(fields.consumer_group)
        subscription = None if online is None else online.subscriptions.get(topic)
        if subscription is None:
            body["filterData"] = f"{fields.consumer_group}@{topic} is not online!"
        else:
            body["subscriptionData"] = subscription.to_json()
            codes = codes_of_subscription(subscription)
    body["queueData"] = [
        {
            "eval": subscription is not None and (codes is None or entry.tags_code in codes),
            "physicOffset": entry.log_offset,
            "physicSize": entry.size,
            "tagsCode": entry.tags_code,
        }
        for entry in state.store.entries(topic, queue_id, min(max(fields.index, low), high), fields.count)
    ]
    return call.request.reply(body=orjson.dumps(body))


def all_producers(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 328, GET_ALL_PRODUCER_INFO.

    Raises:
        Refusal: If there are too many producers for one answer.
    """
    count = state.clients.producer_count()
    if count > PRODUCERS_MAX:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"{count} producers are above {PRODUCERS_MAX}: ask group by group"
        )
    return Stepwise(_producers(call, state.clients.producer_groups()), asked=call.request)


def _producers(call: Call, groups: Mapping[str, Sequence[tuple[Client, float]]]) -> Work:
    table: dict[str, list[dict[str, Any]]] = {}
    described = 0
    for group, members in groups.items():
        rows = table[group] = []
        for client, seen in members:
            if described == _DESCRIBED:
                yield no_work
                described = 0
            described += 1
            rows.append(
                {
                    "clientId": client.client_id,
                    "language": (client.to_connection().to_json())["language"],
                    "lastUpdateTimestamp": call.now_ms - int((call.now - seen) * 1000),
                    "remoteIP": f"/{client.client_addr}",
                    "version": client.version,
                }
            )
    body: bytes = yield partial(orjson.dumps, {"data": table})
    return call.request.reply(body=body)


def clean_up(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve requests 306 and 329: delete expired files soon, also outside the hours of ``deleteWhen``."""
    state.effects.clean = True
    return call.request.reply()


def clean_unused_topics(_state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 316: do nothing, because this broker deletes a topic's queues together with the topic."""
    return call.request.reply()
