"""Shells complete the command lines of all programs.

The tests load the completion scripts into real shells and type a tab.
"""

from __future__ import annotations

import functools
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from routekeeper.client.mqadmin.__main__ import COMMANDS

pytestmark = pytest.mark.slow

MODULES: Final = {
    "mqnamesrv": "routekeeper.nameserver",
    "mqbroker": "routekeeper.broker",
    "mqbench": "routekeeper.bench",
    "mqadmin": "routekeeper.client.mqadmin",
}
ANSWER_S: Final = 30.0
SHELLS: Final = {
    "bash": (("bash", "--norc", "--noprofile", "-i"), "bind 'set enable-bracketed-paste off'; "),
    "zsh": (("zsh", "-f", "-i"), "autoload -U compinit; compinit -u -D; "),
}
#: A program, the text before the tab, and the rest of the word, which the shell must add.
CASES: Final = (
    ("mqadmin", "mqadmin updateTopicP", "erm"),
    ("mqadmin", "mqadmin updateTopicPerm --clus", "terName"),
    ("mqadmin", "mqadmin help brokerSta", "tus"),
    ("mqnamesrv", "mqnamesrv --raft-sec", "ret-file"),
    ("mqnamesrv", "mqnamesrv --durability jou", "rnal"),
    ("mqbroker", "mqbroker --adver", "tise"),
    ("mqbroker", "mqbroker --log-level WAR", "NING"),
    ("mqbench", "mqbench comp", "are"),
)


@functools.cache
def script(program: str, shell: str) -> str:
    command = [sys.executable, "-m", MODULES[program], "--print-completion", shell]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class Terminal:
    """A shell in a pseudo terminal, into which a test types as a user does."""

    def __init__(self, command: tuple[str, ...], folder: Path) -> None:
        self._far, near = pty.openpty()
        environment = os.environ | {"PS1": "$ ", "TERM": "dumb", "HOME": str(folder), "INPUTRC": "/dev/null"}
        self.process = subprocess.Popen(
            command, stdin=near, stdout=near, stderr=near, cwd=folder, env=environment, start_new_session=True
        )
        os.close(near)

    def type(self, keys: str) -> None:
        os.write(self._far, keys.encode())

    def read_until(self, text: str) -> str:
        shown = ""
        deadline = time.monotonic() + ANSWER_S
        while text not in shown:
            ready, _, _ = select.select([self._far], [], [], deadline - time.monotonic())
            assert ready, shown
            shown += os.read(self._far, 4096).decode(errors="replace")
        return shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._far)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("program", "typed", "rest"), CASES, ids=[typed for _, typed, _ in CASES])
def test_tab_completes_the_word(shell: str, program: str, typed: str, rest: str, tmp_path: Path) -> None:
    command, first = SHELLS[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(program, shell))
    terminal = Terminal(command, tmp_path)
    try:
        terminal.type(f"{first}eval \"$(cat script)\"; echo load''ed\n")
        terminal.read_until("loaded")
        terminal.type(f"{typed}\t")
        terminal.read_until(typed + rest)
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_script_of_mqadmin_knows_all_subcommands(shell: str) -> None:
    text = script("mqadmin", shell)
    for name, command in COMMANDS.items():
        assert f"    {name}) " in text
        for option in command.options:
            assert option.refused is not None or f"--{option.long.strip()}" in text, (name, option.long)


@pytest.mark.parametrize("program", MODULES)
def test_unknown_shell_is_refused_with_those_that_are_known(program: str) -> None:
    command = [sys.executable, "-m", MODULES[program], "--print-completion", "fish"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    assert "bash, zsh" in done.stderr


@pytest.mark.parametrize("program", ["mqnamesrv", "mqbroker"])
def test_help_shows_each_default_once_and_a_value_once(program: str) -> None:
    command = [sys.executable, "-m", MODULES[program], "--help"]
    shown = subprocess.check_output(command, text=True, env=os.environ | {"COLUMNS": "400"})
    for heading in (
        "network",
        "storage",
        "security",
        "HTTP",
        "other",
        *(["raft"] * (program == "mqnamesrv")),
    ):
        assert f"\n{heading}:\n" in shown
    assert "VALUE, --" not in shown
    assert "HOST:PORT, --" not in shown
    for line in shown.split("\nsettings of our own")[0].splitlines():
        assert line.count("(default") <= 1, line
