"""Subcommands for ACL 1.0 of RocketMQ 4.x, which manage accounts of brokers.

They are updateAclConfig, deleteAclConfig, updateGlobalWhiteAddr, clusterAclConfigVersion and getAclConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.lenient import ANSWER, INT64_MAX, as_object, as_texts, get_int, get_list, loads

from ..errors import describe
from ..operation import Operation
from . import java
from .context import Context
from .options import OUTPUT, Arguments, Command, Option, UsageError
from .targets import ask_together, brokers_of, call_within, document, raise_failures, second_text

T = TypeVar("T")
_WITHIN_S: Final = 30.0
#: Permissions that this tool accepts. A broker would silently read any other word after -i or -u as DENY.
#: Source: Permission and AclConstants, 4.9.
_PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB")


def _ask(
    context: Context, addrs: list[str], code: RequestCode, ext: Mapping[str, str]
) -> tuple[dict[str, RemotingCommand], dict[str, RemotingError]]:
    def ask(addr: str, left_s: float) -> Operation[RemotingCommand]:
        return (yield from call_within(context, addr, code, ext, left_s))

    return ask_together(context, addrs, ask, within_s=_WITHIN_S)


def _read(
    context: Context, args: Arguments, code: RequestCode, decode: Callable[[RemotingCommand], T]
) -> tuple[dict[str, T], dict[str, RemotingError]]:
    """Send a request to all selected masters. Return their decoded answers and the failures."""
    answers, failures = _ask(context, brokers_of(context, args), code, {})
    found: dict[str, T] = {}
    for addr, answer in answers.items():
        try:
            found[addr] = decode(answer)
        except RemotingError as error:
            failures[addr] = error
    return found, failures


def _change(
    context: Context, args: Arguments, code: RequestCode, ext: Mapping[str, str], done: str, failed: str
) -> None:
    """Make a change at all selected brokers, and print each broker that made it.

    Args:
        ext: Arguments of the request.
        done: Line to print for a broker that made the change; ``{}`` stands for the broker's address.
        failed: Words for the error if a broker did not make the change.

    Raises:
        PartlyNotApplied: If some brokers did not make the change.
        PartlyUnknown: If it is unknown for some brokers whether they made the change.
    """
    addrs = brokers_of(context, args, with_slaves=True)
    answers, failures = _ask(context, addrs, code, ext)
    for addr in answers:
        context.line(done.format(addr))
    raise_failures(failed, failures, of=len(addrs))


def _update_acl_config(context: Context, args: Arguments) -> None:
    ext = {
        "accessKey": args.text("a"),
        "secretKey": args.text("s"),
        "admin": java.flag(args.flag("m", "admin")),
    }
    for short, name in (("i", "defaultTopicPerm"), ("u", "defaultGroupPerm")):
        if short in args:
            ext[name] = _permission(name, args.text(short))
    for short, name in (("t", "topicPerms"), ("g", "groupPerms")):
        if short in args:
            ext[name] = _permissions(name, args.text(short))
    if "w" in args:
        ext["whiteRemoteAddress"] = args.text("w")
    done = "create or update plain access config to {} success."
    _change(context, args, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext, done, "account not changed")


def _permission(name: str, text: str) -> str:
    if text not in _PERMISSIONS:
        raise UsageError(f"{name}={text!r}, allowed {', '.join(_PERMISSIONS)}")
    return text


def _permissions(name: str, text: str) -> str:
    """Check a list of ``NAME=PERMISSION``, separated by commas, and return the list unchanged.

    Raises:
        UsageError: If the text is not such a list.
    """
    for item in text.split(","):
        resource, mark, permission = item.partition("=")
        if not resource.strip() or not mark:
            raise UsageError(f"{name}: {item!r} is not NAME=PERMISSION, such as topicA=DENY")
        _permission(f"{name}: {resource.strip()}", permission.strip())
    return text


def _delete_acl_config(context: Context, args: Arguments) -> None:
    key = args.text("a")
    done = "delete plain access config account from {} success."
    _change(context, args, RequestCode.DELETE_ACL_CONFIG, {"accessKey": key}, done, "account not deleted")
    context.line(f"account's accesskey is:{key}")


def _update_global_white_addr(context: Context, args: Arguments) -> None:
    # Without -p, send an empty path, which means the broker's default file. RocketMQ's own tool sends no path
    # at all, and a broker of 4.9 refuses such a request.
    ext = {"globalWhiteAddrs": args.text("g"), "aclFileFullPath": args.get("p") or ""}
    done = "update global white remote addresses to {} success."
    _change(
        context, args, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ext, done, "white addresses not changed"
    )


_VERSION: Final = "{:<16}  {:<22}  {:<22}  {:<20}  {:<22}  {:<22}"


def _cluster_acl_config_version(context: Context, args: Arguments) -> None:
    found, failures = _read(context, args, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, _versions)
    rows = [row for versions in found.values() for row in versions]
    context.json(rows)
    if "b" not in args:
        context.line(
            _VERSION.format(
                *("#Cluster Name", "#Broker Name", "#Broker Addr", "#AclFilePath"),
                *("#AclConfigVersionNum", "#AclLastUpdateTime"),
            )
        )
    for row in rows:
        when = second_text(row["timestamp"])
        context.line(
            _VERSION.format(
                row["cluster"], row["brokerName"], row["brokerAddr"], row["file"], row["counter"], when
            )
        )
    for addr, failure in failures.items():
        context.fail(f"broker {addr}: {describe(failure)}")
    if not context.failures:
        whose = "broker" if "b" in args else "cluster"
        context.line(f"get {whose}'s plain access config version success.")


def _versions(answer: RemotingCommand) -> list[dict[str, Any]]:
    """Return the versions of a broker's account files.

    Raises:
        RemoteProtocolError: If the answer has an unexpected form.
    """
    ext = answer.ext_fields
    files = as_object(loads(ext.get("allAclFileVersion") or "{}", ANSWER), "allAclFileVersion")
    rows = []
    for name, value in files.items():
        version = as_object(value, "version")
        rows.append(
            {
                "cluster": ext.get("clusterName", ""),
                "brokerName": ext.get("brokerName", ""),
                "brokerAddr": ext.get("brokerAddr", ""),
                "file": name,
                "counter": get_int(version, "counter", limit=INT64_MAX),
                "timestamp": get_int(version, "timestamp", limit=INT64_MAX),
            }
        )
    return rows


#: Settings of an account, in the order in which RocketMQ's tool prints them. Source: PlainAccessConfig, 4.9.
_MEMBERS: Final = (
    *("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm"),
    *("topicPerms", "groupPerms"),
)


def _get_acl_config(context: Context, args: Arguments) -> None:
    documents, failures = _read(context, args, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, _accounts)
    context.json(documents)
    for found in documents.values():
        addresses = ", ".join(found["globalWhiteRemoteAddresses"])
        context.line()
        context.line(f"{'globalWhiteRemoteAddresses':<20}: [{addresses}]")
        context.line()
        context.line("accounts:")
        for account in found["accounts"]:
            for name in _MEMBERS:
                context.line(f"  {name:<18}: {_member_text(account.get(name))}")
            context.line()
    for addr, failure in failures.items():
        context.fail(f"broker {addr}: {describe(failure)}")


def _accounts(answer: RemotingCommand) -> dict[str, Any]:
    """Return a broker's accounts.

    Raises:
        RemoteProtocolError: If the answer has an unexpected form.
    """
    found = document(answer)
    accounts = [as_object(one, "account") for one in get_list(found, "plainAccessConfigs")]
    addresses = as_texts(found.get("globalWhiteAddrs") or [], "globalWhiteAddrs")
    return {"globalWhiteRemoteAddresses": addresses, "accounts": accounts}


def _member_text(value: Any) -> str:
    if value is None:
        return ""
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else java.text(value)


def _targets(text: str) -> tuple[Option, Option]:
    return (
        Option(short="b", long="brokerAddr", description=f"{text} broker", group="target"),
        Option(
            short="c",
            long="clusterName",
            description=f"{text} cluster",
            group="target",
        ),
    )


def _queried() -> tuple[Option, Option]:
    return (
        Option(
            short="b",
            long="brokerAddr",
            description="query acl config version for which broker",
            group="target",
        ),
        Option(
            short="c",
            long="clusterName",
            description="query acl config version for specified cluster",
            group="target",
        ),
    )


COMMANDS: Final = (
    Command(
        name="updateAclConfig",
        description="Update acl config yaml file in broker",
        options=(
            *_targets("update acl config file to which"),
            Option(
                short="a", long="accessKey", description="set accessKey in acl config file", required=True
            ),
            Option(
                short="s", long="secretKey", description="set secretKey in acl config file", required=True
            ),
            Option(
                short="w",
                long="whiteRemoteAddress",
                description="set white ip Address for account in acl config file",
            ),
            Option(
                short="i",
                long="defaultTopicPerm",
                description="set default topicPerm in acl config file",
            ),
            Option(
                short="u",
                long="defaultGroupPerm",
                description="set default GroupPerm in acl config file",
            ),
            Option(
                short="t",
                long="topicPerms",
                description="set topicPerms list,eg: topicA=DENY,topicD=SUB",
            ),
            Option(
                short="g",
                long="groupPerms",
                description="set groupPerms list,eg: groupD=DENY,groupD=SUB",
            ),
            Option(short="m", long="admin", description="set admin flag in acl config file"),
        ),
        run=_update_acl_config,
        needs_nameserver=False,
    ),
    Command(
        name="deleteAclConfig",
        alias="deleteAccessConfig",
        description="Delete Acl Config Account in broker",
        options=(
            *_targets("delete acl config account from which"),
            Option(
                short="a",
                long="accessKey",
                description="set accessKey in acl config file for deleting which account",
                required=True,
            ),
        ),
        run=_delete_acl_config,
        needs_nameserver=False,
    ),
    Command(
        name="updateGlobalWhiteAddr",
        description="Update global white address for acl Config File in broker",
        options=(
            *_targets("update global white address to which"),
            Option(
                short="g",
                long="globalWhiteRemoteAddresses",
                description="set globalWhiteRemoteAddress list,eg: 10.10.103.*,192.168.0.*",
                required=True,
            ),
            Option(
                short="p",
                long="aclFileFullPath",
                description="update global white address of specified acl file,eg: /xxx/plain_test.yml",
            ),
        ),
        run=_update_global_white_addr,
        needs_nameserver=False,
    ),
    Command(
        name="clusterAclConfigVersion",
        description="List all of acl config version information in cluster",
        options=(*_queried(), OUTPUT),
        run=_cluster_acl_config_version,
        needs_nameserver=False,
        only_reads=True,
    ),
    Command(
        name="getAclConfig",
        alias="getAccessConfigSubCommand",
        description="List all of acl config information in cluster",
        options=(*_queried(), OUTPUT),
        run=_get_acl_config,
        needs_nameserver=False,
        only_reads=True,
    ),
)
