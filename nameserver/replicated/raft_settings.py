"""The raft engine's settings, derived from the nameserver's settings."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from routekeeper.nameserver.commands import ENTRY_BYTES_MAX
from routekeeper.nameserver.raft.node.secret_file import read_secrets
from routekeeper.nameserver.raft.types import RaftConfig
from routekeeper.nameserver.settings.declared import NamesrvSettings

logger = logging.getLogger(__name__)


def raft_config(settings: NamesrvSettings) -> RaftConfig:
    """Return the engine's settings; read the shared secret if the settings name its file.

    Raises:
        RaftStartError: The secret cannot be read.
    """
    secret: bytes | None = None
    others: tuple[bytes, ...] = ()
    if path := settings.raft_secret_file:
        secret, *more = read_secrets(Path(path))
        others = tuple(more)
        mode = stat.S_IMODE(os.stat(path).st_mode)
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
        other_secrets=others,
        secret_file=_path(settings.raft_secret_file),
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
