"""Operations that register and unregister a broker with one nameserver.

This module does no I/O, because a client executes the operations. Load generators and tests use this module.
RouteKeeper's broker does not use it, because the broker registers on its own schedule.

When a connection closes, the nameserver drops all brokers that registered over this connection. So each
simulated broker needs a client with connections of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from routekeeper.client.errors import NotApplied, OutcomeUnknown
from routekeeper.client.operation import Operation, invoke
from routekeeper.client.retry import Outcome, classify_failure
from routekeeper.remoting.bodies import KVTable
from routekeeper.remoting.codes import MASTER_ID, VERSION, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemoteProtocolError, RemotingError
from routekeeper.remoting.fields import (
    RegisterBrokerFields,
    RegisterBrokerResponseFields,
    UnregisterBrokerFields,
)
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig

#: A nameserver's remark begins with this text if the nameserver cannot know whether a proposal was applied.
#: Source: docs/raft-rules.md, rule 2.
UNKNOWN_MARK = "[OUTCOME_UNKNOWN]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A broker's announcement.

    Attributes:
        topics: The broker's topics. Their number must not be 1, because a nameserver takes a registration
            with one topic for an incremental registration. Real brokers never announce exactly one topic.
        data_version: Version of ``topics``. A nameserver that has this version does not read the topics.
        heartbeat_timeout_ms: Lease to request, or None for the nameserver's default (120 s).
    """

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: int = MASTER_ID
    ha_server_addr: str = ""
    topics: tuple[TopicConfig, ...] = ()
    data_version: DataVersion = field(default_factory=DataVersion)
    filter_servers: tuple[str, ...] = ()
    heartbeat_timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Answer to an accepted registration.

    Attributes:
        master_addr, ha_server_addr: Addresses of the master, for a slave whose master is registered.
        order_topics: Order configuration for the broker, or None if the nameserver does not send it.
    """

    master_addr: str | None
    ha_server_addr: str | None
    order_topics: Mapping[str, str] | None


def encode_registration(registration: Registration) -> RemotingCommand:
    """Return the request for a registration. The same request may be sent several times."""
    body = encode_register_body(
        RegisterBody(
            data_version=registration.data_version,
            topic_configs=registration.topics,
            filter_servers=registration.filter_servers,
        ),
        compressed=registration.compressed,
        version=VERSION,
    )
    fields = RegisterBrokerFields(
        broker_name=registration.broker_name,
        broker_addr=registration.broker_addr,
        cluster_name=registration.cluster_name,
        ha_server_addr=registration.ha_server_addr,
        broker_id=registration.broker_id,
        compressed=registration.compressed,
        body_crc32=body_crc32(body),
        heartbeat_timeout_ms=registration.heartbeat_timeout_ms,
        enable_acting_master=registration.enable_acting_master,
    )
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields.to_ext(), body)


def register(
    nameserver: str, registration: Registration | RemotingCommand, *, timeout_s: float = 3.0
) -> Operation[Registered]:
    """Register once with one nameserver.

    Raises:
        NotApplied: If the nameserver refused, or the request was never sent.
        OutcomeUnknown: If the registration may have been applied.
    """
    request = registration if isinstance(registration, RemotingCommand) else encode_registration(registration)
    response = yield from _tell(nameserver, request, timeout_s)
    fields = RegisterBrokerResponseFields.parse(response.ext_fields)
    return Registered(
        master_addr=fields.master_addr,
        ha_server_addr=fields.ha_server_addr,
        order_topics=KVTable.decode(response.body).table if response.body else None,
    )


def unregister(nameserver: str, registration: Registration, *, timeout_s: float = 3.0) -> Operation[None]:
    """Unregister a broker from one nameserver, over the connection of its registration.

    Raises:
        NotApplied: If the nameserver refused, or the request was never sent.
        OutcomeUnknown: If the request may have been applied.
    """
    fields = UnregisterBrokerFields(
        broker_name=registration.broker_name,
        broker_addr=registration.broker_addr,
        cluster_name=registration.cluster_name,
        broker_id=registration.broker_id,
    )
    request = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, fields.to_ext())
    yield from _tell(nameserver, request, timeout_s)


def classify_write(code: int, remark: str | None) -> Outcome:
    """Return the outcome of a change that a nameserver answered with this code and remark."""
    if code == ResponseCode.SUCCESS:
        return Outcome.APPLIED
    return Outcome.UNKNOWN if (remark or "").startswith(UNKNOWN_MARK) else Outcome.NOT_APPLIED


def _tell(nameserver: str, request: RemotingCommand, timeout_s: float) -> Operation[RemotingCommand]:
    try:
        response = yield from invoke(nameserver, request, timeout_s)
    except RemoteProtocolError as error:
        raise OutcomeUnknown(f"{nameserver}: {error}") from error
    except RemotingError as error:
        if classify_failure(error).outcome is Outcome.UNKNOWN:
            raise OutcomeUnknown(f"{nameserver}: {error}") from error
        raise NotApplied(f"{nameserver}: {error}") from error
    outcome = classify_write(response.code, response.remark)
    if outcome is Outcome.APPLIED:
        return response
    text = f"{nameserver}: code={response.code} remark={response.remark or ''}"
    raise OutcomeUnknown(text) if outcome is Outcome.UNKNOWN else NotApplied(text)
