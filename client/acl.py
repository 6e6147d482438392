"""Signatures of requests with an access key and its secret, for RocketMQ's access control lists.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from routekeeper.remoting.acl.signing import Keys
from routekeeper.remoting.command import RemotingCommand

from .errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials(Keys):
    """Keys of an account at the brokers. As a hook of a client, this object signs every request.

    Source: AclClientRPCHook and AclUtils.combineRequestContent, RocketMQ 4.9 and 5.3.

    Attributes:
        access_key: Name of the account.
        secret_key: Secret with which requests are signed; it is never sent.
        security_token: Token of a temporary account, if a service issues such accounts.
    """

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise InvalidArgument("access_key and secret_key: both must be there, at least 1 character each")

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request with its signature added."""
        return self.signed(request)

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Do nothing: answers are not signed."""
