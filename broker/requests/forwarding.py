"""Requests that a broker passes on to consumers: 223, 307 and 309.

This module accesses files only through the store.

Source: AdminBrokerProcessor.callConsumer, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from routekeeper.broker.errors import Refusal
from routekeeper.broker.tables.state import BrokerState, Call
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.fields import ConsumeMessageDirectlyFields, ConsumerRunningInfoFields
from routekeeper.remoting.message import encode_message, parse_offset_message_id

#: First client version that can answer requests 307 and 309. Source: MQVersion.V3_1_8_SNAPSHOT.
_VERSION_MIN: Final = 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """An instruction to send a request to a client, and to return the client's answer to the operator.

    Attributes:
        connection: The client's connection.
        request: The request to the client.
        asked: The operator's request, which the broker must answer.
        client_id: Client id for the error message, in case the client does not answer.
    """

    connection: int
    request: RemotingCommand
    asked: RemotingCommand
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAll:
    """An instruction to send one request to several clients, and to combine their answers into one.

    Attributes:
        clients: Connection of each client, by client id.
        combine: Function that makes the answer to ``asked`` from a mapping of client ids to answers. The
            mapping lacks clients that did not answer. The function may run in any thread.
    """

    clients: Mapping[str, int]
    request: RemotingCommand
    asked: RemotingCommand
    combine: Callable[[RemotingCommand, Mapping[str, RemotingCommand]], RemotingCommand]


def running_info(state: BrokerState, call: Call) -> Forward:
    """Serve request 307, GET_CONSUMER_RUNNING_INFO.

    Raises:
        Refusal: If the client is not connected, or too old to answer.
    """
    fields = ConsumerRunningInfoFields.parse(call.request.ext_fields)
    return _forward(state, call, fields.consumer_group, fields.client_id, b"")


def consume_directly(state: BrokerState, call: Call) -> Forward:
    """Serve request 309: let a client consume one message. The broker adds the message to the request.

    Raises:
        Refusal: If the message does not exist, or if the client is not connected or too old to answer.
    """
    fields = ConsumeMessageDirectlyFields.parse(call.request.ext_fields)
    try:
        _, offset = parse_offset_message_id(fields.msg_id or "")
    except RemoteProtocolError as error:
        raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
    message = state.store.message_at(offset)
    if message is None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return _forward(state, call, fields.consumer_group, fields.client_id or "", encode_message(message))


def _forward(state: BrokerState, call: Call, group: str, client_id: str, body: bytes) -> Forward:
    found = state.clients.consumer_group(group)
    members = () if found is None else tuple(found.members.values())
    # Begin with the newest member. If a client has lost its connection and connected again, the group may
    # have its old connection for up to two minutes longer, and nobody would answer there.
    for client in reversed(members):
        if client.client_id != client_id:
            continue
        if client.version < _VERSION_MIN:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish,"
                " please upgrade it to V3_1_8_SNAPSHOT",
            )
        request = RemotingCommand.request(call.request.code, dict(call.request.ext_fields), body)
        return Forward(connection=client.connection, request=request, asked=call.request, client_id=client_id)
    raise Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
