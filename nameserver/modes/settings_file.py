"""Settings changed at run time: put in force on this nameserver alone, and kept in its file."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from nameserver.handlers import SettingsChange
from nameserver.settings.changes import LiveSettings
from nameserver.settings.files import save_settings_file
from nameserver.types import Answer

from .interface import refusal

logger = logging.getLogger(__name__)


class SettingsFile:
    """Changes settings, one after the other."""

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings
        self._writing = asyncio.Lock()

    async def change(self, change: SettingsChange) -> Answer:
        """Put settings in force and keep them."""
        self._settings.change(change.after, change.changes)
        for key, value in change.changes.items():
            logger.info("setting changed key=%s value=%s", key, value)
        path = Path(change.after.store_path)
        async with self._writing:
            try:
                await asyncio.to_thread(save_settings_file, path, dict(self._settings.stored))
            except OSError as error:
                logger.error("settings not kept file=%s error=%s", path, error)
                return refusal(f"in force, but not kept in a file: {error}")
        return change.answer

    async def close(self) -> None:
        """Return once nothing is being written."""
        async with self._writing:
            pass
