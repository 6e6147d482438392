"""The Raft engine under the replicated nameserver: the only package that knows PySyncObj."""

from .member import RaftMember
from .types import (
    ChangeRefused,
    ChangeUnknown,
    Durability,
    NotLeader,
    RaftConfig,
    RaftStartError,
    Role,
    SnapshotInfo,
    StateMachine,
    StopMember,
)

__all__ = [
    "ChangeRefused",
    "ChangeUnknown",
    "Durability",
    "NotLeader",
    "RaftConfig",
    "RaftMember",
    "RaftStartError",
    "Role",
    "SnapshotInfo",
    "StateMachine",
    "StopMember",
]
