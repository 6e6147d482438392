"""Reload at SIGHUP: a server reads its watched files again, and the settings that can change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from routekeeper.remoting.disk_threads import DiskThreads
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.service_manager import ServiceManager
from routekeeper.remoting.threads import NoFreeThread

logger = logging.getLogger(__name__)

#: Longest time in seconds for reading one file, so that a hung disk does not delay the reload of other files.
LOOK_S: Final = 10.0
_UNCHANGED: Final = "unchanged"
_REFUSED: Final = "refused: "


class Watched(Protocol):
    """One watched file, or several files that belong together, such as a certificate and its key.

    :class:`routekeeper.remoting.watched_files.WatchedFiles` implements this protocol.

    Attributes:
        what: Name of the file or files in log lines.
    """

    @property
    def what(self) -> str: ...

    async def look(self) -> str:
        """Read the files again if they have changed.

        Return ``unchanged``, ``taken`` or ``refused: REASON``.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """Result of reading settings again.

    Attributes:
        changed: Settings that have changed and are now in force, by key.
        refused: Reasons for refused settings; each reason begins with the key of its setting.
        restart: Keys of settings that have changed in the file but need a restart.
    """

    changed: Mapping[str, str]
    refused: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


def compare_settings(
    *,
    former_file: Mapping[str, str],
    file: Mapping[str, str],
    before: Mapping[str, str],
    after: Mapping[str, str],
    reloadable: Collection[str],
) -> Reread:
    """Return the effect of a changed settings file on the settings in force.

    This function does no I/O.

    Args:
        former_file, file: Former and present content of the file, by key.
        before, after: Settings before and after the change, from all sources. Flags and the environment
            override the file.
        reloadable: Keys of settings that can change while a server runs.
    """
    differing = [key for key in after if before[key] != after[key]]
    outvoted = [
        key
        for key in sorted(file)
        if key in after
        and key not in differing
        and file[key] != former_file.get(key)
        and file[key].strip().lower() != after[key].lower()
    ]
    return Reread(
        changed={key: after[key] for key in differing if key in reloadable},
        refused=tuple(
            f"{key}: {after[key]} stays, a flag, the environment or a change at run time wins over the file"
            for key in outvoted
        ),
        restart=tuple(sorted(key for key in differing if key not in reloadable)),
    )


class SettingsFile:
    """The settings file of a server, and the content that is in force.

    Args:
        content: Content of the file at the server's start, by key.
        read: Returns the file's present content, by key; this call blocks.
        resolve: Returns all settings, by key, that result from the given content of the file; this call
            blocks.
        reloadable: Keys of settings that can change while the server runs.
        take: Puts changed settings in force. It is called on the event loop after each successful reading,
            even if no setting has changed.
        refusals: Exceptions that ``read`` and ``resolve`` raise if the file cannot be used.
    """

    def __init__(
        self,
        content: Mapping[str, str],
        *,
        read: Callable[[], Mapping[str, str]],
        resolve: Callable[[Mapping[str, str]], Mapping[str, str]],
        reloadable: Collection[str],
        take: Callable[[Mapping[str, str]], None],
        refusals: tuple[type[Exception], ...],
    ) -> None:
        self._content = content
        self._read, self._resolve, self._take = read, resolve, take
        self._reloadable = reloadable
        self._refusals = refusals
        self._thread = DiskThreads("settings")

    async def reread(self) -> Reread:
        """Read the file again and put changed settings in force; an unusable file changes nothing."""
        try:
            content, found = await asyncio.get_running_loop().run_in_executor(self._thread, self._compare)
        except self._refusals as error:
            return Reread(changed={}, refused=(f"settings: {error}",))
        self._take(found.changed)
        kept = {key: text for key, text in self._content.items() if key not in self._reloadable}
        self._content = kept | {key: text for key, text in content.items() if key in self._reloadable}
        return found

    def _compare(self) -> tuple[Mapping[str, str], Reread]:
        content = self._read()
        found = compare_settings(
            former_file=self._content,
            file=content,
            before=self._resolve(self._content),
            after=self._resolve(content),
            reloadable=self._reloadable,
        )
        return content, found


class Reload:
    """Task that reloads files and settings at SIGHUP, and logs the result in one line.

    If more signals arrive during a reload, one more reload follows.

    Args:
        watched: Returns the watched files.
        settings: Reads the settings again, and applies the settings that can change while the server runs.
    """

    def __init__(
        self,
        manager: ServiceManager,
        *,
        watched: Callable[[], Sequence[Watched]],
        settings: Callable[[], Awaitable[Reread]],
    ) -> None:
        self._manager = manager
        self._watched = watched
        self._settings = settings
        self._wanted = asyncio.Event()

    def begin(self) -> None:
        """Ask :meth:`run` for a reload. Call this on the event loop."""
        self._wanted.set()

    async def run(self) -> None:
        """Reload after each call of :meth:`begin`, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._manager.reloading()
            try:
                await self._reload()
            except Exception:  # a defect in the reload must not end a working server
                logger.error("reload failed", exc_info=True)
            self._manager.reloaded()

    async def _reload(self) -> None:
        watched = tuple(self._watched())
        settings, outcomes = await asyncio.gather(self._reread(), asyncio.gather(*map(_look, watched)))
        changed = [f"{key}={shortened(text)}" for key, text in settings.changed.items()]
        refused = list(settings.refused)
        for files, outcome in zip(watched, outcomes, strict=True):
            if outcome.startswith(_REFUSED):
                refused.append(f"{files.what}: {outcome.removeprefix(_REFUSED)}")
            elif outcome != _UNCHANGED:
                changed.append(files.what)
        values = (
            ", ".join(changed) or "nothing",
            "; ".join(map(shortened, refused)) or "nothing",
            ",".join(settings.restart) or "nothing",
        )
        level = logging.WARNING if refused else logging.INFO
        text = "reloaded changed=%s refused=%s needs_restart=%s"
        # Log this line at every log level: the operator must see it, even after a change of the level to
        # ERROR.
        logger.handle(logger.makeRecord(logger.name, level, __file__, 0, text, values, None))

    async def _reread(self) -> Reread:
        try:
            async with asyncio.timeout(LOOK_S):
                return await self._settings()
        except TimeoutError:
            return Reread(changed={}, refused=(f"settings: the file was not read within {LOOK_S:g} s",))
        except NoFreeThread as error:
            return Reread(changed={}, refused=(f"settings: no thread can be started: {error}",))


async def _look(watched: Watched) -> str:
    try:
        async with asyncio.timeout(LOOK_S):
            return await watched.look()
    except TimeoutError:
        return f"{_REFUSED}not read within {LOOK_S:g} s"
