"""Settings of the shell and of the system that affect a run: Spark, Java, locale, home folder, user."""

from __future__ import annotations

import os
import pwd
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FOREIGN: Final = re.compile(
    "(SPARK|PYSPARK|HADOOP|HDFS|YARN|MAPRED|HIVE)_.*"
    "|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|_JAVA_OPTIONS|CLASSPATH"
    "|LC_.*|LANG|LANGUAGE"
)
"""Environment variables that name another Spark, cluster, Java or locale.

In some locales the JVM cannot name every file. In a Turkish locale it writes the names of its own settings
differently.
"""


def own_spark(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with which PySpark starts its own Spark on this machine."""
    kept = {name: value for name, value in environment.items() if _FOREIGN.fullmatch(name) is None}
    return kept | {"LC_ALL": "C.UTF-8"}


def nameless() -> str | None:
    """Return in one line the reason why this user cannot run Spark, or None if there is no such reason.

    The JVM's login asks the system for the user's name. With ``docker run --user`` the user may have no name.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return (
            f"user {os.getuid()} has no entry in the system's list of users (/etc/passwd), which Spark "
            "needs: add one, or run as another user"
        )
    return None


def cache_home() -> Path:
    """Return the folder for files that programs can make again (the cache).

    If the user has no home folder, or may not write there, return a temporary folder of this user.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # the user has neither HOME nor an entry in /etc/passwd
        return _temporary()
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if (folder / "routekeeper").is_dir() or os.access(existing, os.W_OK | os.X_OK):
        return folder
    return _temporary()


def _temporary() -> Path:
    """Return a temporary folder that this user owns.

    If another user owns a folder of this name, the function does not use this folder, because its owner could
    replace programs in it.
    """
    folder = Path(tempfile.gettempdir()) / f"routekeeper-cache-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix="routekeeper-cache-"))
