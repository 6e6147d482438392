"""The decision whether to serve a request: checks of networks, accounts, signatures and permissions."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from routekeeper.remoting.acl.accounts import Account, Accounts, Permission
from routekeeper.remoting.acl.addresses import Networks
from routekeeper.remoting.acl.rules import Asks, Need, Rule
from routekeeper.remoting.acl.signing import ACCESS_KEY, SIGNATURE, signed_content
from routekeeper.remoting.codes import RETRY_PREFIX, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.logs import shortened

#: Beginning of every remark that refuses a request because of accounts, as in RocketMQ's brokers.
EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
#: The topic of message traces. Every account may write to this topic, even an account that may write to no
#: other topic. Source: PlainPermissionManager.validate.
_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
#: Length of a signature in characters: base64 of 20 bytes.
_SIGNATURE_LENGTH: Final = 28


class Denied(NamedTuple):
    """The refusal of a request.

    Attributes:
        code: Code of the answer.
        remark: Remark of the answer.
        access_key: The access key that the request names, shortened; empty if the request names none.
    """

    code: int
    remark: str
    access_key: str = ""


class AccessDenied(Exception):
    """Error: the accounts do not allow a request.

    The text is the same as in RocketMQ's brokers.
    """


def _claimed(request: RemotingCommand) -> str:
    return shortened(request.ext_fields.get(ACCESS_KEY, ""))


def outside_networks(request: RemotingCommand, host: str, networks: Networks | None) -> Denied | None:
    """Return the refusal of a request from outside the allowed networks; None if the request is allowed."""
    if networks is None or networks.match(host):
        return None
    return Denied(
        ResponseCode.NO_PERMISSION,
        f"request code {request.code} is allowed from the networks of adminNetworks only, not from {host}",
        _claimed(request),
    )


def denied_by_rule(accounts: Accounts, request: RemotingCommand, host: str, rule: Rule) -> Denied | None:
    """Return the refusal of a request at a broker; None if the request may be served.

    Args:
        rule: The account and the permissions that requests with this code need.
    """
    return _denied(accounts, request, host, admin=rule.admin, needs=rule.needs)


def denied_by_asks(accounts: Accounts, request: RemotingCommand, host: str, asks: Asks) -> Denied | None:
    """Return the refusal of a request at a nameserver; None if the request may be served.

    Args:
        asks: The kind of account that requests with this code need: none, any account, or an admin.
    """
    if asks is Asks.NOTHING:
        return None
    return _denied(accounts, request, host, admin=asks is Asks.ADMIN, needs=None)


def _denied(
    accounts: Accounts,
    request: RemotingCommand,
    host: str,
    *,
    admin: bool,
    needs: Callable[[RemotingCommand], Iterable[Need]] | None,
) -> Denied | None:
    # Do the cheap checks first, so that a client without a known key cannot make this process compute
    # signatures.
    try:
        if accounts.is_white(host):
            return None
        account = account_of(accounts, request.ext_fields)
        if account.white is not None and account.white.match(host):
            return None
        check_signature(account, request.ext_fields, request.body, version=request.version)
        _check_permissions(account, request, admin=admin, needs=needs)
    except AccessDenied as error:
        return Denied(ResponseCode.SYSTEM_ERROR, f"{EXCEPTION}{error}", _claimed(request))
    return None


def account_of(accounts: Accounts, fields: Mapping[str, str]) -> Account:
    """Return the account that a request names.

    Raises:
        AccessDenied: The request names no account, or an unknown account.
    """
    access_key = fields.get(ACCESS_KEY)
    if access_key is None:
        raise AccessDenied("No accessKey is configured")
    account = accounts.by_key.get(access_key)
    if account is None:
        raise AccessDenied(f"No acl config for {shortened(access_key)}")
    return account


def check_signature(account: Account, fields: Mapping[str, str], body: bytes, *, version: int) -> None:
    """Check the signature of a request.

    Raises:
        AccessDenied: The request does not carry the account's signature.
    """
    signature = fields.get(SIGNATURE, "")
    if len(signature) == _SIGNATURE_LENGTH:
        # Pass the body separately, because joining it to the fields would copy up to 16 MiB.
        code = hmac.new(account.secret_key.encode(), signed_content(fields, version=version), hashlib.sha1)
        code.update(body)
        if hmac.compare_digest(base64.b64encode(code.digest()), signature.encode("utf-8", "replace")):
            return
    raise AccessDenied(f"Check signature failed for accessKey={account.access_key}")


def _check_permissions(
    account: Account,
    request: RemotingCommand,
    *,
    admin: bool,
    needs: Callable[[RemotingCommand], Iterable[Need]] | None,
) -> None:
    if admin and not account.admin:
        raise AccessDenied(
            f"Need admin permission for request code={request.code},"
            f" but accessKey={account.access_key} is not"
        )
    if needs is None or (account.admin and not account.perms):
        return
    try:
        found = tuple(needs(request))
    except RemotingError as error:
        raise AccessDenied(str(error)) from None
    if any(need == (_TRACE_TOPIC, Permission.PUB) for need in found):
        return
    for resource, permission in found:
        is_group = resource.startswith(RETRY_PREFIX)
        default = account.default_group_perm if is_group else account.default_topic_perm
        if not account.perms.get(resource, default) & permission:
            named = f"group:{resource[len(RETRY_PREFIX) :]}" if is_group else f"topic:{resource}"
            raise AccessDenied(f"No default permission for {shortened(named)}")
