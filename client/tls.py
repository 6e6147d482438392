"""TLS for a client's connections, made from the client's settings."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from routekeeper.remoting.files import signature

from .errors import InvalidArgument

if TYPE_CHECKING:
    import ssl

    from routekeeper.remoting.transport.tls import Tls

    from .config import TlsConfig
    from .directory import Directory

log = logging.getLogger(__name__)


def secured(directory: Directory) -> Tls | None:
    """Return the TLS object for the client's connections, or None if TLS is off.

    Raises:
        InvalidArgument: If a file cannot be used. The error names the file.
    """
    config = directory.config.tls
    if config is None:
        return None
    # Import here: loading TLS takes 30 ms, and clients without TLS do not use it.
    from routekeeper.remoting.transport.tls import Tls, TlsError

    try:
        files = _Files(config)
    except TlsError as error:
        raise InvalidArgument(str(error)) from None
    if config.nameservers:
        return Tls(files.context, lambda addr: True)
    return Tls(files.context, lambda addr: addr not in directory.nameservers.addrs)


class _Files:
    """The files with a client's trusted authorities, certificate and key.

    If a file has changed, the next new connection reads the files again. If the new content is unusable, the
    old content stays in use, and one WARNING gives the reason.

    Raises:
        TlsError: If the files cannot be used.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._paths = tuple(map(Path, filter(None, (config.ca_file, config.cert_file, config.key_file))))
        self._lock = threading.Lock()
        # Compute the signature of the files before reading the files. If a file changes between the two
        # steps, the next call of context() then notices the change.
        self._read = self._refused = signature(self._paths)
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection."""
        from routekeeper.remoting.transport.tls import TlsError

        with self._lock:
            found = signature(self._paths)
            if found == self._read:
                return self._context
            # An administrator replaces the files one after the other, and a new certificate does not fit an
            # old key. So keep the old content in use until both files are new.
            try:
                self._context = self._load()
            except TlsError as error:
                if found != self._refused:
                    log.warning("tls files not taken, the former ones go on error=%s", error)
                self._refused = found
            else:
                self._read = self._refused = found
                log.info("tls files read again files=%s", ",".join(map(str, self._paths)))
            return self._context

    def _load(self) -> ssl.SSLContext:
        from routekeeper.remoting.transport.tls import load

        config = self._config
        return load(
            ca_file=config.ca_file,
            cert_file=config.cert_file,
            key_file=config.key_file,
            key_password=config.key_password,
            check=config.check,
        )
