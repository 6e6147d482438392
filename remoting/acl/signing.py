"""Signatures of requests, for RocketMQ's access control list (4.9) and its authentication (5.x).

Source: AclClientRPCHook, AclUtils.combineRequestContent and AclSigner, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from routekeeper.remoting.acl.plain_yaml import Members, Text, YamlError, parse_yaml
from routekeeper.remoting.codes import VERSION_4_9_4
from routekeeper.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
#: Clients before 4.9.4 add this argument to a signed request, so their signature does not cover it. Source:
#: PlainAccessResource.parse, RocketMQ 5.3.2.
_ADDED_LATER: Final = "_UNIQUE_KEY_QUERY"


def signed_content(fields: Mapping[str, str], *, version: int) -> bytes:
    """Return the bytes that a signature covers: the values of the fields, sorted by the fields' names.

    Args:
        version: Release of the sender.
    """
    names = sorted(fields)
    if SIGNATURE in fields:
        names.remove(SIGNATURE)
    if version < VERSION_4_9_4 and _ADDED_LATER in fields:
        names.remove(_ADDED_LATER)
    # "replace" writes "?" for half of a surrogate pair, as Java does.
    return "".join([fields[name] for name in names]).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """An access key and its secret, used to sign requests.

    Attributes:
        raw: Bytes of the file from which the keys were read; empty if they come from elsewhere.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    raw: bytes = field(default=b"", repr=False, compare=False)

    def signed(self, request: RemotingCommand) -> RemotingCommand:
        """Return the request with access key and signature."""
        fields = {name: value for name, value in request.ext_fields.items() if name != SIGNATURE}
        fields[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = self.sign(fields, request.body)
        return msgspec.structs.replace(request, ext_fields=fields)

    def sign(self, fields: Mapping[str, str], body: bytes) -> str:
        """Return the signature for the fields and the body of a request."""
        content = signed_content(fields, version=VERSION_4_9_4) + body
        return base64.b64encode(hmac.digest(self.secret_key.encode(), content, hashlib.sha1)).decode()


def parse_keys(content: bytes) -> Keys:
    """Parse a file in the form of RocketMQ's ``tools.yml``: accessKey, secretKey, optional securityToken.

    Raises:
        ValueError: The file has another form. The message names the line and contains no secret.
    """
    document = parse_yaml(content)
    if not isinstance(document, Members):
        raise YamlError(document.line, "allowed are accessKey, secretKey and securityToken")
    values: dict[str, str] = {}
    for key, node in document.members.items():
        if key not in ("accessKey", "secretKey", "securityToken"):
            raise YamlError(
                node.line, f"{key} is unknown, allowed are accessKey, secretKey and securityToken"
            )
        if not isinstance(node, Text):
            raise YamlError(node.line, f"{key} must be one text")
        if node.is_ambiguous:
            raise YamlError(node.line, f"{key}: YAML reads this as no text; put it in quotes")
        if node.text:
            values[key] = node.text
    missing = [key for key in ("accessKey", "secretKey") if key not in values]
    if missing:
        raise YamlError(document.line, f"{' and '.join(missing)} missing")
    return Keys(
        access_key=values["accessKey"],
        secret_key=values["secretKey"],
        security_token=values.get("securityToken"),
    )
