"""Functions for tests that make registrations as brokers do, decode them, or compute commands from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from routekeeper.nameserver.commands import RegisterBroker
from routekeeper.nameserver.handlers import Decision, decide, decide_registration
from routekeeper.nameserver.registration import Registration, decode_registration
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.registration import (
    PlainRegistration,
    RegisterBody,
    TopicNumbers,
    body_crc32,
    encode_register_body,
    reading_registration,
)
from routekeeper.remoting.route import DataVersion, TopicConfig
from routekeeper.remoting.steps import finish

VERSION: Final = 479  # RocketMQ 5.3.3's version number


def body_of(
    topics: Iterable[str | TopicConfig],
    *,
    counter: int = 1,
    timestamp: int = 0,
    queues: int = 8,
    compressed: bool = False,
    version: int = VERSION,
) -> bytes:
    """Return the body of a registration. Topics that are given by name have `queues` queues."""
    configs = (
        TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        if isinstance(topic, str)
        else topic
        for topic in topics
    )
    content = RegisterBody(
        data_version=DataVersion(counter=counter, timestamp=timestamp),
        topic_configs=tuple(configs),
        filter_servers=(),
        mapping_infos={},
    )
    return encode_register_body(content, compressed=compressed, version=version)


def fields_of(
    body: bytes, name: str, addr: str, *, cluster: str = "C", broker_id: int = 0, **more: str
) -> dict[str, str]:
    """Return the header fields of a registration with this body. ``more`` has further fields by name."""
    return {
        "brokerName": name,
        "brokerAddr": addr,
        "clusterName": cluster,
        "brokerId": str(broker_id),
        "haServerAddr": "",
        "bodyCrc32": str(body_crc32(body)),
    } | more


def registration(
    name: str,
    addr: str,
    topics: Iterable[str | TopicConfig],
    *,
    counter: int = 1,
    timestamp: int = 0,
    queues: int = 8,
    lease_ms: int | None = None,
    **more: str,
) -> RemotingCommand:
    """Return the request with which a broker registers all its topics."""
    body = body_of(topics, counter=counter, timestamp=timestamp, queues=queues)
    if lease_ms is not None:
        more["heartbeatTimeoutMillis"] = str(lease_ms)
    fields = fields_of(body, name, addr) | more
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, body)


def read_registration(body: bytes, *, compressed: bool, version: int, **limits: Any) -> PlainRegistration:
    """Read the body of a registration as a nameserver does, but all steps at once."""
    return finish(reading_registration(body, compressed=compressed, version=version, **limits))


def decided(view: RouteView, request: Request, settings: NamesrvSettings, *, uptime_s: float) -> Decision:
    """Return the answer to a request, or the command that the nameserver would compute from it."""
    if request.code != RequestCode.REGISTER_BROKER:
        return decide(view, request, settings, uptime_s=uptime_s)
    decoded = decode_registration(request)
    return decoded if isinstance(decoded, Answer) else decide_registration(view, decoded, settings)


def as_it_came(command: RegisterBroker) -> Registration:
    """Return the decoded registration from which the nameserver would compute this command."""
    return Registration(
        broker=command.broker,
        broker_name=command.broker_name,
        broker_id=command.broker_id,
        ha_server_addr=command.ha_server_addr,
        lease_ms=command.lease_ms,
        enable_acting_master=command.enable_acting_master,
        zone_name=command.zone_name,
        data_version=command.data_version,
        table={
            queues.topic: TopicNumbers(
                queues.topic,
                queues.read_queue_nums,
                queues.write_queue_nums,
                queues.perm,
                queues.topic_sys_flag,
            )
            for queues in command.topics
        },
        filter_servers=command.filter_servers,
        mappings=command.mappings,
    )
