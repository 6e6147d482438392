"""This member's certificate files, with a reload when they change and a warning before they expire."""

from __future__ import annotations

from collections.abc import Callable

from routekeeper.nameserver.raft.links import tls
from routekeeper.nameserver.raft.links.tls import TlsContexts
from routekeeper.nameserver.raft.types import RaftConfig
from routekeeper.remoting.certificates import CertificateFiles


class Certificates(CertificateFiles[TlsContexts]):
    """The files of ``--raft-tls-*``, and the TLS contexts made from their last valid content.

    The contexts expire when this member's certificate expires, or when the last of the authorities expires,
    whichever is earlier. Methods that read the files block.

    Args:
        config: The settings with the paths of the certificate, the key and the authorities.
        take: Called on the loop with newer contexts, which new connections must use.

    Raises:
        RaftStartError: The files cannot be used.
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
