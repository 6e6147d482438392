"""PySyncObj 0.3.17, loaded a second time for us alone: its clock, random source, poller, journal and pickle
are ours.

The installed module stays as it is. What we lean on is private, so the version is pinned exactly, and each
name is checked at start.
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NoReturn

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport as LibraryTransport

from .types import RaftStartError

__all__ = ["LibraryTransport", "Node", "SyncObj", "SyncObjConf", "check_library", "module", "seam"]

LIBRARY_VERSION: Final = "0.3.17"
#: Methods of the library that are overridden or called by their private names.
PRIVATE_METHODS: Final = (
    "_onTick",
    "_applyCommand",
    "_checkCommandsToApply",
    "_SyncObj__onMessageReceived",
    "_SyncObj__onNodeConnected",
    "_SyncObj__onNodeDisconnected",
    "_SyncObj__doApplyCommand",
    "_SyncObj__applyLogEntries",
    "_SyncObj__parseChangeClusterRequest",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__sendNextNodeIdx",
    "_SyncObj__onBecomeLeader",
    "_SyncObj__setState",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__getCurrentLogIndex",
    "_SyncObj__getCurrentLogTerm",
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__tryLogCompaction",
    "_SyncObj__loadDumpFile",
)
#: Attributes of its objects that are read or set.
PRIVATE_ATTRIBUTES: Final = (
    "_SyncObj__raftState",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftLeader",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__lastResponseTime",
    "_SyncObj__transferInProgress",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__noopIDx",
    "_SyncObj__connectedNodes",
    "_SyncObj__votedForNodeId",
    "_SyncObj__otherNodes",
)
#: Names of its module that are replaced.
MODULE_NAMES: Final = ("monotonicTime", "random", "pickle", "createPoller", "createJournal", "SyncObj")


class _NoPickle:
    """Stands where the library has pickle: nothing is ever loaded or dumped through it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"pickle.{name} reached: a library path that must not be used")


class _NoPoller:
    """The event loop does what the library's poller would."""

    def subscribe(self, *_: object) -> None: ...
    def unsubscribe(self, *_: object) -> None: ...
    def poll(self, _: float) -> None: ...


class Seam:
    """Clock and random source of the core that runs right now; the library knows only module-level ones.

    Everything runs on one thread and each entry into a core sets both, so cores with different clocks can
    share a process (tests, simulator).
    """

    def __init__(self) -> None:
        self.clock: Callable[[], float] = lambda: math.nan
        self.rng = random.Random(0)

    def random(self) -> float:
        return self.rng.random()


seam: Final = Seam()


def _load_library() -> ModuleType:
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    if spec is None or spec.loader is None:
        raise RaftStartError(f"raft: pysyncobj {LIBRARY_VERSION} is not installed")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


module: Any = _load_library()
_missing_module_names: Final = tuple(name for name in MODULE_NAMES if not hasattr(module, name))
module.monotonicTime = lambda: seam.clock()
module.random = seam
module.pickle = _NoPickle()
module.createPoller = lambda _kind: _NoPoller()
module.createJournal = lambda log: log


def check_library(core: object | None = None) -> None:
    """Make sure that the library is the one this module was written for.

    Raises:
        RaftStartError: If its version differs or a private name is gone.
    """
    missing = [name for name in PRIVATE_METHODS if not callable(getattr(module.SyncObj, name, None))]
    missing += _missing_module_names
    if core is not None:
        missing += [name for name in PRIVATE_ATTRIBUTES if name not in vars(core)]
    if module.VERSION != LIBRARY_VERSION or missing:
        raise RaftStartError(
            f"raft: needs pysyncobj {LIBRARY_VERSION}, found {module.VERSION}"
            + (f" without {', '.join(missing)}" if missing else "")
        )


SyncObj: Any = module.SyncObj
