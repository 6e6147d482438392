"""Network namespaces that iproute2 makes, which needs root.

The names of one set of namespaces begin with the set's tag. The tag consists of ``rkb``, the pid of the
process that made the set, and the number of the set. The namespaces of a killed process remain until another
process removes them.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

import psutil

from routekeeper.bench.namespaces import SUBNETS, network
from routekeeper.bench.processes import ClusterError

_TAG: Final = re.compile(r"(rkb(\d+)-\d+)-")
_numbers: Final = itertools.count()
_own: Final[set[str]] = set()


def new_tag() -> str:
    """Return the tag of a new set of namespaces. :func:`remove` releases the tag."""
    _remove(_is_left)
    tag = f"rkb{os.getpid()}-{next(_numbers)}"
    _own.add(tag)
    return tag


def claimed_subnet(tag: str) -> int:
    """Add a route to a subnet that no other set of namespaces uses, and return the subnet.

    The kernel refuses a second route to the same subnet, so two sets cannot get the same subnet.

    Args:
        tag: Tag of the set, which is also the name of the interface of the route.
    """
    for subnet in random.sample(SUBNETS, len(SUBNETS)):
        try:
            ip(f"route add {network(subnet)} dev {tag}")
        except ClusterError as error:
            if "File exists" not in str(error):
                raise
        else:
            return subnet
    raise ClusterError(f"other runs have all {len(SUBNETS)} subnets of 198.19.0.0/16")


def remove(tag: str) -> None:
    """Remove a set's namespaces. The kernel then removes their interfaces, routes and rules."""
    _remove(lambda other, pid: other == tag)
    _own.discard(tag)


def _is_left(tag: str, pid: int) -> bool:
    """Return True if the process that made the namespaces with this tag has ended without removing them."""
    return tag not in _own if pid == os.getpid() else not psutil.pid_exists(pid)


def _remove(chosen: Callable[[str, int], bool]) -> None:
    listed = run(["ip", "netns", "list"]).split()
    found = [
        (name, tag[1])
        for name in listed
        if (tag := _TAG.match(name)) is not None and chosen(tag[1], int(tag[2]))
    ]
    # Also remove the interface outside the namespaces, one end of a pair, which has the tag as its name. The
    # kernel removes the other end with its namespace, but this end only some time later. Until then, the name
    # is in use.
    lines = [f"link del {tag}" for tag in {tag for _, tag in found}]
    lines += [f"netns del {name}" for name, _ in found]
    run(["ip", "-force", "-batch", "-"], lines, check=False)


def inside(space: str, words: Sequence[str]) -> list[str]:
    """Return the command line that runs the program ``words`` in a namespace."""
    return ["ip", "netns", "exec", space, *words]


def ip(*lines: str, space: str | None = None) -> None:
    """Let ``ip`` execute these lines in the namespace ``space``, or else in this process's own namespace.

    Raises:
        ClusterError: If a line fails.
    """
    where = [] if space is None else ["-n", space]
    run(["ip", *where, "-batch", "-"], lines)


def run(command: Sequence[str], lines: Sequence[str] = (), *, check: bool = True) -> str:
    """Run a command with ``lines`` as its input, and return its output.

    Raises:
        ClusterError: If the command fails. The message is the first line of the command's error output.
    """
    given = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        said = done.stderr.strip().partition("\n")[0]
        raise ClusterError(said or f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout
