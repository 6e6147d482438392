"""Settings changed at run time: put in force on this nameserver alone, and kept in its file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nameserver.handlers import DONE, SettingsChange
from nameserver.settings.changes import LiveSettings
from nameserver.settings.files import save_settings_file
from nameserver.types import Answer, refusal

from .kept_file import KeptFile

logger = logging.getLogger(__name__)


class SettingsFile(KeptFile):
    """Changes settings, and keeps them."""

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings
        path = Path(settings.current.store_path)
        super().__init__("settings", "kept", path=path, write=self._write_settings)

    async def change(self, change: SettingsChange) -> Answer:
        """Put settings in force and keep them."""
        self._settings.change(change.after, change.changes)
        for key, value in change.changes.items():
            logger.info("setting changed key=%s value=%s", key, value)
        self.changed()
        failure = await self.keep()
        return DONE if failure is None else refusal(failure)

    def _write_settings(self) -> Callable[[], None]:
        return partial(save_settings_file, self._path, dict(self._settings.stored))
