"""The accounts of ``plain_acl.yml``, RocketMQ 4.9's access file, parsed strictly.

Source: PlainPermissionManager, PlainAccessConfig and Permission, RocketMQ 4.9. RocketMQ treats a mistake as
DENY, and uses the first of two accounts with the same name. This module is stricter. It refuses a file with a
mistake or with two such accounts, and the error names the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from types import MappingProxyType
from typing import Final

from routekeeper.remoting.acl.addresses import AddressError, Addresses, parse_addresses
from routekeeper.remoting.acl.plain_yaml import Items, Members, Node, Text, YamlError, parse_yaml, spell_text
from routekeeper.remoting.codes import RETRY_PREFIX
from routekeeper.remoting.route import DataVersion

#: Largest size of an access file in bytes.
FILE_SIZE_MAX: Final = 1024 * 1024
#: Largest number of white list entries in all files together. The number is limited because each new host is
#: compared with every entry.
WHITE_MAX: Final = 1024
#: Largest number of hosts for which the process remembers whether they are on a white list.
HOSTS_MAX: Final = 4096
#: Shortest key, in characters. Source: a key in RocketMQ must be longer than ACCESS_KEY_MIN_LENGTH, which is
#: 6.
KEY_LENGTH_MIN: Final = 7

_TOP: Final = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")
_ACCOUNT: Final = (
    *("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm"),
    *("topicPerms", "groupPerms"),
)
_VERSION: Final = ("counter", "timestamp", "stateVersion")


class Permission(IntFlag):
    """A permission for a topic or a group. PUB allows sending, SUB allows consuming."""

    DENY = 0
    PUB = 1
    SUB = 2


PERMISSIONS: Final = MappingProxyType(
    {
        "DENY": Permission.DENY,
        "PUB": Permission.PUB,
        "SUB": Permission.SUB,
        "PUB|SUB": Permission.PUB | Permission.SUB,
        "SUB|PUB": Permission.PUB | Permission.SUB,
    }
)
"""Permissions by the words that stand for them in the access file."""


class AclFileError(ValueError):
    """Error: an access file cannot be used. The message names file and line, and contains no secret."""


def group_resource(group: str) -> str:
    """Return the resource name of a consumer group. A group and its retry topic are one resource."""
    return RETRY_PREFIX + group


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account of an access file, with its keys and permissions.

    Attributes:
        white: Addresses from which a request needs no signature. A request from such an address that names
            the account may do everything.
        perms: Permissions by name of topic or group, see :func:`group_resource`.
        topic_perms, group_perms: The same permissions, spelled as in the file.
    """

    access_key: str
    secret_key: str = field(repr=False)
    white: Addresses | None = None
    admin: bool = False
    default_topic_perm: Permission = Permission.DENY
    default_group_perm: Permission = Permission.DENY
    perms: Mapping[str, Permission] = field(default_factory=dict)
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFile:
    """The content of one access file."""

    white: tuple[Addresses, ...] = ()
    accounts: tuple[Account, ...] = ()
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The accounts of all access files together.

    Attributes:
        files: Content of each file by file name, in the order in which the files were read.
        raw: Bytes of each file that was read from the disk, by file name; see :func:`refuse_cut`.
    """

    files: Mapping[str, AclFile]
    white: tuple[Addresses, ...]
    by_key: Mapping[str, Account]
    raw: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    _known: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    def is_white(self, host: str) -> bool:
        """Return True if requests from a host need no account.

        The result is cached, because the white lists may be long.
        """
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= HOSTS_MAX:
                self._known.clear()
            known = self._known[host] = any(entry.match(host) for entry in self.white)
        return known


def merge_files(files: Mapping[str, AclFile]) -> Accounts:
    """Merge the content of several files.

    Raises:
        AclFileError: Two files name the same account, or the white lists have too many entries.
    """
    by_key: dict[str, Account] = {}
    owner: dict[str, str] = {}
    for name, file in files.items():
        for account in file.accounts:
            other = owner.setdefault(account.access_key, name)
            if other != name:
                raise AclFileError(f"{name}: accessKey {account.access_key} is in {other}, too; keep one")
            by_key[account.access_key] = account
    white = tuple(entry for file in files.values() for entry in file.white)
    if len(white) > WHITE_MAX:
        raise AclFileError(f"globalWhiteRemoteAddresses: {len(white)} entries, allowed are {WHITE_MAX}")
    return Accounts(files=files, white=white, by_key=by_key)


def lacks_only_accounts(file: AclFile, in_force: AclFile) -> bool:
    """Return True if the file in force differs from this file only by further accounts."""
    known = {account.access_key: account for account in in_force.accounts}
    return file.white == in_force.white and all(known.get(each.access_key) == each for each in file.accounts)


def refuse_cut(content: bytes, name: str, *, in_force: bytes, lacks_only_accounts: bool = False) -> None:
    """Refuse the new content of a file that is probably cut by a full disk or an unfinished copy.

    The rest of a cut file is often valid, and may allow more than the whole file, because a ``DENY`` at its
    end may be missing.

    Args:
        name: Name of the file, for errors.
        in_force: Content of this file that the server uses; empty if it uses none.
        lacks_only_accounts: True if the content in force differs only by further accounts. This is how an
            operator revokes the last accounts of a file. A file that is cut there allows nobody more.

    Raises:
        AclFileError: The content lacks a newline at its end that the content in force has, or it is only the
            beginning of the content in force and lacks a part of an account or white list.
    """
    if in_force.endswith(b"\n") and not content.endswith(b"\n"):
        raise AclFileError(
            f"{name}: the last line has no newline, perhaps the file is incomplete; end the last line"
        )
    if not lacks_only_accounts and len(content) < len(in_force) and in_force.startswith(content):
        raise AclFileError(
            f"{name}: only the beginning of the content in force, perhaps the file is incomplete; if it is"
            " complete, add a comment as its last line"
        )


def parse_acl_file(content: bytes, name: str) -> AclFile:
    """Parse one access file.

    Args:
        name: Name of the file, for errors.

    Raises:
        AclFileError: The file contains something that is unknown or wrong.
    """
    if len(content) > FILE_SIZE_MAX:
        raise AclFileError(f"{name}: {len(content)} bytes, allowed are {FILE_SIZE_MAX}")
    try:
        return _file(parse_yaml(content))
    except YamlError as error:
        raise AclFileError(f"{name}: {error}") from None


def _file(document: Node) -> AclFile:
    if isinstance(document, Text):
        raise YamlError(document.line, "the file is empty; to allow nobody, write accounts: []")
    members = _members(document, "the file", _TOP)
    white = []
    for item in _items(members.get("globalWhiteRemoteAddresses"), "globalWhiteRemoteAddresses"):
        text = _text(item, "an address")
        if text is not None:
            white.append(_addresses(text, item.line))
    accounts: dict[str, Account] = {}
    for item in _items(members.get("accounts"), "accounts"):
        account = _account(item)
        if account.access_key in accounts:
            raise YamlError(item.line, f"accessKey {account.access_key} appears twice; keep one")
        accounts[account.access_key] = account
    return AclFile(
        white=tuple(white),
        accounts=tuple(accounts.values()),
        data_version=_version(members.get("dataVersion")),
    )


def _account(node: Node) -> Account:
    members = _members(node, "an account", _ACCOUNT)
    keys = []
    for key in ("accessKey", "secretKey"):
        item = members.get(key)
        text = None if item is None else _text(item, key)
        if item is None or text is None:
            raise YamlError(node.line, f"an account without {key}")
        if isinstance(item, Text) and item.is_ambiguous:
            raise YamlError(item.line, f"{key}: YAML reads this as no text; put it in quotes")
        if len(text) < KEY_LENGTH_MIN:
            raise YamlError(
                item.line, f"{key} has {len(text)} characters, at least {KEY_LENGTH_MIN} are needed"
            )
        keys.append(text)
    perms: dict[str, Permission] = {}
    topic_perms = _perms(members.get("topicPerms"), "topicPerms", perms)
    group_perms = _perms(members.get("groupPerms"), "groupPerms", perms, of_groups=True)
    white = members.get("whiteRemoteAddress")
    text = None if white is None else _text(white, "whiteRemoteAddress")
    return Account(
        access_key=keys[0],
        secret_key=keys[1],
        white=None if white is None or text is None else _addresses(text, white.line),
        admin=_flag(members.get("admin"), "admin"),
        default_topic_perm=_permission(members.get("defaultTopicPerm"), "defaultTopicPerm"),
        default_group_perm=_permission(members.get("defaultGroupPerm"), "defaultGroupPerm"),
        perms=perms,
        topic_perms=topic_perms,
        group_perms=group_perms,
    )


def _perms(
    node: Node | None, key: str, perms: dict[str, Permission], *, of_groups: bool = False
) -> tuple[str, ...]:
    spelt = []
    for item in _items(node, key):
        text = _text(item, f"an entry of {key}") or ""
        name, mark, word = (part.strip() for part in text.partition("="))
        if not mark or not name:
            raise YamlError(item.line, f"{key}: {text[:100]!r} is not NAME=PERMISSION")
        permission = _permission_of(word, key, item.line)
        resource = group_resource(name) if of_groups else name
        if resource in perms:
            raise YamlError(item.line, f"{key}: {name[:100]} appears twice; keep one")
        perms[resource] = permission
        spelt.append(f"{name}={word}")
    return tuple(spelt)


def _permission(node: Node | None, key: str) -> Permission:
    text = None if node is None else _text(node, key)
    return Permission.DENY if node is None or text is None else _permission_of(text, key, node.line)


def _permission_of(text: str, key: str, line: int) -> Permission:
    found = PERMISSIONS.get(text)
    if found is None:
        raise YamlError(line, f"{key}: {text[:100]!r} is no permission, allowed are {', '.join(PERMISSIONS)}")
    return found


def _flag(node: Node | None, key: str) -> bool:
    text = None if node is None else _text(node, key)
    if node is None or text is None:
        return False
    if text.lower() not in ("true", "false"):
        raise YamlError(node.line, f"{key}: {text[:100]!r} is neither true nor false")
    return text.lower() == "true"


def _version(node: Node | None) -> DataVersion:
    items = _items(node, "dataVersion")
    if not items:
        return DataVersion()
    members = _members(items[0], "dataVersion", _VERSION)
    numbers = {}
    for key, item in members.items():
        text = _text(item, key) or "0"
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise YamlError(item.line, f"{key}: {text[:100]!r} is no whole number")
        numbers[key] = int(text)
    return DataVersion(
        state_version=numbers.get("stateVersion", 0),
        timestamp=numbers.get("timestamp", 0),
        counter=numbers.get("counter", 0),
    )


def _members(node: Node, name: str, allowed: Sequence[str]) -> Mapping[str, Node]:
    if not isinstance(node, Members):
        raise YamlError(node.line, f"{name} must be keys with values: {', '.join(allowed)}")
    for key, value in node.members.items():
        if key not in allowed:
            raise YamlError(value.line, f"{key} is unknown, allowed are {', '.join(allowed)}")
    return node.members


def _items(node: Node | None, name: str) -> tuple[Node, ...]:
    if node is None or (isinstance(node, Text) and node.text is None):
        return ()
    if not isinstance(node, Items):
        raise YamlError(node.line, f"{name} must be a list")
    return node.items


def _text(node: Node, name: str) -> str | None:
    if not isinstance(node, Text):
        raise YamlError(node.line, f"{name} must be one value")
    return node.text or None


def _addresses(text: str, line: int) -> Addresses:
    try:
        return parse_addresses(text)
    except AddressError as error:
        raise YamlError(line, str(error)) from None


def spell_permission(permission: Permission) -> str:
    """Return a permission as the file spells it."""
    return next(word for word, value in PERMISSIONS.items() if value == permission)


def encode_acl_file(file: AclFile) -> bytes:
    """Return the text of an access file in a form that RocketMQ 4.9 can read, without comments."""
    lines = ["globalWhiteRemoteAddresses:" if file.white else "globalWhiteRemoteAddresses: []"]
    lines += _list((entry.text for entry in file.white), "")
    lines.append("accounts:" if file.accounts else "accounts: []")
    for account in file.accounts:
        lines.append(f"- accessKey: {spell_text(account.access_key)}")
        lines.append(f"  secretKey: {spell_text(account.secret_key)}")
        if account.white is not None:
            lines.append(f"  whiteRemoteAddress: {spell_text(account.white.text)}")
        lines.append(f"  admin: {str(account.admin).lower()}")
        lines.append(f"  defaultTopicPerm: {spell_permission(account.default_topic_perm)}")
        lines.append(f"  defaultGroupPerm: {spell_permission(account.default_group_perm)}")
        for key, perms in (("topicPerms", account.topic_perms), ("groupPerms", account.group_perms)):
            if perms:
                lines += [f"  {key}:", *_list(perms, "  ")]
    version = file.data_version
    lines += ["dataVersion:", f"- counter: {version.counter}", f"  timestamp: {version.timestamp}"]
    return "".join(f"{line}\n" for line in lines).encode()


def _list(texts: Iterable[str], indent: str) -> list[str]:
    return [f"{indent}- {spell_text(text)}" for text in texts]
