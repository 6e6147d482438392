"""The command ``mqbench play``, from its command line until all started processes have ended."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aiohttp import web

from routekeeper.bench.arms.servers import java_missing
from routekeeper.bench.plan import PlanError
from routekeeper.bench.play import replay
from routekeeper.bench.play.http import Pages
from routekeeper.bench.play.model import DESIGNS, Change, DesignName, State
from routekeeper.bench.play.play import Playground
from routekeeper.remoting.addresses import is_loopback, join_address, split_address
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.interrupt import ending_signals

#: Longest time in s that the ending program waits for connections that still send data to a page.
_PAGES_END_S: Final = 1.0


def designs_of(names: Sequence[str]) -> list[DesignName]:
    """Return the designs that a command line names, in the order of ``DESIGNS``.

    Raises:
        PlanError: If a design is unknown or named twice.
    """
    for name in names:
        if name not in DESIGNS:
            raise PlanError(f"--designs has {name!r}, known are: {', '.join(DESIGNS)}")
    if len(set(names)) < len(names):
        raise PlanError(f"--designs has one name twice: {', '.join(names)}")
    return [name for name in DESIGNS if name in names]


def listen_at(text: str) -> tuple[str, int]:
    """Return the host and the port to listen on.

    Raises:
        PlanError: If the text is not of the form ``host:port``.
    """
    try:
        return split_address(text)
    except LocalProtocolError as error:
        raise PlanError(f"--listen: {error}") from None


def play(
    designs: Sequence[DesignName], *, listen: tuple[str, int], opens: bool, divisor: float, out: Path
) -> int:
    """Run the playground until a signal ends it. Return the exit code."""
    wanted, missing = list(designs), []
    if "zookeeper" in wanted and (lacking := java_missing()) is not None:
        missing.append(f"zookeeper needs {lacking}")
        print(f"mqbench play: the design zookeeper is left out: it needs {lacking}", file=sys.stderr)
        wanted.remove("zookeeper")
        if not wanted:
            return 2
    # kazoo logs every attempt to reach a server. Show errors only, because the page already shows that a
    # server does not answer.
    logging.getLogger("routekeeper.bench.arms.zookeeper").setLevel(logging.ERROR)
    work = Path(tempfile.mkdtemp(prefix="mqbench-play-"))
    try:
        return asyncio.run(_play(wanted, missing, listen, opens=opens, divisor=divisor, work=work, out=out))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def play_again(folder: Path, *, listen: tuple[str, int], opens: bool) -> int:
    """Show a saved session until a signal ends the program. Return the exit code.

    Raises:
        PlanError: If the folder has no saved session.
    """
    begin, changes = replay.load(folder)
    return asyncio.run(_show(begin, changes, listen, opens=opens))


async def _play(
    designs: Sequence[DesignName],
    missing: Sequence[str],
    listen: tuple[str, int],
    *,
    opens: bool,
    divisor: float,
    work: Path,
    out: Path,
) -> int:
    over = _over()
    playground = Playground(designs, missing=missing, divisor=divisor, work=work, out=out)
    runner = web.AppRunner(Pages(playground).application(), shutdown_timeout=_PAGES_END_S, access_log=None)
    tasks: list[asyncio.Task[None]] = []
    try:
        if not await _serve(runner, listen, opens=opens):
            return 1
        starting = asyncio.create_task(playground.start())
        tasks += [starting, asyncio.create_task(playground.tick_always())]
        waiting = asyncio.create_task(over.wait())
        await asyncio.wait({*tasks, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            for design in playground.log.now.designs:
                if design.phase == "failed":
                    print(f"mqbench play: {design.name} failed: {design.reason}", file=sys.stderr)
            if all(design.phase == "failed" for design in playground.log.now.designs):
                return 1
            await asyncio.wait({tasks[1], waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return 0
    finally:
        await playground.end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()


async def _show(begin: State, changes: list[Change], listen: tuple[str, int], *, opens: bool) -> int:
    over = _over()
    again = replay.Replay(begin, changes)
    runner = web.AppRunner(Pages(again).application(), shutdown_timeout=_PAGES_END_S, access_log=None)
    try:
        if not await _serve(runner, listen, opens=opens):
            return 1
        running = asyncio.create_task(again.run())
        await over.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return 0
    finally:
        again.hub.end()
        await runner.cleanup()


def _over() -> asyncio.Event:
    """Return an event that is set when a signal asks the program to end."""
    over = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    return over


async def _serve(runner: web.AppRunner, listen: tuple[str, int], *, opens: bool) -> bool:
    """Listen, and print the address as the first line of stdout. If ``opens``, open the page in a browser.

    Return False if listening fails.
    """
    host, port = listen
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        print(f"mqbench play: --listen {join_address(host, port)}: {error.strerror}", file=sys.stderr)
        return False
    if not is_loopback(host):
        print(
            "mqbench play: warning: everybody who reaches this address can end the playground's processes",
            file=sys.stderr,
        )
    at = join_address(*runner.addresses[0][:2])
    print(f"mqbench play ready http={at}", flush=True)
    if opens:
        await asyncio.to_thread(webbrowser.open, f"http://{at}/")
    return True
