"""The public names of :mod:`routekeeper`: the two client classes, and the types that they use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from routekeeper.remoting.errors import (
    ConnectionLost,
    RemotingError,
    RequestRefused,
    RequestTimeout,
    ResponseError,
    TooManyRequests,
)
from routekeeper.remoting.route import TopicConfig
from routekeeper.remoting.transport import RPCHook

from . import aio, blocking
from .acl import Credentials
from .aio_parts import Admin as AsyncAdmin
from .aio_parts import Producer as AsyncProducer
from .aio_parts import PullConsumer as AsyncPullConsumer
from .aio_parts import PushConsumer as AsyncPushConsumer
from .blocking_parts import Admin, Producer, PullConsumer, PushConsumer
from .config import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
    TlsConfig,
    parse_nameservers,
)
from .consumer import ConsumeResult
from .errors import (
    ClientClosed,
    ClientError,
    ForkedClient,
    InvalidArgument,
    NoNameserver,
    NoRoute,
    NotApplied,
    OutcomeUnknown,
    PartlyNotApplied,
    PartlyUnknown,
    SendNotApplied,
    SendOutcomeUnknown,
    WrongLoop,
)
from .producer import Message, SendResult, SendStatus, by_hash
from .queue_reader import ReceivedMessage
from .route_cache import MessageQueue

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "ClientError",
    "ConnectionLost",
    "ConsumeFrom",
    "ConsumeResult",
    "ConsumerConfig",
    "Credentials",
    "ForkedClient",
    "InvalidArgument",
    "Message",
    "MessageQueue",
    "NoNameserver",
    "NoRoute",
    "NotApplied",
    "OutcomeUnknown",
    "PartlyNotApplied",
    "PartlyUnknown",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullConsumerConfig",
    "PushConsumer",
    "RPCHook",
    "ReceivedMessage",
    "RemotingError",
    "RequestRefused",
    "RequestTimeout",
    "ResponseError",
    "SendNotApplied",
    "SendOutcomeUnknown",
    "SendResult",
    "SendStatus",
    "TlsConfig",
    "TooManyRequests",
    "TopicConfig",
    "WrongLoop",
    "by_hash",
]

_VARIABLE: Final = "NAMESRV_ADDR"


class Client(blocking.Client):
    """A client for threads and greenlets.

    Args:
        nameservers: ``host:port;host:port``, or a sequence of addresses. Default: the environment variable
            NAMESRV_ADDR.
        config: All settings; ``nameservers`` replaces the addresses in the settings.
        credentials: Keys that sign requests.
        hooks: Each hook sees every request before the client sends it, and every answer before the caller
            gets it.

    Raises:
        InvalidArgument: If no nameserver is named, or an address is invalid.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str] | None = None,
        *,
        config: ClientConfig | None = None,
        credentials: Credentials | None = None,
        hooks: tuple[RPCHook, ...] = (),
    ) -> None:
        super().__init__(_settings(nameservers, config), hooks=_hooks(credentials, hooks))


class AsyncClient(aio.Client):
    """A client for the running asyncio loop. It takes the same arguments as :class:`Client`."""

    def __init__(
        self,
        nameservers: str | Sequence[str] | None = None,
        *,
        config: ClientConfig | None = None,
        credentials: Credentials | None = None,
        hooks: tuple[RPCHook, ...] = (),
    ) -> None:
        super().__init__(_settings(nameservers, config), hooks=_hooks(credentials, hooks))


def _settings(nameservers: str | Sequence[str] | None, config: ClientConfig | None) -> ClientConfig:
    if nameservers is None and config is not None:
        return config
    text = os.environ.get(_VARIABLE, "") if nameservers is None else nameservers
    try:
        addrs = parse_nameservers(text if isinstance(text, str) else ";".join(text))
    except TypeError:
        raise InvalidArgument(
            f"nameservers is a {type(nameservers).__name__}, allowed are a text like 'host:9876;host:9876' "
            "or a sequence of such texts; pass a ClientConfig as config="
        ) from None
    return ClientConfig(nameservers=addrs) if config is None else replace(config, nameservers=addrs)


def _hooks(credentials: Credentials | None, hooks: tuple[RPCHook, ...]) -> tuple[RPCHook, ...]:
    # Keep the credentials last: they must sign the request after all other hooks have changed it.
    return hooks if credentials is None else (*hooks, credentials)
