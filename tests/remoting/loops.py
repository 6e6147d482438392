"""Types for tests that use the fixture ``run`` of conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

Body = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Body], None]
