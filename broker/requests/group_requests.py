"""Operators' requests about groups: 222, 223, 303, 308, 314, 317, 343, 345, 352.

A request about all queues of a topic is served in steps, so that other requests are served between the steps.
This module accesses files only through the store.

Source: AdminBrokerProcessor and Broker2Client, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final

import orjson

from routekeeper.broker.errors import Refusal
from routekeeper.broker.requests.audited import NAMED_MAX, offsets_text
from routekeeper.broker.requests.forwarding import AskAll
from routekeeper.broker.store.mending import Mending
from routekeeper.broker.store.steps import no_work
from routekeeper.broker.tables.groups import Client
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise, Work
from routekeeper.broker.tables.topics import name_fault
from routekeeper.remoting.admin_fields import (
    BrokerConsumeStatsFields,
    CloneGroupFields,
    ConsumerStatusFields,
    CorrectionOffsetFields,
    GroupFields,
    ResetGroupFields,
    TopicGroupFields,
)
from routekeeper.remoting.bodies import (
    ConsumeOffset,
    ConsumeStats,
    MessageQueue,
    QueueOffsets,
    TopicList,
    queue_keyed,
)
from routekeeper.remoting.codes import LanguageCode, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.fields import ResetOffsetFields
from routekeeper.remoting.inspection import ConsumerStatus
from routekeeper.remoting.lenient import STRANGERS_ANSWER
from routekeeper.remoting.names import GROUP_LENGTH_MAX

#: First client version that understands requests 220 and 221. Source: MQVersion.V3_0_7_SNAPSHOT.
_VERSION_MIN: Final = 28
#: Number of queues that one step of a long request reads.
TURN: Final = 64
#: Bounds of one step of request 222, which sends notices to members: the number of notices, and their bytes.
#: A step ends with the notice that reaches the bound of bytes.
NOTICES_MAX: Final = 256
NOTICES_BYTES: Final = 1 << 20
#: Number of offsets that one step of request 308 compares.
_COMPARED: Final = 2000
#: Number of offsets that one step of request 314 copies. A topic with more queues has a step of its own.
CLONED: Final = 2000
#: Largest number of queues in one answer, over all groups. A larger answer would not fit in a frame.
QUEUES_MAX: Final = 50_000
_INT64_MAX: Final = 2**63 - 1
#: Consume type of pull consumers. Source: ConsumeType.CONSUME_ACTIVELY.
_ACTIVELY: Final = "CONSUME_ACTIVELY"


def reset_offset(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 222: reset a group's offsets.

    Push consumers set the new offsets when they receive request 220. The broker sets the offsets in three
    cases:

    - The group has no members.
    - No member subscribes to the topic. Request 220 then changes nothing at the members.
    - The members are pull consumers. Those of Java ignore request 220.

    Raises:
        Refusal: If the topic or the group does not exist, or if a member is too old for request 220.
    """
    fields = ResetGroupFields.parse(call.request.ext_fields)
    about = state.effects.about
    about |= {"topic": fields.topic, "group": fields.group}
    if fields.offset >= 0:
        about["offset"] = str(fields.offset)
    else:
        about["timestamp"] = str(fields.timestamp)
    if fields.queue_id >= 0:
        about["queue"] = str(fields.queue_id)
    about["force"] = str(fields.is_force).lower()
    config = state.require_topic(fields.topic)
    if state.groups.get(fields.group) is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{fields.group}] does not exist"
        )
    online = state.clients.consumer_group(fields.group)
    for client in () if online is None else online.members.values():
        if client.version < _VERSION_MIN:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={client.version}",
            )
    if fields.queue_id >= config.read_queue_nums or fields.queue_id < -1:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"queueId={fields.queue_id} is outside 0..{config.read_queue_nums - 1}, or -1 for all",
        )
    work = _reset(state, call, fields, config.read_queue_nums, about)
    return Stepwise(work, asked=call.request, queues=config.read_queue_nums)


def _reset(
    state: BrokerState, call: Call, fields: ResetGroupFields, queue_nums: int, about: dict[str, str]
) -> Work:
    chosen = range(queue_nums) if fields.queue_id < 0 else range(fields.queue_id, fields.queue_id + 1)
    offsets: dict[MessageQueue, int] = {}
    by_queue: dict[int, int] = {}
    # A search by time reads from files about 20 times for each queue. So it takes one step for each queue.
    by_time = fields.offset < 0 <= fields.timestamp
    for queue_id in chosen:
        if by_time or queue_id % TURN == TURN - 1:
            yield no_work
        low, high = state.store.bounds(fields.topic, queue_id)
        if fields.offset >= 0:
            wanted = min(max(fields.offset, low), high)
        elif fields.timestamp < 0:
            wanted = high
        else:
            while True:
                try:
                    wanted = _at_time(state, fields.topic, queue_id, fields.timestamp)
                    break
                except Mending:
                    yield no_work
        consumed = state.offsets.get(fields.topic, fields.group, queue_id)
        if not fields.is_force and consumed is not None:
            wanted = min(wanted, consumed)
        offsets[state.queue(fields.topic, queue_id)] = by_queue[queue_id] = wanted
    body: bytes = yield QueueOffsets(offsets=offsets).encode
    reply = call.request.reply(body=body)
    online = state.clients.consumer_group(fields.group)
    before = state.offsets.queues(fields.topic, fields.group)
    about["members"] = str(0 if online is None else len(online.members))
    old = ((queue_id, before[queue_id]) for queue_id in by_queue if queue_id in before)
    _note_offsets(about, dict(islice(old, NAMED_MAX)), by_queue)
    clients = () if online is None else tuple(online.members.values())
    # Members may subscribe to different topics, and the broker knows only the topics of the last heartbeat.
    # So also tell all members if the topic is not among these.
    is_stored = online is None or online.consume_type == _ACTIVELY or fields.topic not in online.subscriptions
    if is_stored:
        # Store all offsets in one step, which takes some ms. Between two steps a member could join, and
        # commit offsets that this request would then overwrite.
        if state.groups.get(fields.group) is not None and fields.topic in state.topics:
            try:
                state.commit_offsets(fields.topic, fields.group, by_queue)
            except Refusal as refusal:
                return call.request.reply(refusal.code, remark=refusal.remark)
    else:
        about["offsets"] = f"told {len(clients)} members"
    yield from _tell(state, fields, clients, offsets, body)
    return Later(reply=reply, offsets_saved=True) if is_stored else reply


def _tell(
    state: BrokerState,
    fields: ResetGroupFields,
    clients: tuple[Client, ...],
    offsets: dict[MessageQueue, int],
    body: bytes,
) -> Generator[Callable[[], Any], Any, None]:
    """Send members of a group their new offsets (request 220), in steps.

    Args:
        body: The encoded offsets.
    """
    ext = ResetOffsetFields(
        topic=fields.topic, group=fields.group, timestamp=fields.timestamp, is_force=fields.is_force
    ).to_ext()
    for_c = b""
    count = size = 0
    for client in clients:
        if count >= NOTICES_MAX or size >= NOTICES_BYTES:
            yield no_work
            count = size = 0
        if client.language is LanguageCode.CPP and not for_c:
            for_c = yield partial(_for_c, offsets)
        told = for_c if client.language is LanguageCode.CPP else body
        request = RemotingCommand.request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body=told, oneway=True
        )
        state.effects.tell.append((client.connection, request))
        count += 1
        size += len(told)


def _at_time(state: BrokerState, topic: str, queue_id: int, timestamp: int) -> int:
    """Return the offset of the first message that was stored at or after an instant (Unix ms).

    If there is no such message, return the offset after the queue's last message.

    Raises:
        Mending: If an entry of the queue is damaged, and the search for its message has not finished.
    """
    wanted = state.store.offset_at_time(topic, queue_id, timestamp)
    low, high = state.store.bounds(topic, queue_id)
    stored = state.store.store_timestamp(topic, queue_id, high - 1) if high > low else None
    return high if stored is not None and stored < timestamp else wanted


def _note_offsets(about: dict[str, str], before: Mapping[int, int], after: Mapping[int, int]) -> None:
    """Add a group's offsets before and after a change to the audit line."""
    if before:
        about["old"] = offsets_text(before)
    about["new"] = offsets_text(after)


def _for_c(offsets: dict[MessageQueue, int]) -> bytes:
    """Return offsets as a JSON list. The C++ client cannot read RocketMQ's JSON with objects as keys."""
    table = [queue.to_json() | {"offset": offset} for queue, offset in offsets.items()]
    return orjson.dumps({"offsetTable": table})


def consumer_status(state: BrokerState, call: Call) -> AskAll:
    """Serve request 223: ask each member for the offsets of its queues (request 221), and list all answers.

    Raises:
        Refusal: If the group has no member, or if a member is too old for request 221.
    """
    fields = ConsumerStatusFields.parse(call.request.ext_fields)
    online = state.clients.consumer_group(fields.group)
    members = [] if online is None else list(online.members.values())
    if fields.client_id:
        members = [client for client in members if client.client_id == fields.client_id]
    if not members:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{fields.group}]"
        )
    for client in members:
        if client.version < _VERSION_MIN:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={client.version}",
            )
    ext = {"topic": fields.topic, "group": fields.group}
    request = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext)
    return AskAll(
        clients={client.client_id: client.connection for client in members},
        request=request,
        asked=call.request,
        combine=_status_of_clients,
    )


def _status_of_clients(asked: RemotingCommand, answers: Mapping[str, RemotingCommand]) -> RemotingCommand:
    """Return one answer that contains the offsets of each client, by client id.

    Leave out clients whose answers cannot be read, as RocketMQ does.

    Raises:
        RemoteProtocolError: If clients answered, but none of their answers can be read. An answer without any
            client would look as if no member had a queue.
    """
    parts = []
    unreadable: RemoteProtocolError | None = None
    for client_id, answer in answers.items():
        if answer.code != ResponseCode.SUCCESS:
            continue
        try:
            table = ConsumerStatus.decode(answer.body, STRANGERS_ANSWER).offsets
        except RemoteProtocolError as error:
            unreadable = error
        else:
            parts.append(orjson.dumps(client_id) + b":" + queue_keyed(table))
    if unreadable is not None and not parts:
        raise unreadable
    body = b'{"consumerTable":{' + b",".join(parts) + b'},"messageQueueTable":{}}'
    return asked.reply(body=body)


def consume_time_span(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 303: return the store times of each queue's first, last, and last consumed message.

    Raises:
        Refusal: If the topic is unknown.
    """
    fields = TopicGroupFields.parse(call.request.ext_fields)
    config = state.require_topic(fields.topic)
    work = _time_span(state, call, fields, config.write_queue_nums)
    return Stepwise(work, asked=call.request, queues=config.write_queue_nums)


def _time_span(state: BrokerState, call: Call, fields: TopicGroupFields, queue_nums: int) -> Work:
    store, topic, spans = state.store, fields.topic, []
    for begin in range(0, queue_nums, TURN):
        some = range(begin, min(begin + TURN, queue_nums))
        places: list[tuple[int, int]] = []
        consumed_of: list[int] = []
        waiting: list[bool] = []
        for queue_id in some:
            low, high = store.bounds(topic, queue_id)
            consumed = state.offsets.get(topic, fields.group, queue_id) or 0
            places += [(queue_id, offset) for offset in (low, consumed - 1, consumed, high - 1)]
            consumed_of.append(consumed)
            waiting.append(consumed < high)
        times: list[int | None] = yield store.stored_times(topic, places)
        known = iter([-1 if stored is None else stored for stored in times])
        for queue_id, consumed, waits, (first, before, next_, last) in zip(
            some, consumed_of, waiting, zip(known, known, known, known, strict=True), strict=True
        ):
            span: dict[str, Any] = {
                "messageQueue": state.queue(topic, queue_id).to_json(),
                "delayTime": call.now_ms - next_ if waits and next_ >= 0 else 0,
            }
            for name, wall_ms in (
                ("minTimeStamp", first),
                ("maxTimeStamp", last),
                ("consumeTimeStamp", before if consumed > 0 else first),
            ):
                span |= {name: wall_ms, f"{name}Str": _time_text(wall_ms)}
            spans.append(span)
    body: bytes = yield partial(orjson.dumps, {"consumeTimeSpanSet": spans})
    return call.request.reply(body=body)


def _time_text(wall_ms: int) -> str:
    """Return an instant (Unix ms) in local time, in the form ``2026-11-23#20:33:10:823``.

    Source: UtilAll.timeMillisToHumanString.
    """
    seconds, ms = divmod(wall_ms, 1000)
    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d#%H:%M:%S}:{ms:03d}"
    except (ValueError, OverflowError, OSError):  # datetime cannot represent this instant
        return str(wall_ms)


def correction_offset(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 308: return the corrected offset of each queue, computed as in RocketMQ.

    Source: AdminBrokerProcessor.queryCorrectionOffset, ConsumerOffsetManager.queryMinOffsetInAllGroup.
    """
    fields = CorrectionOffsetFields.parse(call.request.ext_fields)
    return Stepwise(_corrected(state, call, fields), asked=call.request)


def _corrected(state: BrokerState, call: Call, fields: CorrectionOffsetFields) -> Work:
    left_out = {name.strip() for name in (fields.filter_groups or "").split(",")}
    least: dict[int, int] = {}
    seen = 0
    for group in state.offsets.groups_of(fields.topic):
        if group in left_out:
            continue
        queues = state.offsets.queues(fields.topic, group)
        seen += len(queues)
        if seen >= _COMPARED:
            seen = 0
            yield no_work
        for queue_id, offset in queues.items():
            least[queue_id] = min(offset, least.get(queue_id, offset))
    compared = dict(state.offsets.queues(fields.topic, fields.compare_group))
    body: bytes = yield partial(_corrections, least, compared)
    return call.request.reply(body=body)


def _corrections(least: Mapping[int, int], compared: Mapping[int, int]) -> bytes:
    """Return the body of the answer to request 308.

    Args:
        least: The least offset of all groups, by queue.
        compared: Offsets of the requested group, by queue.
    """
    corrected = dict(least) | {
        queue_id: _INT64_MAX if least[queue_id] > offset else offset
        for queue_id, offset in compared.items()
        if queue_id in least
    }
    table = b",".join(b"%d:%d" % item for item in sorted(corrected.items()))
    return b'{"correctionOffsets":{' + table + b"}}"


def clone_offset(state: BrokerState, call: Call) -> RemotingCommand | Stepwise:
    """Serve request 314: copy a group's offsets to another group. The answer waits until the copy is on disk.

    A copy from a group to itself changes nothing, and is answered at once.

    Raises:
        Refusal: If the new group has an illegal name, or if the topic does not exist.
    """
    fields = CloneGroupFields.parse(call.request.ext_fields)
    about = state.effects.about
    if fields.topic:
        about["topic"] = fields.topic
    about |= {"source": fields.src_group, "group": fields.dest_group}
    fault = name_fault(fields.dest_group, length_max=GROUP_LENGTH_MAX)
    if fault is not None:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"group {fields.dest_group!r}: {fault}")
    if fields.topic:
        state.require_topic(fields.topic)
    if fields.dest_group == fields.src_group:
        return call.request.reply()
    if fields.topic:
        _note_offsets(
            about,
            state.offsets.queues(fields.topic, fields.dest_group),
            state.offsets.queues(fields.topic, fields.src_group),
        )
    topics = (fields.topic,) if fields.topic else state.offsets.topics_of(fields.src_group)
    if not fields.topic:
        about |= {"count": str(len(topics)), "topics": " ".join(topics[:NAMED_MAX])}
    return Stepwise(_clone(state, call, fields, topics), asked=call.request)


def _clone(state: BrokerState, call: Call, fields: CloneGroupFields, topics: tuple[str, ...]) -> Work:
    # Offsets are copied topic by topic. If the broker reaches its bound of stored offsets, the copies made so
    # far stay. When the same request is repeated later, it copies the remaining topics.
    # Each topic's offsets are read and copied in one step. So the copy has every commit that the source group
    # made before that step. It overwrites no commit that the new group makes after that step.
    cost = 0
    for topic in topics:
        offsets = state.offsets.queues(topic, fields.src_group)
        if cost and cost + len(offsets) > CLONED:
            yield no_work
            cost = 0
            offsets = state.offsets.queues(topic, fields.src_group)
        cost += 1 + len(offsets)
        if topic not in state.topics:
            continue
        online = state.clients.consumer_group(fields.src_group)
        if not fields.offline and online is not None and topic not in online.subscriptions:
            continue  # the group has old offsets of this topic, but no longer subscribes to the topic
        try:
            state.commit_offsets(topic, fields.dest_group, offsets)
        except Refusal as refusal:
            return call.request.reply(refusal.code, remark=refusal.remark)
    return Later(reply=call.request.reply(), offsets_saved=True)


def broker_consume_stats(state: BrokerState, call: Call) -> Stepwise:
    """Serve request 317: return the progress of each group in each of its topics."""
    fields = BrokerConsumeStatsFields.parse(call.request.ext_fields)
    work = _all_consume_stats(state, call, is_order=fields.is_order)
    return Stepwise(work, asked=call.request, queues=QUEUES_MAX)


def _all_consume_stats(state: BrokerState, call: Call, *, is_order: bool) -> Work:
    groups: list[bytes] = []
    seen = lag = 0
    for group in [config.group_name for config in state.groups]:
        listed = []
        for topic in _topics_of(state, group):
            config = state.topics.get(topic)
            if config is None or (is_order and not config.order):
                continue
            seen += config.write_queue_nums
            if seen > QUEUES_MAX:
                return call.request.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"the groups have more than {QUEUES_MAX} queues together: ask group by group",
                )
            offsets = yield from consume_offsets(state, group, topic, config.write_queue_nums)
            lag += sum(offset.broker_offset - offset.consumer_offset for offset in offsets.values())
            tps = state.stats.consume_tps(topic, group)
            encoded: bytes = yield ConsumeStats(offsets=offsets, consume_tps=tps).encode
            listed.append(encoded)
        if listed:
            groups.append(b"{" + orjson.dumps(group) + b":[" + b",".join(listed) + b"]}")
        yield no_work
    # totalInflightDiff is 0. Only consumers know which messages they have pulled and not yet consumed.
    body = b'{"brokerAddr":%s,"consumeStatsList":[%s],"totalDiff":%d,"totalInflightDiff":0}' % (
        orjson.dumps(str(state.advertise)),
        b",".join(groups),
        lag,
    )
    return call.request.reply(body=body)


def _topics_of(state: BrokerState, group: str) -> tuple[str, ...]:
    """Return the topics for which a group has offsets.

    If the group has members, leave out topics to which no member subscribes.
    """
    online = state.clients.consumer_group(group)
    return tuple(
        topic for topic in state.offsets.topics_of(group) if online is None or topic in online.subscriptions
    )


def consume_offsets(
    state: BrokerState, group: str, topic: str, queue_nums: int
) -> Generator[Callable[[], Any], Any, dict[MessageQueue, ConsumeOffset]]:
    """Return a group's progress in each queue of a topic. This generator yields a function for each step."""
    found = {}
    for first in range(0, queue_nums, TURN):
        some = range(first, min(first + TURN, queue_nums))
        ends = [state.store.bounds(topic, queue_id)[1] for queue_id in some]
        consumed = [state.offsets.get(topic, group, queue_id) or 0 for queue_id in some]
        places = [(queue_id, offset - 1) for queue_id, offset in zip(some, consumed, strict=True)]
        times: list[int | None] = yield state.store.stored_times(topic, places)
        for queue_id, end, offset, stored in zip(some, ends, consumed, times, strict=True):
            found[state.queue(topic, queue_id)] = ConsumeOffset(
                broker_offset=end,
                consumer_offset=offset,
                pull_offset=offset,  # Only consumers know their pull offset, so use the consumed offset.
                last_timestamp=stored or 0,
            )
    return found


def topics_of_consumer(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 343, QUERY_TOPICS_BY_CONSUMER."""
    group = GroupFields.parse(call.request.ext_fields).group
    topics = TopicList(topics=state.offsets.topics_of(group), broker_addr=str(state.advertise))
    return call.request.reply(body=topics.encode())


def subscription_of_consumer(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 345, QUERY_SUBSCRIPTION_BY_CONSUMER."""
    fields = TopicGroupFields.parse(call.request.ext_fields)
    online = state.clients.consumer_group(fields.group)
    found = None if online is None else online.subscriptions.get(fields.topic)
    body: dict[str, Any] = {"group": fields.group, "topic": fields.topic}
    if found is not None:
        body["subscriptionData"] = found.to_json()
    return call.request.reply(body=orjson.dumps(body))


def group_config(state: BrokerState, call: Call) -> RemotingCommand:
    """Serve request 352, GET_SUBSCRIPTIONGROUP_CONFIG.

    Raises:
        Refusal: If there is no such group.
    """
    group = GroupFields.parse(call.request.ext_fields).group
    found = state.groups.get(group)
    if found is None:
        raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group}")
    return call.request.reply(body=found.encode())
