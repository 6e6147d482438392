"""This member's certificate as time goes on: said before it ends, and read again when its files change."""

from __future__ import annotations

from collections.abc import Callable

from routekeeper.nameserver.raft.links import tls
from routekeeper.nameserver.raft.links.tls import TlsContexts
from routekeeper.nameserver.raft.types import RaftConfig
from routekeeper.remoting.certificates import CertificateFiles


class Certificates(CertificateFiles[TlsContexts]):
    """The files of ``--raft-tls-*``, and what was read of them last. Reads them at once; blocking.

    They end with this member's certificate, or with the last authority if that is earlier.

    Args:
        config: Names all three.
        take: Called with newer contexts, on the loop: connections from now on use them.

    Raises:
        RaftStartError: They cannot be used.
    """

    def __init__(self, config: RaftConfig, take: Callable[[TlsContexts], None]) -> None:
        cert, key, ca = config.tls_cert, config.tls_key, config.tls_ca
        assert cert is not None
        assert key is not None
        assert ca is not None
        super().__init__(
            "raft certificate",
            (cert, key, ca),
            lambda: tls.load(me=config.me, cert=cert, key=key, ca=ca),
            take,
            ends_at=lambda contexts: contexts.expires_at,
        )
