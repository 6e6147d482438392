"""Administrative requests to nameservers and brokers, as operations (:mod:`.operation`) without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar
from urllib.parse import quote

from routekeeper.remoting.bodies import (
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    KVTable,
    TopicList,
    TopicStats,
)
from routekeeper.remoting.codes import MASTER_ID, ORDER_TOPIC_NAMESPACE, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemoteProtocolError, RemotingError
from routekeeper.remoting.fields import (
    AddWritePermResponseFields,
    ConsumerGroupFields,
    ConsumeStatsFields,
    CreateTopicFields,
    DeleteTopicInNamesrvFields,
    FieldError,
    GetKvListFields,
    GetKvResponseFields,
    KvFields,
    PutKvFields,
    TopicFields,
    WipeWritePermResponseFields,
    WritePermFields,
)
from routekeeper.remoting.properties import split_properties
from routekeeper.remoting.route import ClusterInfo, TopicConfig, TopicRouteData, decode_cluster_info

from .directory import Directory, EachAnswer, ensure_success
from .errors import InvalidArgument, NotApplied
from .operation import Fetch, FetchReply, Operation, invoke
from .retry import partial_failure

T = TypeVar("T")
#: Largest number of queues that a topic may have. Source: a limit of RouteKeeper. RocketMQ has no limit.
QUEUE_NUMS_MAX: Final = 65536


class Admin:
    """Operations on nameservers and brokers.

    A read of nameserver data asks one nameserver. A change of nameserver data goes to all nameservers,
    because independent nameservers share no data. Nameserver data are the KV config, the settings, the write
    permissions and the topics. The result of such a change has one entry for each nameserver: the answer or
    the error.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    # Reads from one nameserver ----------------------------------------------------------------------

    def topic_route(self, topic: str, *, nameserver: str | None = None) -> Operation[TopicRouteData]:
        """Return a topic's route from a nameserver.

        Raises:
            NoNameserver: If no nameserver answered.
            ResponseError: If the nameserver refused the request; code 17 if the topic has no route.
        """
        return self._directory.fetch_route(topic, addr=nameserver)

    def cluster_info(self) -> Operation[ClusterInfo]:
        """Return all brokers and clusters.

        Raises:
            NoNameserver, ResponseError: As :meth:`topic_route`.
        """
        return (yield from self._read(RequestCode.GET_BROKER_CLUSTER_INFO, {}, decode_cluster_info))

    def topic_list(self) -> Operation[TopicList]:
        """Return all topics.

        Raises:
            NoNameserver, ResponseError: As :meth:`topic_route`.
        """
        return (yield from self._read(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, TopicList.decode))

    def kv_get(self, namespace: str, key: str) -> Operation[str | None]:
        """Return a value of the KV config; None if the key does not exist.

        Raises:
            NoNameserver, ResponseError: As :meth:`topic_route`.
        """
        fields = KvFields(namespace=namespace, key=key)
        request = RemotingCommand.request(RequestCode.GET_KV_CONFIG, fields.to_ext())
        response = yield from self._directory.ask(request)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        ensure_success(response)
        return GetKvResponseFields.parse(response.ext_fields).value

    def kv_list(self, namespace: str) -> Operation[Mapping[str, str] | None]:
        """Return all keys and values of a namespace of the KV config; None if the namespace does not exist.

        Raises:
            NoNameserver, ResponseError: As :meth:`topic_route`.
        """
        request = RemotingCommand.request(
            RequestCode.GET_KVLIST_BY_NAMESPACE, GetKvListFields(namespace=namespace).to_ext()
        )

        def decode(response: RemotingCommand) -> Mapping[str, str] | None:
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            ensure_success(response)
            return KVTable.decode(response.body).table

        return (yield from self._directory.read(request, decode))

    # Changes at each nameserver ---------------------------------------------------------------------

    def kv_put(self, namespace: str, key: str, value: str) -> Operation[tuple[EachAnswer, ...]]:
        """Store a value of the KV config at each nameserver."""
        fields = PutKvFields(namespace=namespace, key=key, value=value)
        return self._directory.tell_each(RemotingCommand.request(RequestCode.PUT_KV_CONFIG, fields.to_ext()))

    def kv_delete(self, namespace: str, key: str) -> Operation[tuple[EachAnswer, ...]]:
        """Remove a key of the KV config at each nameserver. A missing key is no error."""
        fields = KvFields(namespace=namespace, key=key)
        return self._directory.tell_each(
            RemotingCommand.request(RequestCode.DELETE_KV_CONFIG, fields.to_ext())
        )

    def wipe_write_perm(self, broker_name: str) -> Operation[tuple[EachAnswer, ...]]:
        """Remove the write permission of all topics of a broker name, at each nameserver.

        When the broker next registers changed topics, the nameserver stores the permissions that the broker
        sends. :func:`topic_count` decodes the answers.
        """
        return self._directory.tell_each(
            RemotingCommand.request(
                RequestCode.WIPE_WRITE_PERM_OF_BROKER, WritePermFields(broker_name=broker_name).to_ext()
            )
        )

    def add_write_perm(self, broker_name: str) -> Operation[tuple[EachAnswer, ...]]:
        """Give all topics of a broker name the permission to read and write, at each nameserver."""
        return self._directory.tell_each(
            RemotingCommand.request(
                RequestCode.ADD_WRITE_PERM_OF_BROKER, WritePermFields(broker_name=broker_name).to_ext()
            )
        )

    def namesrv_config(self) -> Operation[tuple[EachAnswer, ...]]:
        """Return the settings of each nameserver. :func:`properties` decodes the answers."""
        return self._directory.tell_each(RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG))

    def update_namesrv_config(self, settings: Mapping[str, str]) -> Operation[tuple[EachAnswer, ...]]:
        """Change settings of each nameserver without a restart."""
        body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        return self._directory.tell_each(
            RemotingCommand.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
        )

    def delete_topic_in_nameservers(
        self, topic: str, cluster_name: str | None
    ) -> Operation[tuple[EachAnswer, ...]]:
        """Remove a topic from each nameserver, in one cluster or in all clusters.

        Delete the topic at its brokers first, because a broker that has the topic registers it again.
        """
        fields = DeleteTopicInNamesrvFields(topic=topic, cluster_name=cluster_name)
        return self._directory.tell_each(
            RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields.to_ext())
        )

    # Requests to one broker -------------------------------------------------------------------------

    def create_topic(self, broker_addr: str, topic: TopicConfig) -> Operation[None]:
        """Create or change a topic at one broker.

        Raises:
            InvalidArgument: If a number is out of range; nothing was sent.
            ResponseError: If the broker refused the request.
            ConnectionLost, RequestTimeout: If the broker did not answer.
        """
        for name, value in (
            ("readQueueNums", topic.read_queue_nums),
            ("writeQueueNums", topic.write_queue_nums),
        ):
            if not 1 <= value <= QUEUE_NUMS_MAX:
                raise InvalidArgument(f"{name}={value}, allowed 1..{QUEUE_NUMS_MAX}")
        fields = CreateTopicFields(
            topic=topic.topic_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_filter_type=topic.topic_filter_type,
            topic_sys_flag=topic.topic_sys_flag,
            order=topic.order,
            attributes=_attributes(topic.attributes),
        )
        yield from self.call(broker_addr, RequestCode.UPDATE_AND_CREATE_TOPIC, fields.to_ext())

    def create_topic_in_cluster(self, cluster_name: str, topic: TopicConfig) -> Operation[tuple[str, ...]]:
        """Create or change a topic at every master of a cluster, and return the masters' addresses.

        Raises:
            NotApplied: If the cluster has no master; nothing was sent.
            InvalidArgument: If a number is out of range; nothing was sent.
            PartlyNotApplied: If some masters did not create the topic; ``failures`` has their addresses. All
                other masters created it.
            PartlyUnknown: If some of the masters in ``failures`` may have created the topic. All masters
                outside ``failures`` created it.
        """
        addrs = tuple(masters((yield from self.cluster_info()), cluster_name).values())
        if not addrs:
            raise NotApplied(f"cluster {cluster_name!r} has no master")
        failures: dict[str, RemotingError] = {}
        for addr in addrs:
            try:
                yield from self.create_topic(addr, topic)
            except InvalidArgument:
                raise
            except RemotingError as error:
                failures[addr] = error
        if failures:
            raise partial_failure(f"topic {topic.topic_name!r} not created", failures, of=len(addrs))
        return addrs

    def delete_topic_in_broker(self, broker_addr: str, topic: str) -> Operation[None]:
        """Delete a topic and its queues at one broker.

        Raises:
            ResponseError, ConnectionLost, RequestTimeout: As :meth:`create_topic`.
        """
        yield from self.call(
            broker_addr, RequestCode.DELETE_TOPIC_IN_BROKER, TopicFields(topic=topic).to_ext()
        )

    def topic_stats(self, broker_addr: str, topic: str) -> Operation[tuple[TopicStats, bytes]]:
        """Return the minimum and maximum offset of each queue of a topic at one broker.

        The second element of the result is the body of the broker's answer, not decoded.

        Raises:
            ResponseError, ConnectionLost, RequestTimeout: As :meth:`create_topic`.
        """
        response = yield from self.call(
            broker_addr, RequestCode.GET_TOPIC_STATS_INFO, TopicFields(topic=topic).to_ext()
        )
        return TopicStats.decode(response.body), response.body

    def broker_runtime(self, broker_addr: str) -> Operation[Mapping[str, str]]:
        """Return a broker's runtime figures by name.

        Raises:
            ResponseError, ConnectionLost, RequestTimeout: As :meth:`create_topic`.
        """
        response = yield from self.call(broker_addr, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        return KVTable.decode(response.body).table

    def broker_config(self, broker_addr: str) -> Operation[Mapping[str, str]]:
        """Return a broker's settings by name.

        Raises:
            ResponseError, ConnectionLost, RequestTimeout: As :meth:`create_topic`.
        """
        response = yield from self.call(broker_addr, RequestCode.GET_BROKER_CONFIG, {})
        return split_properties(response.body)

    def consume_stats(
        self, broker_addr: str, group: str, topic: str | None = None
    ) -> Operation[ConsumeStats]:
        """Return a group's progress in the queues of one broker, for one topic or for all topics.

        Raises:
            ResponseError, ConnectionLost, RequestTimeout: As :meth:`create_topic`.
        """
        fields = ConsumeStatsFields(consumer_group=group, topic=topic)
        response = yield from self.call(broker_addr, RequestCode.GET_CONSUME_STATS, fields.to_ext())
        return ConsumeStats.decode(response.body)

    def consumer_connection(self, broker_addr: str, group: str) -> Operation[ConsumerConnection]:
        """Return the members of a group that are connected to a broker, and the group's subscriptions.

        Raises:
            ResponseError, ConnectionLost, RequestTimeout: As :meth:`create_topic`. The ResponseError has code
                206 if no member is connected.
        """
        fields = ConsumerGroupFields(consumer_group=group)
        response = yield from self.call(
            broker_addr, RequestCode.GET_CONSUMER_CONNECTION_LIST, fields.to_ext()
        )
        return ConsumerConnection.decode(response.body)

    def consumer_groups_of(self, broker_addr: str, topic: str) -> Operation[tuple[str, ...]]:
        """Return the consumer groups of a topic, according to one broker.

        Raises:
            ResponseError, ConnectionLost, RequestTimeout: As :meth:`create_topic`.
        """
        response = yield from self.call(
            broker_addr, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicFields(topic=topic).to_ext()
        )
        return GroupList.decode(response.body).groups

    # Operations made of several requests ------------------------------------------------------------

    def add_to_order_conf(self, topic: str, addition: str) -> Operation[tuple[EachAnswer, ...]]:
        """Set entries ``broker:queues`` in a topic's order configuration at each nameserver.

        Entries of other brokers stay in the configuration.

        Raises:
            NoNameserver, ResponseError: If the current value cannot be read; nothing was changed.
        """
        present = yield from self.kv_get(ORDER_TOPIC_NAMESPACE, topic)
        return (yield from self.kv_put(ORDER_TOPIC_NAMESPACE, topic, merge_order_conf(present, addition)))

    def explain_route(self, http: str, topic: str) -> Operation[FetchReply]:
        """Ask a nameserver over HTTP for the reason why a topic has its present route, or has no route.

        Args:
            http: The nameserver's HTTP address, as ``host:port`` or ``http://host:port``.
        """
        base = http if http.startswith(("http://", "https://")) else f"http://{http}"
        url = f"{base.rstrip('/')}/v1/topics/{quote(topic, safe='')}/explain"
        reply: FetchReply = yield Fetch(url, self._directory.config.call_timeout_s)
        return reply

    def _read(self, code: int, ext_fields: Mapping[str, str], decode: Callable[[bytes], T]) -> Operation[T]:
        request = RemotingCommand.request(code, ext_fields)
        return (yield from self._directory.read(request, lambda found: decode(ensure_success(found).body)))

    def call(
        self,
        addr: str,
        code: int,
        ext_fields: Mapping[str, str] = MappingProxyType({}),
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Operation[RemotingCommand]:
        """Send any request to one server, and return the server's answer.

        Args:
            timeout_s: Timeout that replaces the configured timeout.

        Raises:
            ResponseError, ConnectionLost, RequestTimeout: As :meth:`create_topic`.
        """
        request = RemotingCommand.request(code, ext_fields, body)
        timeout_s = self._directory.config.call_timeout_s if timeout_s is None else timeout_s
        response = yield from invoke(addr, request, timeout_s)
        return ensure_success(response, addr)


def merge_order_conf(present: str | None, addition: str) -> str:
    """Return an order configuration in which ``broker:queues`` was added or replaced.

    Source: DefaultMQAdminExtImpl.createOrUpdateOrderConf.
    """
    parts: dict[str, str] = {}
    for item in f"{present or ''};{addition}".split(";"):
        broker_name, mark, nums = item.strip().partition(":")
        if mark and broker_name:
            parts[broker_name] = nums
    return ";".join(f"{broker_name}:{nums}" for broker_name, nums in parts.items())


def masters(info: ClusterInfo, cluster_name: str) -> dict[str, str]:
    """Return the master's address for each broker name of a cluster; empty if the cluster is unknown."""
    return {
        name: info.broker_addr_table[name].broker_addrs[MASTER_ID]
        for name in sorted(info.cluster_addr_table.get(cluster_name, ()))
        if name in info.broker_addr_table and MASTER_ID in info.broker_addr_table[name].broker_addrs
    }


def all_addrs(info: ClusterInfo, cluster_name: str) -> tuple[str, ...]:
    """Return the addresses of all brokers of a cluster, masters before slaves within each broker name."""
    return tuple(
        addr
        for name in sorted(info.cluster_addr_table.get(cluster_name, ()))
        if name in info.broker_addr_table
        for _, addr in sorted(info.broker_addr_table[name].broker_addrs.items())
    )


def topic_count(answer: RemotingCommand) -> int:
    """Return the number of topics in an answer to request 205 or 327.

    Raises:
        RemoteProtocolError: If the answer contains no number.
    """
    try:
        if "wipeTopicCount" in answer.ext_fields:
            return WipeWritePermResponseFields.parse(answer.ext_fields).wipe_topic_count
        return AddWritePermResponseFields.parse(answer.ext_fields).add_topic_count
    except FieldError as error:
        raise RemoteProtocolError(f"answer without topic count: {error}") from None


def _attributes(attributes: Mapping[str, str]) -> str | None:
    """Encode attributes in the form of RocketMQ 5.x: ``+key=value,-key``. The keys already have the sign."""
    if not attributes:
        return None
    return ",".join(f"{name}={value}" if value else name for name, value in attributes.items())
