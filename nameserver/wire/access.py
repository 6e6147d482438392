"""Accounts and networks that may send requests to this nameserver; pure but for the access file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.remoting.acl.access import (
    AccessDenied,
    Denied,
    account_of,
    check_signature,
    denied_by_asks,
    outside_networks,
)
from routekeeper.remoting.acl.accounts import Accounts
from routekeeper.remoting.acl.addresses import parse_networks
from routekeeper.remoting.acl.loading import read_accounts
from routekeeper.remoting.acl.rules import is_change, namesrv_asks
from routekeeper.remoting.command import RemotingCommand


class AccessControl:
    """The check of each request by networks and accounts.

    Attributes:
        file: The access file; None without one.
        accounts: Accounts of that file; replaced when it changes.
    """

    def __init__(self, settings: NamesrvSettings) -> None:
        self._mode = settings.acl
        self._networks = parse_networks(settings.admin_networks) if settings.admin_networks else None
        self.file = Path(settings.acl_file) if settings.acl != "off" else None
        self.accounts: Accounts | None = None

    @property
    def is_needed(self) -> bool:
        """Return whether any check is switched on."""
        return self.file is not None or self._networks is not None

    @property
    def guards_reads(self) -> bool:
        return self._mode == "all"

    def read(self) -> Accounts:
        """Read the access file and return its accounts; blocks.

        Raises:
            AclFileError: If it cannot be used.
        """
        assert self.file is not None
        return read_accounts([self.file])

    def denied(self, request: RemotingCommand, host: str, *, is_stranger: bool) -> Denied | None:
        """Return the refusal of a request; None if it may be served.

        Args:
            is_stranger: As for :func:`.rules.namesrv_asks`.
        """
        if is_change(request.code, is_stranger=is_stranger):
            denied = outside_networks(request, host, self._networks)
            if denied is not None:
                return denied
        if self.accounts is None:
            return None
        asks = namesrv_asks(request.code, self._mode, is_stranger=is_stranger)
        return denied_by_asks(self.accounts, request, host, asks)

    def is_signed(self, fields: Mapping[str, str], version: int) -> bool:
        """Return whether arguments without a body carry the signature of an account.

        The result is valid for every connection, as long as the access file does not change.
        """
        assert self.accounts is not None
        try:
            check_signature(account_of(self.accounts, fields), fields, b"", version=version)
        except AccessDenied:
            return False
        return True
