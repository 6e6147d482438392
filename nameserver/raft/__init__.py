"""The Raft engine under the replicated nameserver: the only package that knows PySyncObj."""

from .member import RaftMember
from .types import Durability, RaftConfig, RaftStartError, Role, StateMachine, StopMember

__all__ = ["Durability", "RaftConfig", "RaftMember", "RaftStartError", "Role", "StateMachine", "StopMember"]
