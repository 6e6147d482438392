"""Operations that register and unregister a broker with one nameserver.

This module does no I/O, because a client executes the operations. Load generators and tests use this module.
RouteKeeper's broker does not use it, because the broker registers on its own schedule.

When a connection closes, the nameserver drops all brokers that registered over this connection. So each
simulated broker needs a client with connections of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from routekeeper.client.errors import NotApplied, OutcomeUnknown
from routekeeper.client.operation import Operation, invoke
from routekeeper.client.retry import Outcome, classify_failure
from routekeeper.remoting.codes import MASTER_ID, VERSION, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemoteProtocolError, RemotingError
from routekeeper.remoting.fields import (
    RegisterBrokerFields,
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
    topics: tuple[TopicConfig, ...] = ()
    data_version: DataVersion = field(default_factory=DataVersion)
    heartbeat_timeout_ms: int | None = None


def encode_registration(registration: Registration) -> RemotingCommand:
    """Return the request for a registration. The same request may be sent several times."""
    body = encode_register_body(
        RegisterBody(
            data_version=registration.data_version,
            topic_configs=registration.topics,
            filter_servers=(),
        ),
        compressed=False,
        version=VERSION,
    )
    fields = RegisterBrokerFields(
        broker_name=registration.broker_name,
        broker_addr=registration.broker_addr,
        cluster_name=registration.cluster_name,
        ha_server_addr="",
        broker_id=MASTER_ID,
        compressed=False,
        body_crc32=body_crc32(body),
        heartbeat_timeout_ms=registration.heartbeat_timeout_ms,
    )
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields.to_ext(), body)


def encode_unregistration(registration: Registration) -> RemotingCommand:
    fields = UnregisterBrokerFields(
        broker_name=registration.broker_name,
        broker_addr=registration.broker_addr,
        cluster_name=registration.cluster_name,
        broker_id=MASTER_ID,
    )
    return RemotingCommand.request(RequestCode.UNREGISTER_BROKER, fields.to_ext())


def tell(nameserver: str, request: RemotingCommand, *, timeout_s: float) -> Operation[None]:
    """Register or unregister a broker once with one nameserver.

    Raises:
        NotApplied: If the nameserver refused, or the request was never sent.
        OutcomeUnknown: If the request may have been applied.
    """
    try:
        response = yield from invoke(nameserver, request, timeout_s)
    except RemoteProtocolError as error:
        raise OutcomeUnknown(f"{nameserver}: {error}") from error
    except RemotingError as error:
        if classify_failure(error).outcome is Outcome.UNKNOWN:
            raise OutcomeUnknown(f"{nameserver}: {error}") from error
        raise NotApplied(f"{nameserver}: {error}") from error
    if response.code != ResponseCode.SUCCESS:
        remark = response.remark or ""
        text = f"{nameserver}: code={response.code} remark={remark}"
        raise OutcomeUnknown(text) if remark.startswith(UNKNOWN_MARK) else NotApplied(text)
