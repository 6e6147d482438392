"""Check of the accounts and networks that may send requests.

The only I/O of this module is reading the access file.
"""

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
    """The accounts and networks of this nameserver, and the check of requests by them.

    Attributes:
        file: Path of the access file; None if accounts are not checked.
        accounts: Accounts of the access file; replaced when the file changes.
    """

    def __init__(self, settings: NamesrvSettings) -> None:
        self._mode = settings.acl
        self._networks = parse_networks(settings.admin_networks) if settings.admin_networks else None
        self.file = Path(settings.acl_file) if settings.acl != "off" else None
        self.accounts: Accounts | None = None

    @property
    def is_needed(self) -> bool:
        """True if any check is switched on."""
        return self.file is not None or self._networks is not None

    @property
    def guards_reads(self) -> bool:
        return self._mode == "all"

    def read(self) -> Accounts:
        """Read the access file and return its accounts; block while the disk is read.

        Raises:
            AclFileError: The file cannot be used.
        """
        assert self.file is not None
        return read_accounts([self.file], in_force=self.accounts)

    def denied(self, request: RemotingCommand, host: str, *, is_stranger: bool) -> Denied | None:
        """Return the refusal of a request; None if the request may be served.

        Args:
            is_stranger: True if the request's broker never registered over this connection. This matters
                only for request 104 (unregistration).
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
        """Return True if a known account has signed a request with these arguments and without a body.

        The result holds for every connection, as long as the access file does not change.
        """
        assert self.accounts is not None
        try:
            check_signature(account_of(self.accounts, fields), fields, b"", version=version)
        except AccessDenied:
            return False
        return True
