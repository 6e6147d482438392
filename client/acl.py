"""Requests signed with an access key and its secret, as RocketMQ's access control lists expect them. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

import msgspec

from routekeeper.remoting.command import RemotingCommand

from .errors import InvalidArgument

_ACCESS_KEY: Final = "AccessKey"
_SECURITY_TOKEN: Final = "SecurityToken"
_SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Keys of an account at the brokers; as a hook, they sign every request.

    Source: AclClientRPCHook and AclUtils.combineRequestContent, RocketMQ 4.9 and 5.3.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise InvalidArgument("access_key and secret_key: both must be there, at least 1 character each")

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request with its signature."""
        fields = {name: value for name, value in request.ext_fields.items() if name != _SIGNATURE}
        fields[_ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            fields[_SECURITY_TOKEN] = self.security_token
        fields[_SIGNATURE] = self.sign(fields, request.body)
        return msgspec.structs.replace(request, ext_fields=fields)

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Nothing: answers are not signed."""

    def sign(self, fields: dict[str, str], body: bytes) -> str:
        """Return the signature of a request: of its values in the order of their names, and its body."""
        content = "".join(fields[name] for name in sorted(fields)).encode() + body
        return base64.b64encode(hmac.digest(self.secret_key.encode(), content, hashlib.sha1)).decode()
