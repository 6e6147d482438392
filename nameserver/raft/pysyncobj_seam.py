"""A private copy of PySyncObj 0.3.17 in which clock, random source, poller, journal and pickle are replaced.

The copy is loaded for this package only, so the installed module stays unchanged. Only :mod:`.library` uses
this module.
"""

from __future__ import annotations

import _socket
import importlib.util
import math
import random
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

LIBRARY_VERSION: Final = "0.3.17"
#: Names in the library's module that are replaced.
MODULE_NAMES: Final = ("monotonicTime", "random", "pickle", "createPoller", "createJournal", "SyncObj")


class _NoPickle:
    """The substitute for the library's pickle module. Any use of it raises an error.

    Unpickling data from the network would allow a peer to run code in this process.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"pickle.{name} reached: a library path that must not be used")


class _NoPoller:
    """A poller that does nothing, because RouteKeeper's event loop watches the sockets."""

    def subscribe(self, *_: object) -> None: ...
    def unsubscribe(self, *_: object) -> None: ...
    def poll(self, _: float) -> None: ...


class CallContext:
    """Clock and random source for the present call into the library.

    The library reads clock and random source from its module. The library runs on one thread, and each method
    of :class:`.Library` sets both values before it calls the library. So members with different clocks can
    share a process in tests and in the simulator.
    """

    def __init__(self) -> None:
        self.now = math.nan
        self.random: Callable[[], float] = random.Random(0).random


context: Final = CallContext()


def restore_socket() -> None:
    """Restore ``socket.inet_ntop``, which the library replaces (its defect D38).

    The library's replacement is for Windows, and fails on other systems.
    """
    socket.inet_ntop = _socket.inet_ntop


_spec: Final = importlib.util.find_spec("pysyncobj.syncobj")
assert _spec is not None
assert _spec.loader is not None
module: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(module)
restore_socket()
missing_names: Final = tuple(name for name in MODULE_NAMES if not hasattr(module, name))
module.monotonicTime = partial(getattr, context, "now")
module.random = context
module.pickle = _NoPickle()
module.createPoller = lambda _kind: _NoPoller()
module.createJournal = lambda log: log
