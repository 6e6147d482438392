"""Security of a client's connections, from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import InvalidArgument

if TYPE_CHECKING:
    from routekeeper.remoting.transport.tls import Tls

    from .directory import Directory


def secured(directory: Directory) -> Tls | None:
    """Return what the client's connections need for TLS, None if they are plain.

    Raises:
        InvalidArgument: If a file cannot be used; names it.
    """
    config = directory.config.tls
    if config is None:
        return None
    from routekeeper.remoting.transport.tls import (  # 30 ms of loading that plain clients do not need
        Tls,
        TlsError,
        load,
    )

    try:
        context = load(
            ca_file=config.ca_file, cert_file=config.cert_file, key_file=config.key_file, check=config.check
        )
    except TlsError as error:
        raise InvalidArgument(str(error)) from None
    if config.nameservers:
        return Tls(context, lambda addr: True)
    return Tls(context, lambda addr: addr not in directory.nameservers.addrs)
