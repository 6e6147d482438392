"""PySyncObj 0.3.17, loaded a second time for us alone; the installed module stays as it is.

Its clock, random source, poller, journal and pickle are ours. :mod:`.library` is what uses it.
"""

from __future__ import annotations

import _socket
import importlib.util
import math
import random
import socket
from typing import Any, Final, NoReturn

LIBRARY_VERSION: Final = "0.3.17"
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


class CallContext:
    """Clock and chance of the call into the library that is under way: it knows only module-level ones.

    Everything runs on one thread, and each method of :class:`.Library` that lets the library look at either
    sets both first, so that members with different clocks can share a process (tests, simulator).
    """

    now = math.nan
    rng = random.Random(0)

    def random(self) -> float:
        return self.rng.random()


context: Final = CallContext()


def restore_socket() -> None:
    """Take back the library's own ``socket.inet_ntop``: it is for Windows, and fails elsewhere (D38)."""
    socket.inet_ntop = _socket.inet_ntop


_spec: Final = importlib.util.find_spec("pysyncobj.syncobj")
assert _spec is not None
assert _spec.loader is not None
module: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(module)
restore_socket()
missing_names: Final = tuple(name for name in MODULE_NAMES if not hasattr(module, name))
module.monotonicTime = lambda: context.now
module.random = context
module.pickle = _NoPickle()
module.createPoller = lambda _kind: _NoPoller()
module.createJournal = lambda log: log
