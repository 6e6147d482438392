"""Access control of a broker by accounts and networks: access files and the requests that change them."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path
from typing import Final

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.errors import SettingError
from routekeeper.broker.store.files import DISK, write_atomic
from routekeeper.remoting.acl import changes
from routekeeper.remoting.acl.access import Denied, denied_by_rule, outside_networks
from routekeeper.remoting.acl.accounts import Accounts, AclFileError
from routekeeper.remoting.acl.addresses import parse_networks
from routekeeper.remoting.acl.loading import (
    acl_files,
    acl_folders,
    read_accounts,
    read_keys,
    shared_with_others,
)
from routekeeper.remoting.acl.rules import broker_rule
from routekeeper.remoting.acl.signing import Keys
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.wall_clock import now_ms
from routekeeper.remoting.watched_files import WatchedFiles

logger = logging.getLogger(__name__)

#: Requests that change accounts, each with the response code for a change that failed.
_FAILED: Final = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    RequestCode.DELETE_ACL_CONFIG: ResponseCode.DELETE_ACL_CONFIG_FAILED,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
}
CHANGES: Final = frozenset(_FAILED)
#: All requests about accounts. A broker without accounts answers that it does not support these requests.
ACCOUNT_REQUESTS: Final = CHANGES | {
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
}


class BrokerAccess:
    """Access control that checks every request by networks and accounts, and serves account requests.

    The constructor blocks, because it reads the access files.

    Attributes:
        files: The access files, or None if the broker does not check accounts.

    Raises:
        SettingError: If the access files cannot be used.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._networks = parse_networks(config.admin_networks) if config.admin_networks else None
        self._default = Path(config.acl_file or Path(config.rocketmq_home, "conf", "plain_acl.yml"))
        self._changing = asyncio.Lock()
        self._accounts: Accounts | None = None
        self.files: WatchedFiles[tuple[Accounts, list[Path]]] | None = None
        if not config.acl_enable:
            return
        try:
            self.files = WatchedFiles("access files", self._places()[1], self._read, self._take)
        except (AclFileError, OSError) as error:
            raise SettingError(f"aclEnable=true: {error}") from None
        self._accounts = self.files.value[0]
        for warning in shared_with_others(self._places()[0]):
            logger.warning("access file warning=%s", warning)

    @property
    def is_needed(self) -> bool:
        """True if the broker checks accounts or networks."""
        return self._accounts is not None or self._networks is not None

    @property
    def checks_accounts(self) -> bool:
        return self._accounts is not None

    def denied(self, request: RemotingCommand, host: str) -> Denied | None:
        """Return the refusal of a request, or None if the broker may serve the request."""
        rule = broker_rule(request.code)
        if rule.admin:
            denied = outside_networks(request, host, self._networks)
            if denied is not None:
                return denied
        if self._accounts is None:
            return None
        return denied_by_rule(self._accounts, request, host, rule)

    async def serve(self, request: RemotingCommand, *, broker_addr: str) -> RemotingCommand:
        """Serve a request about accounts.

        Args:
            broker_addr: Address under which this broker is registered with nameservers.
        """
        assert self._accounts is not None
        if request.code == RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG:
            return request.reply(body=changes.encode_accounts(self._accounts))
        if request.code == RequestCode.GET_BROKER_CLUSTER_ACL_INFO:
            default = self._accounts.files.get(str(self._default))
            version = DataVersion() if default is None else default.data_version
            fields = {
                "version": version.encode().decode(),
                "allAclFileVersion": changes.encode_versions(self._accounts),
                "brokerName": self._config.broker_name,
                "brokerAddr": broker_addr,
                "clusterName": self._config.cluster_name,
            }
            return request.reply(ext_fields=fields)
        try:
            async with self._changing:
                await self._change(request)
        except changes.ChangeFailed as failure:
            return request.reply(_FAILED[RequestCode(request.code)], remark=str(failure))
        return request.reply()

    async def _change(self, request: RemotingCommand) -> None:
        """Change an access file as a request asks, and apply the changed file.

        Raises:
            ChangeFailed: If the file cannot be written, or if another access file cannot be used. In the
                second case the changed file is written, but not in force.
        """
        assert self.files is not None
        # An operator may have edited the files since the last read. Read the files again first. Otherwise
        # these edits would be lost.
        outcome = await self.files.look()
        if outcome.startswith("refused"):
            raise changes.ChangeFailed(f"the access files cannot be used, nothing was changed: {outcome}")
        accounts, fields = self.files.value[0], request.ext_fields
        if request.code == RequestCode.UPDATE_AND_CREATE_ACL_CONFIG:
            name, content = changes.put_account(
                accounts, fields, default_file=str(self._default), now_ms=now_ms()
            )
        elif request.code == RequestCode.DELETE_ACL_CONFIG:
            name, content = changes.delete_account(accounts, fields, now_ms=now_ms())
        else:
            name, content = changes.put_white(
                accounts, fields, default_file=str(self._default), now_ms=now_ms()
            )
        try:
            await self.files.change(lambda: _replace(Path(name), content))
        except OSError as error:
            raise changes.ChangeFailed(f"{name} cannot be written: {error.strerror}") from None
        outcome = await self.files.look()
        if outcome.startswith("refused"):
            raise changes.ChangeFailed(f"{name} is written, and not in force: {outcome}")

    def _places(self) -> tuple[list[Path], list[Path]]:
        """Return the access files, and all files and folders that must be watched for changes."""
        if self._config.acl_file:
            return [self._default], [self._default]
        folders = acl_folders(self._default.parent / "acl")
        files = [*acl_files(folders), self._default]
        return files, [*folders, *files]

    def _read(self) -> tuple[Accounts, list[Path]]:
        files, watched = self._places()
        return read_accounts(files, may_lack=self._default, in_force=self._accounts), watched

    def _take(self, value: tuple[Accounts, list[Path]]) -> None:
        assert self.files is not None
        self._accounts, watched = value
        self.files.paths = tuple(watched)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file and keep its mode. This call blocks."""
    path = path.resolve()  # replace the target of a symbolic link, not the link
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mode = 0o600
    write_atomic(DISK, path, content)
    if mode != 0o600:
        os.chmod(path, mode)


def watch_namesrv_keys(config: BrokerConfig) -> WatchedFiles[Keys] | None:
    """Return the watched file of the keys that sign requests to nameservers, or None without such a file.

    Raises:
        SettingError: If the keys cannot be used.
    """
    if not config.namesrv_acl_file:
        return None
    path = Path(config.namesrv_acl_file)
    in_force: Keys | None = None

    def take(keys: Keys) -> None:
        nonlocal in_force
        in_force = keys

    try:
        files = WatchedFiles("keys for nameservers", [path], lambda: read_keys(path, in_force=in_force), take)
    except AclFileError as error:
        raise SettingError(f"namesrvAclFile: {error}") from None
    take(files.value)
    for warning in shared_with_others([path]):
        logger.warning("keys for nameservers warning=%s", warning)
    return files
