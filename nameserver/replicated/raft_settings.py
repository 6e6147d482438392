"""The raft engine's settings, from the nameserver's."""

from __future__ import annotations

from pathlib import Path

from nameserver.commands import ENTRY_BYTES_MAX
from nameserver.raft import RaftConfig, RaftStartError
from nameserver.settings.declared import NamesrvSettings


def raft_config(settings: NamesrvSettings) -> RaftConfig:
    """Return the engine's settings; reads the shared secret, if one is named.

    Raises:
        RaftStartError: If the secret cannot be read.
    """
    secret = None
    if settings.raft_secret_file:
        try:
            secret = Path(settings.raft_secret_file).read_bytes().strip()
        except OSError as error:
            path = settings.raft_secret_file
            raise RaftStartError(f"raft: secret {path} cannot be read: {error.strerror}") from None
    return RaftConfig(
        me=settings.raft,
        peers=settings.members,
        listen=settings.raft_listen or None,
        data_dir=Path(settings.data_dir),
        durability=settings.durability,  # type: ignore[arg-type]  # checked by config.validate
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
