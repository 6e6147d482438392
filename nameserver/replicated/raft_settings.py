"""The raft engine's settings, from the nameserver's."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from routekeeper.nameserver.commands import ENTRY_BYTES_MAX
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.remoting.files import SETTINGS_SIZE_MAX, open_regular

logger = logging.getLogger(__name__)


def raft_config(settings: NamesrvSettings) -> RaftConfig:
    """Return the engine's settings; reads the shared secret, if one is named.

    Raises:
        RaftStartError: If the secret cannot be read.
    """
    secret = None
    if path := settings.raft_secret_file:
        try:
            with open(path, "rb", opener=open_regular) as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read(SETTINGS_SIZE_MAX + 1)
        except OSError as error:
            raise RaftStartError(f"raft: secret {path} cannot be read: {error.strerror}") from None
        if len(content) > SETTINGS_SIZE_MAX:
            raise RaftStartError(f"raft: secret {path} has more than {SETTINGS_SIZE_MAX} bytes")
        secret = content.strip()
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            warning = "raft secret %s can be read by others: its mode is %04o, 0600 is enough"
            logger.warning(warning, path, mode)
    return RaftConfig(
        me=settings.raft,
        peers=settings.members,
        listen=settings.raft_listen or None,
        data_dir=Path(settings.data_dir),
        durability=settings.durability,  # type: ignore[arg-type]  # one of CHOICES
        secret=secret,
        election_timeout_ms=settings.election_timeout_ms,
        entry_size_max=ENTRY_BYTES_MAX,
        http=settings.http_told,
        force_new_cluster=settings.force_new_cluster,
        tls_cert=_path(settings.raft_tls_cert),
        tls_key=_path(settings.raft_tls_key),
        tls_ca=_path(settings.raft_tls_ca),
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None
