"""A pytest hook that runs tests which are coroutine functions."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest

from tests.remoting.loops import Body


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function, by its fixture ``run`` if it has one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    run: Any = pyfuncitem.funcargs.get("run", _run)
    run(functools.partial(pyfuncitem.obj, **arguments))
    return True


def _run(body: Body) -> None:
    asyncio.run(body())
