"""What each part of a member holds of the others; no behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nameserver.raft.library import Library

from .effects import Effects
from .electorate import Electorate
from .patience import Patience
from .surroundings import Surroundings

if TYPE_CHECKING:
    from .core import RaftCore


class CorePart:
    """A part of the core: elections, following, leading, applying."""

    def __init__(
        self, given: Surroundings, library: Library, electorate: Electorate, patience: Patience
    ) -> None:
        self._me: Final = given.me
        self._peer_log = given.peer_log
        self._log = given.log
        self._host = given.host
        self._clock = given.clock
        self._contact = given.contact
        self._period = given.period
        self._library = library
        self._electorate = electorate
        self._patience = patience


class Part(CorePart):
    """A part around the core: it leaves effects, and asks the parts of the core."""

    def __init__(self, given: Surroundings, effects: Effects, core: RaftCore) -> None:
        super().__init__(given, core.library, core.electorate, core.patience)
        self._effects = effects
        self._following = core.following
        self._leading = core.leading
