"""The file with the secret that all members of a raft group share."""

from __future__ import annotations

from pathlib import Path

from routekeeper.nameserver.raft.types import SECRET_SIZE_MIN, RaftStartError, secrets_in
from routekeeper.remoting.files import SETTINGS_SIZE_MAX, read_regular


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Return the secrets in the file, the preferred secret first. The call blocks.

    Raises:
        RaftStartError: The file cannot be read, or its first secret is too short.
    """
    try:
        content = read_regular(path, size_max=SETTINGS_SIZE_MAX)
    except OSError as error:
        raise RaftStartError(f"raft: secret {path} cannot be read: {error.strerror}") from None
    secrets = secrets_in(content)
    if len(secrets[0]) < SECRET_SIZE_MIN:
        raise RaftStartError(
            f"raft: the secret has {len(secrets[0])} bytes, at least {SECRET_SIZE_MIN} are needed"
        )
    return secrets
