"""Requests 50 to 54 of RocketMQ 4.9, which change or show the accounts of a broker.

Source: PlainPermissionManager and AdminBrokerProcessor, RocketMQ 4.9. This module differs from RocketMQ in
two points. No answer contains a secret. A path in a request can only select one of the known access files,
and no other file is opened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from routekeeper.remoting.acl.accounts import (
    KEY_LENGTH_MIN,
    PERMISSIONS,
    WHITE_MAX,
    Account,
    Accounts,
    AclFile,
    AclFileError,
    Permission,
    encode_acl_file,
    group_resource,
    merge_files,
    parse_acl_file,
    spell_permission,
)
from routekeeper.remoting.acl.addresses import AddressError, parse_addresses

#: Text that answers contain in place of a secret. It is too short for a secret. So a client that sends it
#: back in a change cannot overwrite the real secret.
MASK: Final = "******"
#: Matches an entry of a list; commas inside braces belong to the entry. No character is examined more than
#: twice, because an operator's request may contain 1 MiB of commas.
_ENTRY: Final = re.compile(r"(?:[^,{]++|\{[^{}]*+\}|\{)++")


class ChangeFailed(Exception):
    """Error: a change cannot be made; the text is the remark of the answer."""


def put_account(
    accounts: Accounts, fields: Mapping[str, str], *, default_file: str, now_ms: int
) -> tuple[str, bytes]:
    """Create or change an account (request 50): return the name and the new text of its access file.

    The caller must write the file. An absent argument leaves an existing account's value unchanged. There is
    one exception: without the argument ``admin``, the account is no longer an admin.

    Raises:
        ChangeFailed: The resulting account would be invalid.
    """
    access_key, secret_key = fields.get("accessKey", ""), fields.get("secretKey", "")
    if len(access_key) < KEY_LENGTH_MIN or len(secret_key) < KEY_LENGTH_MIN:
        raise ChangeFailed(
            f"The accessKey={access_key} and secretKey={MASK} cannot be null and length should longer than 6"
        )
    name = _file_of(accounts, access_key) or default_file
    account = accounts.by_key.get(access_key) or Account(access_key=access_key, secret_key=secret_key)
    account = replace(account, secret_key=secret_key, admin=fields.get("admin", "").lower() == "true")
    if (text := fields.get("whiteRemoteAddress")) is not None:
        try:
            account = replace(account, white=parse_addresses(text) if text.strip() else None)
        except AddressError as error:
            raise ChangeFailed(str(error)) from None
    if text := fields.get("defaultTopicPerm"):
        account = replace(account, default_topic_perm=_permission(text, text))
    if text := fields.get("defaultGroupPerm"):
        account = replace(account, default_group_perm=_permission(text, text))
    if text := fields.get("topicPerms"):
        account = replace(account, topic_perms=_perms(text))
    if text := fields.get("groupPerms"):
        account = replace(account, group_perms=_perms(text))
    others = [one for one in _content(accounts, name).accounts if one.access_key != access_key]
    return _changed(accounts, name, replace(_content(accounts, name), accounts=(*others, account)), now_ms)


def delete_account(accounts: Accounts, fields: Mapping[str, str], *, now_ms: int) -> tuple[str, bytes]:
    """Delete an account (request 51): return the name and the new text of its access file.

    The caller must write the file.

    Raises:
        ChangeFailed: The account does not exist.
    """
    access_key = fields.get("accessKey", "")
    name = _file_of(accounts, access_key)
    if name is None:
        raise ChangeFailed(
            f"The accesskey[{access_key}] corresponding to accessConfig has been deleted failed."
        )
    rest = tuple(one for one in _content(accounts, name).accounts if one.access_key != access_key)
    return _changed(accounts, name, replace(_content(accounts, name), accounts=rest), now_ms)


def put_white(
    accounts: Accounts, fields: Mapping[str, str], *, default_file: str, now_ms: int
) -> tuple[str, bytes]:
    """Replace a white list (request 53): return the name and the new text of its access file.

    The caller must write the file.

    Raises:
        ChangeFailed: The request contains no list or a wrong entry, or it names a file that is not an access
            file.
    """
    listed = fields.get("globalWhiteAddrs")
    name = fields.get("aclFileFullPath") or default_file
    if listed is None or (name != default_file and name not in accounts.files):
        raise ChangeFailed(f"The globalWhiteAddresses[{listed}] has been updated failed.")
    entries = [text for text in _ENTRY.findall(listed) if text.strip()]
    if len(entries) > WHITE_MAX:
        raise ChangeFailed(f"globalWhiteAddrs: {len(entries)} entries, allowed are {WHITE_MAX}")
    try:
        white = tuple(map(parse_addresses, entries))
    except AddressError as error:
        raise ChangeFailed(str(error)) from None
    return _changed(accounts, name, replace(_content(accounts, name), white=white), now_ms)


def encode_versions(accounts: Accounts) -> str:
    """Return the versions of all access files as JSON (request 52)."""
    return orjson.dumps({name: file.data_version.to_json() for name, file in accounts.files.items()}).decode()


def encode_accounts(accounts: Accounts) -> bytes:
    """Return all white lists and accounts as JSON, with masked secrets (request 54)."""
    return orjson.dumps(
        {
            "globalWhiteAddrs": [entry.text for entry in accounts.white],
            "plainAccessConfigs": [_shown(account) for account in accounts.by_key.values()],
        }
    )


def _shown(account: Account) -> dict[str, Any]:
    return {
        "accessKey": account.access_key,
        "admin": account.admin,
        "defaultGroupPerm": spell_permission(account.default_group_perm),
        "defaultTopicPerm": spell_permission(account.default_topic_perm),
        "groupPerms": list(account.group_perms),
        "secretKey": MASK,
        "topicPerms": list(account.topic_perms),
        "whiteRemoteAddress": None if account.white is None else account.white.text,
    }


def _file_of(accounts: Accounts, access_key: str) -> str | None:
    for name, file in accounts.files.items():
        if any(account.access_key == access_key for account in file.accounts):
            return name
    return None


def _content(accounts: Accounts, name: str) -> AclFile:
    return accounts.files.get(name) or AclFile()


def _changed(accounts: Accounts, name: str, file: AclFile, now_ms: int) -> tuple[str, bytes]:
    content = encode_acl_file(replace(file, data_version=file.data_version.advanced(now_ms=now_ms)))
    try:
        merge_files({**accounts.files, name: parse_acl_file(content, name)})
    except AclFileError as error:
        raise ChangeFailed(str(error)) from None
    return name, content


def _perms(text: str) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for entry in text.split(","):
        name, mark, word = (part.strip() for part in entry.partition("="))
        if not mark or not name or "=" in word:
            raise ChangeFailed(
                f"Parse Resource format error for {entry}.\n"
                "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
            )
        _permission(word, entry)
        seen[group_resource(name)] = f"{name}={word}"
    return tuple(seen.values())


def _permission(word: str, entry: str) -> Permission:
    found = PERMISSIONS.get(word.strip())
    if found is None:
        raise ChangeFailed(
            f"Parse resource permission error for {entry}.\n"
            "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
        )
    return found
