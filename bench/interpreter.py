"""Program that describes this Python's build, or chooses the best Python interpreter of this machine.

    python3 -I bench/interpreter.py            print the path of the python3.11 that the Makefile uses
    python3 -I bench/interpreter.py --about    print path, version, compiler and build of this Python as JSON

The file runs under any Python 3 and needs the standard library only. The Makefile runs this file to choose a
Python before an environment exists.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

#: Time in s within which an interpreter must answer. :func:`choose` does not use a slower interpreter.
ANSWER_S = 20.0
#: Text about the optimisation of an interpreter, if nothing shows that its build is optimised.
NOT_OPTIMISED = "not known to be optimised"
#: Warning that the benchmarks print with their figures, if nothing shows that this Python's build is
#: optimised.
WARNING = (
    "this Python is not known to be built with profile-guided and link-time optimisation; one that is, as "
    "Debian's python3.11, needs about a fifth less CPU time"
)
_NAME = "python3.11"
_USUAL = "/usr/bin"


def optimised_by(config_args: str, prefix: str, *, debian: bool) -> str | None:
    """Return a text that shows that a Python has profile-guided and link-time optimisation, or None.

    Two kinds of builds are known to have both optimisations:

    - CPython that was configured with both flags, as python.org's images, Fedora, Homebrew, conda and uv do.
    - The packages of Debian and Ubuntu. Their rules pass the flags of both optimisations to make, so
      ``CONFIG_ARGS`` has neither flag. In a benchmark with one write at a time, Debian's 3.11.2 needs
      18 % less CPU time than a build without optimisations.
    """
    if "--enable-optimizations" in config_args and "--with-lto" in config_args:
        return "configured with --enable-optimizations and --with-lto"
    if debian and prefix == "/usr":
        return "the distribution's package"
    return None


def about() -> dict[str, Any]:
    """Return this Python's path, version and build, and whether it can make virtual environments."""
    reason = optimised_by(
        sysconfig.get_config_var("CONFIG_ARGS") or "",
        sys.base_prefix,
        debian=os.path.exists("/etc/debian_version"),
    )
    return {
        "path": os.path.realpath(sys.executable),
        "version": platform.python_version(),
        "compiler": platform.python_compiler(),
        "optimised": reason,
        "makes_environments": all(map(importlib.util.find_spec, ("venv", "ensurepip"))),
    }


def describe(found: dict[str, Any]) -> str:
    """Return one line for a table: version, path, compiler, build."""
    built = f"optimised ({found['optimised']})" if found["optimised"] else NOT_OPTIMISED
    return f"{found['version']} ({found['path']}, {found['compiler']}, {built})"


def said() -> str:
    """Return a line that describes this Python, with a warning if its build may lack optimisation."""
    found = about()
    return f"Python {describe(found)}" + ("" if found["optimised"] else f"\nWARNING: {WARNING}")


def candidates(name: str, path: str) -> Iterator[str]:
    """Yield the path of each executable ``name`` in the folders of ``path`` (like PATH) and in /usr/bin."""
    for folder in [*path.split(os.pathsep), _USUAL]:
        place = os.path.join(folder or ".", name)
        if os.access(place, os.X_OK):
            yield place


def ask(place: str) -> dict[str, Any] | None:
    """Return the facts that an interpreter reports about itself, or None if the interpreter is unusable.

    An interpreter is unusable if it does not run, is older than 3.11, or cannot make a virtual environment.
    """
    command = [place, "-I", os.path.abspath(__file__), "--about"]
    try:
        answer = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=ANSWER_S, check=True
        )
        found: dict[str, Any] = json.loads(answer.stdout)
        version = tuple(map(int, found["version"].split(".")[:2]))
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return None
    return found if found["makes_environments"] and version >= (3, 11) else None


def choose(path: str) -> str | None:
    """Return the path of the best interpreter: an optimised python3.11, else any usable python3.11.

    If the machine has no usable python3.11, return an optimised python3, else any usable python3. Return None
    if it has no usable interpreter.
    """
    for name in (_NAME, "python3"):
        usable = [found for place in candidates(name, path) if (found := ask(place)) is not None]
        for found in usable:
            if found["optimised"]:
                return str(found["path"])
        if usable:
            return str(usable[0]["path"])
    return None


def main(words: list[str]) -> int:
    if words == ["--about"]:
        print(json.dumps(about()))
        return 0
    chosen = choose(os.environ.get("PATH", ""))
    if chosen is None:
        print("no Python 3.11 or newer with the modules venv and ensurepip was found", file=sys.stderr)
        return 1
    print(chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
