"""Answers of a nameserver, as a pure function of the table, the request and the settings.

:func:`decide` returns an answer, or an action that must come before the answer. The action is a command
for the table, a renewal of a lease, or a change of settings. The function does not depend on the mode or
on connections. :func:`answer_for` turns a command's result into the answer.

The rules come from DefaultRequestProcessor and ClientRequestProcessor of RocketMQ 4.9 and 5.3. A comment
marks each place where this nameserver differs on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgspec
import orjson

from routekeeper.nameserver.commands import Command
from routekeeper.nameserver.registration import Registration, broker_key
from routekeeper.nameserver.routes.entries import Record
from routekeeper.nameserver.routes.kv import KV_ENTRY_BYTES_MAX, KV_NAME_BYTES_MAX, text_size
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import ChangeInvalid, ChangeRefused, check_changes, parse_changes
from routekeeper.nameserver.settings.declared import NamesrvSettings, format_settings
from routekeeper.nameserver.types import Answer, BrokerKey, BrokerName, ClusterName, KvEntry, Request, refusal
from routekeeper.nameserver.verdicts import CountReply, Moved, RegisterReply, Rejected, Verdict
from routekeeper.remoting import fields as ext
from routekeeper.remoting.bodies import BrokerMemberGroup, KVTable, TopicList
from routekeeper.remoting.codes import MASTER_ID, VERSION_5_0_0, RequestCode, ResponseCode
from routekeeper.remoting.errors import FieldError, RemoteProtocolError
from routekeeper.remoting.route import (
    DataVersion,
    TopicRouteData,
    decode_queue_datas,
    dialect_for,
    encode_cluster_info,
    encode_route,
)
from routekeeper.remoting.steps import Steps, finish, in_chunks

from . import commands

FAQ_4: Final = "http://rocketmq.apache.org/docs/faq/"
FAQ_5: Final = "https://rocketmq.apache.org/docs/bestPractice/06FAQ"

NOT_READY: Final = "name server not ready"
"""Remark of the answer to request 105 while ``needWaitForService`` refuses it, or while there is no leader.

Without a leader, ``NO_QUORUM_TAG`` precedes the text.
"""

DONE: Final = Answer()
"""Answer that reports success and has no further content."""

_FLAG_UNIT: Final = 1
_FLAG_UNIT_SUB: Final = 2


# -- decisions ---------------------------------------------------------------------------------------------


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a request that does not change the table: this process only renews the record's lease.

    Attributes:
        record: The broker's record, whose lease is renewed.
        answer: Answer if this process may renew the lease.
        otherwise: Action if this process may not renew the lease: a command to propose, or another answer.
        is_current: True if the request has the same data version as the record.
    """

    record: Record
    answer: Answer
    otherwise: commands.Touch | Answer
    is_current: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """Request 318: apply these settings now, and write the changed settings to a file."""

    after: NamesrvSettings
    changes: Mapping[str, str]


Decision: TypeAlias = Answer | Renewal | SettingsChange | Command


def decide(view: RouteView, request: Request, settings: NamesrvSettings, *, uptime_s: float) -> Decision:
    """Decide a request from the current table.

    Args:
        view: The table. The revisions of items in a command come from this table.
        request: A request with a code in :data:`SERVED`. The caller has already refused all other codes. For
            registrations, use :func:`decide_registration` instead.
        uptime_s: Seconds since this process started to serve.
    """
    if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and must_wait(settings, uptime_s):
        return refusal(NOT_READY)
    try:
        return _HANDLERS[request.code](view, request, settings)
    except FieldError as error:
        # This nameserver differs from RocketMQ here. If a required argument is missing, RocketMQ fails later
        # or stores null. Our answer names the missing argument.
        return refusal(str(error))
    except RemoteProtocolError as error:
        return refusal(f"body of request {request.code} cannot be read: {error}")


def answer_for(command: Command, verdict: Verdict, settings: NamesrvSettings) -> Answer:
    """Build the answer to a request from its command's result.

    The result must not be :class:`Moved`: after this result, the request must be decided again.
    """
    if isinstance(verdict, Rejected):
        return Answer(code=verdict.code, remark=verdict.remark)
    assert not isinstance(verdict, Moved), "a command that moved is decided again, not answered"
    reply = verdict.reply
    if isinstance(reply, RegisterReply):
        return _registered(reply, settings)
    if isinstance(reply, CountReply):
        if isinstance(command, commands.WipeWritePerm):
            return Answer(ext_fields=ext.WipeWritePermResponseFields(wipe_topic_count=reply.count).to_ext())
        return Answer(ext_fields=ext.AddWritePermResponseFields(add_topic_count=reply.count).to_ext())
    return Answer()


def table_limits(settings: NamesrvSettings, host: str) -> commands.TableLimits:
    """Return the bounds of the table that a command must obey when it makes the table grow.

    Args:
        host: Host of the connection, in the form of :func:`routekeeper.remoting.addresses.charged_host`.
    """
    return commands.TableLimits(
        settings.table_topics_max,
        settings.table_pairs_max,
        settings.table_brokers_max,
        settings.table_bytes_max,
        host,
        settings.table_host_percent,
    )


def must_wait(settings: NamesrvSettings, uptime_s: float) -> bool:
    """Return True if the nameserver must refuse request 105 because it has just started.

    RocketMQ 5.1 has the same rule. The setting is ``needWaitForService``.
    """
    return settings.need_wait_for_service and uptime_s < settings.wait_seconds_for_service


# -- brokers -----------------------------------------------------------------------------------------------


def decide_registration(
    view: RouteView,
    decoded: Registration,
    settings: NamesrvSettings,
    *,
    limits: commands.TableLimits | None = None,
) -> Renewal | commands.RegisterBroker:
    """Decide a request 103 in one step; see :func:`deciding_registration`."""
    return finish(deciding_registration(view, decoded, settings, limits=limits))


def deciding_registration(
    view: RouteView,
    decoded: Registration,
    settings: NamesrvSettings,
    *,
    limits: commands.TableLimits | None = None,
) -> Steps[Renewal | commands.RegisterBroker]:
    """Decide a decoded request 103 in steps, between which the event loop may do other work.

    The caller must decide again if the broker's state changed between two steps.

    Args:
        limits: Bounds of the table that the command must obey (see :func:`table_limits`); None for no bounds.
    """
    decoded = yield from view.with_set_perms(decoded)
    broker = decoded.broker
    name = decoded.broker_name
    record = view.record(broker)
    if record is not None and view.is_repeated_by(decoded):
        return renewal_of(view, record, settings, is_current=True)
    command = commands.RegisterBroker(
        cluster_name=broker.cluster_name,
        broker_name=name,
        broker_addr=broker.broker_addr,
        broker_id=decoded.broker_id,
        ha_server_addr=decoded.ha_server_addr,
        data_version=decoded.data_version,
        topics=(),
        incremental=len(decoded.table) == 1,
        filter_servers=decoded.filter_servers,
        mappings=decoded.mappings,
        lease_ms=decoded.lease_ms,
        enable_acting_master=decoded.enable_acting_master,
        zone_name=decoded.zone_name,
        delete_absent=settings.delete_topic_with_broker_registration,
        record_revision=view.base("record", broker),
        name_revision=view.base("name", name),
        limits=limits,
    )
    command = msgspec.structs.replace(command, topics=(yield from decoded.topics()))
    # A broker without a record has no lease to renew. So propose the command even if it changes nothing: the
    # table then checks the items from which the command was computed.
    if record is None or (yield from view.would_change(command)):
        return command
    return renewal_of(view, record, settings, is_current=record.data_version == decoded.data_version)


def renewal_of(
    view: RouteView, record: Record, settings: NamesrvSettings, *, is_current: bool = False
) -> Renewal:
    """Return the renewal for a registration that changes nothing, because it equals the record.

    Args:
        is_current: True if the registration has the record's data version. A late copy of an older
            registration has another version, and may have another broker name or id.
    """
    entry = view.name(record.broker_name)
    assert entry is not None, "a record has its broker name"
    touch = commands.Touch(
        cluster_name=record.broker.cluster_name,
        broker_name=record.broker_name,
        broker_addr=record.broker.broker_addr,
        broker_id=record.broker_id,
        ha_server_addr=record.ha_server_addr,
        data_version=record.data_version,
        complete=record.complete,
        lease_ms=record.lease_ms,
        enable_acting_master=entry.enable_acting_master,
        zone_name=entry.zone_name,
    )
    answer = _registered(view.register_reply(record), settings)
    return Renewal(record=record, answer=answer, otherwise=touch, is_current=is_current)


def _registered(reply: RegisterReply, settings: NamesrvSettings) -> Answer:
    body = b""
    if reply.order_topics is not None and settings.return_order_topic_config_to_broker:
        # Send even an empty table, as RocketMQ does. A broker of 4.9 then resets the order flags of all its
        # topics. Without a body, the broker would not change these flags.
        body = _kv_body({key: entry.value for key, entry in reply.order_topics.items()})
    elif reply.master_addr is None and reply.ha_server_addr is None:
        return DONE
    fields = ext.RegisterBrokerResponseFields(
        ha_server_addr=reply.ha_server_addr, master_addr=reply.master_addr
    )
    return Answer(ext_fields=fields.to_ext(), body=body)


def broker_of_farewell(request: Request) -> BrokerKey:
    """Return the broker that a request 104 (unregister) names.

    Raises:
        FieldError: If a field of the request is invalid.
    """
    fields = _farewell(request)
    return broker_key(fields.cluster_name, fields.broker_addr)


def _farewell(request: Request) -> ext.UnregisterBrokerFields:
    # Ignore brokerId: it is not needed to find the broker. RocketMQ 4.9 fails if it is not a number.
    return ext.UnregisterBrokerFields.parse({**request.ext_fields, "brokerId": "0"})


def _unregister(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    fields = _farewell(request)
    broker, name = broker_key(fields.cluster_name, fields.broker_addr), BrokerName(fields.broker_name)
    return commands.UnregisterBroker(
        cluster_name=broker.cluster_name,
        broker_name=name,
        broker_addr=broker.broker_addr,
        broker_id=fields.broker_id,
        record_revision=view.base("record", broker),
        name_revision=view.base("name", name),
    )


def _query_data_version(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    fields = ext.QueryDataVersionFields.parse(request.ext_fields)
    broker = broker_key(fields.cluster_name, fields.broker_addr)
    sent = DataVersion.decode(request.body)
    record = view.record(broker)

    def says(*, changed: bool, version: bytes = b"") -> Answer:
        fields = ext.QueryDataVersionResponseFields(changed=changed)
        return Answer(ext_fields=fields.to_ext(), body=version)

    if record is None:
        return says(changed=True)
    is_current, version = record.data_version == sent, record.data_version.encode()
    return Renewal(
        record=record,
        answer=says(changed=not (record.complete and is_current), version=version),
        otherwise=says(changed=True, version=version),
        is_current=is_current,
    )


def _heartbeat(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    fields = ext.BrokerHeartbeatFields.parse(request.ext_fields)
    record = view.record(broker_key(fields.cluster_name, fields.broker_addr))
    return DONE if record is None else Renewal(record=record, answer=DONE, otherwise=DONE)


def _member_group(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    fields = ext.GetBrokerMemberGroupFields.parse(request.ext_fields)
    data = view.broker_data(fields.broker_name)
    group = BrokerMemberGroup(
        cluster=fields.cluster_name,
        broker_name=fields.broker_name,
        broker_addrs={} if data is None else data.broker_addrs,
    )
    # RocketMQ 5.x sends this remark with a successful answer, so the remark does not mean an error.
    return Answer(remark="not set any response code", body=group.encode())


# -- routes and topics -------------------------------------------------------------------------------------


def _route(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    fields = ext.GetRouteFields.parse(request.ext_fields)
    route = None if fields.topic is None else route_of(view, fields.topic, settings)
    if route is None:
        return no_route(fields.topic, is_5=request.version >= VERSION_5_0_0)
    return route_answer(route, request, fields)


def route_answer(route: TopicRouteData, request: Request, fields: ext.GetRouteFields) -> Answer:
    """Return the answer to request 105 with this route, in the JSON encoding that the sender reads."""
    if fields.zone_mode and fields.zone_name:
        route = select_zone(route, fields.zone_name)
    dialect = dialect_for(request.version, accept_standard_json_only=fields.accept_standard_json_only)
    return Answer(body=encode_route(route, dialect))


def no_route(topic: str | None, *, is_5: bool) -> Answer:
    """Return the answer to request 105 for a topic without a route, with RocketMQ's FAQ link (5.x or 4.9)."""
    remark = f"No topic route info in name server for the topic: {_shown(topic)}\n"
    faq = FAQ_5 if is_5 else FAQ_4
    return Answer(code=ResponseCode.TOPIC_NOT_EXIST, remark=f"{remark}See {faq} for further details.")


def route_of(view: RouteView, topic: str, settings: NamesrvSettings) -> TopicRouteData | None:
    """Return a topic's route in the form that the settings require, or None if it has no route."""
    return view.route(
        topic, acting_master=settings.support_acting_master, order_conf=settings.order_message_enable
    )


def select_zone(route: TopicRouteData, zone_name: str) -> TopicRouteData:
    """Keep only the brokers of one zone, and broker names without a master. The result may be empty.

    Source: ZoneRouteRPCHook, RocketMQ 5.x. The hook also encodes the route, and always writes keys that are
    numbers without quotes. This function leaves the encoding to the caller, because some clients request
    standard JSON, in which all keys have quotes.
    """
    kept = tuple(
        data
        for data in route.broker_datas
        if MASTER_ID not in data.broker_addrs
        or (data.zone_name is not None and data.zone_name.lower() == zone_name.lower())
    )
    names = {data.broker_name for data in kept}
    addrs = {addr for data in kept for addr in data.broker_addrs.values()}
    return replace(
        route,
        broker_datas=kept,
        queue_datas=tuple(data for data in route.queue_datas if data.broker_name in names),
        filter_server_table={a: s for a, s in route.filter_server_table.items() if a in addrs},
    )


def _cluster_info(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    return Answer(body=view.listing(request.code, lambda: encode_cluster_info(view.cluster_info())))


def deciding_list(view: RouteView, request: Request, settings: NamesrvSettings) -> Steps[Answer]:
    """Decide a request with a code in :data:`LISTS` in steps, because a list may have many topics.

    The answer contains all changes that were applied before the call, and may contain later changes.
    """
    try:
        list_ = _LISTS[request.code](view, request, settings)
    except FieldError as error:
        list_ = refusal(str(error))
    return _with_body(list_)


def _with_body(list_: Answer | Steps[bytes]) -> Steps[Answer]:
    return list_ if isinstance(list_, Answer) else Answer(body=(yield from list_))


def _list_at_once(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    return finish(deciding_list(view, request, settings))


def _all_topics(view: RouteView, request: Request, settings: NamesrvSettings) -> Answer | Steps[bytes]:
    if not settings.enable_all_topic_list:
        return refusal("disable")
    return _topic_list(view, request.code, view.all_topics)


def _topics_of_cluster(view: RouteView, request: Request, settings: NamesrvSettings) -> Answer | Steps[bytes]:
    if not settings.enable_topic_list:
        return refusal("disable")
    cluster = ext.GetTopicsByClusterFields.parse(request.ext_fields).cluster
    if cluster is None:
        return Answer(body=TopicList().encode())
    return _topic_list(view, (request.code, cluster), lambda: view.topics_of_cluster(cluster))


def _system_topics(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    info = view.cluster_info()
    addr = next((data.broker_addrs[min(data.broker_addrs)] for data in info.broker_addr_table.values()), None)
    topics = (*info.cluster_addr_table, *info.broker_addr_table)
    return Answer(body=TopicList(topics=topics, broker_addr=addr).encode())


def _topics_by_flag(accept: Callable[[int], bool]) -> _Lister:
    def lister(view: RouteView, request: Request, settings: NamesrvSettings) -> Answer | Steps[bytes]:
        if not settings.enable_topic_list:
            return refusal("disable")
        return _topic_list(view, request.code, lambda: view.topics_by_flag(accept))

    return lister


def _topic_list(view: RouteView, key: Hashable, topics: Callable[[], Steps[list[str]]]) -> Steps[bytes]:
    return view.making(key, lambda: _encoding(topics()))


def _encoding(topics: Steps[list[str]]) -> Steps[bytes]:
    """Encode topics in steps, with the same result as :meth:`TopicList.encode`."""
    parts = []
    for chunk in in_chunks((yield from topics)):
        parts.append(orjson.dumps(chunk)[1:-1])
        yield
    return b'{"topicList":[%s]}' % b",".join(parts)


def _delete_topic(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    fields = ext.DeleteTopicInNamesrvFields.parse(request.ext_fields)
    return commands.DeleteTopic(
        topic=fields.topic,
        cluster_name=ClusterName(fields.cluster_name) if fields.cluster_name else None,
        topic_revision=view.base("topic", fields.topic),
    )


def _register_topic(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    topic = ext.TopicFields.parse(request.ext_fields).topic
    queues = {
        data.broker_name: msgspec.convert(data, commands.BrokerQueues, from_attributes=True)
        for data in (decode_queue_datas(request.body) if request.body else ())
    }
    if not topic or not queues:
        return Answer()
    return commands.RegisterTopic(
        topic=topic, queues=tuple(queues.values()), topic_revision=view.base("topic", topic)
    )


def _write_perm(change: type[commands.WipeWritePerm | commands.AddWritePerm]) -> _Handler:
    def handler(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
        name = BrokerName(ext.WritePermFields.parse(request.ext_fields).broker_name or "")
        return change(broker_name=name, name_revision=view.base("name", name))

    return handler


# -- KV configuration and settings -------------------------------------------------------------------------


def _put_kv(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    fields = ext.PutKvFields.parse(request.ext_fields)
    namespace, key = fields.namespace, fields.key
    if namespace is None or key is None:
        return refusal("namespace or key is null")
    try:
        size = text_size(namespace, key, fields.value)
    except ValueError:
        return refusal("namespace, key or value is no Unicode text")
    if size > KV_ENTRY_BYTES_MAX:
        return refusal(
            f"namespace, key and value have {size} bytes together, at most {KV_ENTRY_BYTES_MAX} are allowed"
        )
    size = text_size(namespace, key)
    if size > KV_NAME_BYTES_MAX:
        return refusal(
            f"namespace and key have {size} bytes together, at most {KV_NAME_BYTES_MAX} are allowed"
        )
    revision = view.base("key", (namespace, key))
    return commands.PutKv(namespace=namespace, key=key, value=fields.value, key_revision=revision)


def _get_kv(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    fields = ext.KvFields.parse(request.ext_fields)
    entry: KvEntry | None = None
    if fields.namespace is not None and fields.key is not None:
        entry = view.kv_value(fields.namespace, fields.key)
    if entry is None or entry.value is None:
        return Answer(
            code=ResponseCode.QUERY_NOT_FOUND,
            remark=f"No config item, Namespace: {_shown(fields.namespace)} Key: {_shown(fields.key)}",
        )
    return Answer(ext_fields=ext.GetKvResponseFields(value=entry.value).to_ext())


def _delete_kv(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    fields = ext.KvFields.parse(request.ext_fields)
    namespace, key = fields.namespace, fields.key
    if namespace is None or key is None:
        return Answer()
    return commands.DeleteKv(namespace=namespace, key=key, key_revision=view.base("key", (namespace, key)))


def _kv_list(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    namespace = ext.GetKvListFields.parse(request.ext_fields).namespace
    values = None if namespace is None else view.kv(namespace)
    if values is None:
        return Answer(
            code=ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {_shown(namespace)}"
        )
    return Answer(body=_kv_body(values))


def _kv_body(values: Mapping[str, str | None]) -> bytes:
    return KVTable(table={key: value for key, value in values.items() if value is not None}).encode()


def _shown(text: str | None) -> str:
    return "null" if text is None else text


def _update_config(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    if not request.body:
        return Answer()
    try:
        after, changes = check_changes(settings, parse_changes(request.body))
    except ChangeRefused as error:
        return refusal(str(error), ResponseCode.NO_PERMISSION)
    except ChangeInvalid as error:
        return refusal(str(error))
    return SettingsChange(after=after, changes=changes) if changes else Answer()


def _get_config(view: RouteView, request: Request, settings: NamesrvSettings) -> Decision:
    return Answer(body=format_settings(settings).encode())


_Handler: TypeAlias = Callable[[RouteView, Request, NamesrvSettings], Decision]

_Lister: TypeAlias = Callable[[RouteView, Request, NamesrvSettings], Answer | Steps[bytes]]

_LISTS: Final[Mapping[int, _Lister]] = {
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _all_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: _topics_of_cluster,
    RequestCode.GET_UNIT_TOPIC_LIST: _topics_by_flag(lambda flag: bool(flag & _FLAG_UNIT)),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _topics_by_flag(lambda flag: bool(flag & _FLAG_UNIT_SUB)),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _topics_by_flag(
        lambda flag: flag & (_FLAG_UNIT | _FLAG_UNIT_SUB) == _FLAG_UNIT_SUB
    ),
}

LISTS: Final = frozenset(_LISTS)
"""Codes of the reads that :func:`deciding_list` can decide in steps. :func:`decide` needs one long step."""

_READS: Final[Mapping[int, _Handler]] = {
    **dict.fromkeys(_LISTS, _list_at_once),
    RequestCode.GET_KV_CONFIG: _get_kv,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.GET_BROKER_CLUSTER_INFO: _cluster_info,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _kv_list,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _system_topics,
    RequestCode.GET_BROKER_MEMBER_GROUP: _member_group,
}
_HANDLERS: Final[Mapping[int, _Handler]] = {
    **_READS,
    RequestCode.PUT_KV_CONFIG: _put_kv,
    RequestCode.DELETE_KV_CONFIG: _delete_kv,
    RequestCode.UNREGISTER_BROKER: _unregister,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _write_perm(commands.WipeWritePerm),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _register_topic,
    RequestCode.UPDATE_NAMESRV_CONFIG: _update_config,
    RequestCode.GET_NAMESRV_CONFIG: _get_config,
    RequestCode.QUERY_DATA_VERSION: _query_data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _write_perm(commands.AddWritePerm),
    RequestCode.BROKER_HEARTBEAT: _heartbeat,
}

READS: Final = frozenset(_READS)
"""Codes of requests that only read the table; the setting ``routeFreshness`` applies to them."""

SERVED: Final = frozenset({*_HANDLERS, RequestCode.REGISTER_BROKER})
"""Codes of all requests that a nameserver serves."""
