"""A finished comparison as it is published: its page, and the raw events from which anybody makes it again.

    python -m routekeeper.bench.publish RESULT TO

RESULT is the folder of ``mqbench compare`` with its ``report.html``; TO, a folder, gets ``report.html``,
``runs.tar.xz`` and the two tables that people ask for. The archive has the manifests and the event files that
they list, of all runs and of void attempts, and nothing else. Unpack it, and ``mqbench report runs void``
makes the same page again, byte for byte; without ``void`` if no attempt was void.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from routekeeper.bench.runfolder import MANIFEST_NAME, ManifestError, event_sums, read_manifest

PAGE: Final = "report.html"
ARCHIVE: Final = "runs.tar.xz"
TABLES: Final = ("values.csv", "conditions.csv")
#: A larger archive does not belong into a repository: it goes beside a release.
COMMITTED_BYTES_MAX: Final = 10_000_000


class PublishError(Exception):
    """A result folder that cannot be published; nothing was written."""


def publish(result: Path, to: Path) -> Path:
    """Write page, raw events and tables of ``result`` into ``to``; return the archive's path.

    Raises:
        PublishError: If there is no page, no run, a run without its manifest, or an event file that is not as
            recorded.
    """
    for name in (PAGE, *(f"marts/{table}" for table in TABLES)):
        if not (result / name).is_file():
            raise PublishError(f"{result}: no {name}; mqbench report makes it")
    files = [path for name in ("runs", "void") for path in _files(result / name)]
    if not files:
        raise PublishError(f"{result}: no runs")
    to.mkdir(parents=True, exist_ok=True)
    # An interrupt or a full disk leaves no half of an archive, and no page without its archive.
    with tempfile.TemporaryDirectory(prefix=".publish-", dir=to) as folder:
        made = Path(folder)
        with tarfile.open(made / ARCHIVE, "w:xz", format=tarfile.GNU_FORMAT, preset=9) as archive:
            for path in files:
                archive.add(path, str(path.relative_to(result)), filter=_without_origin)
        shutil.copyfile(result / PAGE, made / PAGE)
        for name in TABLES:
            shutil.copyfile(result / "marts" / name, made / name)
        for name in (ARCHIVE, PAGE, *TABLES):
            (made / name).replace(to / name)
    return to / ARCHIVE


def _files(root: Path) -> Iterator[Path]:
    """Yield manifest and event files of each run at or below ``root``, in the order of their paths."""
    for manifest_path in sorted(root.rglob(MANIFEST_NAME)):
        folder = manifest_path.parent
        try:
            recorded = read_manifest(folder).files or {}
        except ManifestError as error:
            raise PublishError(f"{folder}: {error}") from None
        found = event_sums(folder)
        for name in sorted(recorded.keys() | found.keys()):
            if recorded.get(name) != found.get(name):
                raise PublishError(f"{folder / name} is not as recorded")
        yield manifest_path
        yield from (folder / name for name in sorted(found))


def _without_origin(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who packed it and when, so that the same runs make the same archive."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Publish a finished comparison with its raw events.")
    parser.add_argument("result", type=Path, help="folder of mqbench compare, with its report.html")
    parser.add_argument("to", type=Path, help="folder for the page and the archive; it is made")
    arguments = parser.parse_args(argv)
    try:
        archive = publish(arguments.result, arguments.to)
    except (PublishError, OSError) as error:
        print(f"publish: {error}", file=sys.stderr)
        return 1
    size = archive.stat().st_size
    print(f"{archive}: {size / 1e6:.1f} MB")
    if size > COMMITTED_BYTES_MAX:
        limit = COMMITTED_BYTES_MAX / 1e6
        print(f"publish: above {limit:.0f} MB: keep it beside a release, not in the repository")
    return 0


if __name__ == "__main__":
    sys.exit(main())
