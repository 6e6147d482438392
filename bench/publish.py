"""Publication of a finished measurement: the page, and the raw data from which anybody can make it again.

    python -m routekeeper.bench.publish RESULT TO
    python -m routekeeper.bench.publish --again PUBLISHED

RESULT is a folder that ``mqbench compare`` has written, with its ``report.html``. The folder TO receives:

- ``report.html``;
- the tables ``values.csv``, ``conditions.csv`` and ``undivided.csv``;
- ``runs-SERIES.tar.xz`` for each series: the manifests of all runs and void attempts, and the event files
  that the manifests list.

To make the same page again, byte for byte, unpack all archives into one folder and run ``mqbench report runs
void``. Leave out ``void`` if no attempt was void.

If RESULT holds series of ``mqbench scale``, the folder TO receives:

- ``scale.html`` and its tables ``scale-curves.csv`` and ``scale-figures.csv``;
- for each series a folder with its settings (``order.json``), one line for each measurement (``rows.jsonl``,
  from which the page is made), and the raw events of each design (``events-DESIGN.tar.xz``).

``--again`` makes the page and the tables of a published folder again. Use it after the report's code has
changed.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from routekeeper.bench.__main__ import make_report
from routekeeper.bench.report.page import NEIGHBOURS
from routekeeper.bench.runfolder import MANIFEST_NAME, ManifestError, event_sums, read_manifest
from routekeeper.bench.scale.order import ORDER_NAME, ROWS_NAME, read_order, read_rows, series_below
from routekeeper.bench.scale.points import Part
from routekeeper.bench.scale.report import write_report

PAGE: Final = "report.html"
ARCHIVES: Final = "runs-{series}.tar.xz"
SCALE_ARCHIVES: Final = "events-{design}.tar.xz"
TABLES: Final = ("values.csv", "conditions.csv", "undivided.csv")
#: Size in bytes of the largest archive for the repository. Larger archives belong to a release.
COMMITTED_BYTES_MAX: Final = 10_000_000
#: LZMA filters for unaligned text with many digits, such as events. They make archives one sixth smaller
#: than the preset alone does.
_FILTERS: Final = [
    {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "lc": 4,
        "lp": 0,
        "pb": 0,
        "nice_len": 273,
        "dict_size": 64 * 2**20,
    }
]


class PublishError(Exception):
    """A result folder cannot be published, or a page cannot be made again. No published file was changed."""


def archives(published: Path) -> list[Path]:
    """Return the archives of raw events in a folder."""
    return sorted(published.glob(ARCHIVES.format(series="*")))


def publish(result: Path, to: Path) -> list[Path]:
    """Write page, raw events and tables of ``result`` into ``to``, and return the archives' paths.

    Raises:
        PublishError: If the page, a table or all runs are missing, if a manifest cannot be read, or if an
            event file differs from its manifest.
    """
    for name in (PAGE, *(f"marts/{table}" for table in TABLES)):
        if not (result / name).is_file():
            raise PublishError(f"{result}: no {name}; mqbench report makes it")
    by_series: dict[str, list[Path]] = defaultdict(list)
    for path in (path for name in ("runs", "void") for path in _files(result / name)):
        parts = path.relative_to(result).parts
        by_series[next(part for part in parts if part.startswith("series="))[7:]].append(path)
    if not by_series:
        raise PublishError(f"{result}: no runs")
    to.mkdir(parents=True, exist_ok=True)
    # Work in a temporary folder. Otherwise an interrupt or a full disk could leave half an archive, or a page
    # without its archives.
    with tempfile.TemporaryDirectory(prefix=".publish-", dir=to) as folder:
        made = Path(folder)
        for series, paths in sorted(by_series.items()):
            _pack(made / ARCHIVES.format(series=series), paths, result)
        shutil.copyfile(result / PAGE, made / PAGE)
        for name in TABLES:
            shutil.copyfile(result / "marts" / name, made / name)
        names = {path.name for path in made.iterdir()}
        for name in names:
            (made / name).replace(to / name)
        for old in archives(to):
            if old.name not in names:
                old.unlink()
    return archives(to)


def publish_scale(result: Path, to: Path) -> list[Path]:
    """Write the rows and raw events of all series in ``result`` into ``to``, and return the archives' paths.

    A series is in ``result`` itself or below it. The page and the tables are made from all series in ``to``,
    so that the parts of the measurements (size, distance and number) can be published one by one.

    Raises:
        PublishError: If ``result`` has two series of one part, or a series without rows.
    """
    by_part: dict[Part, Path] = {}
    for series in series_below(result):
        part = read_order(series).part
        if part in by_part:
            names = f"{by_part[part].name}, {series.name}"
            raise PublishError(f"{result}: two series of the part {part}: {names}")
        if not read_rows(series):
            raise PublishError(f"{series}: no rows")
        by_part[part] = series
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".publish-", dir=to) as folder:
        made = Path(folder)
        for part, series in by_part.items():
            (made / part).mkdir()
            for name in (ORDER_NAME, ROWS_NAME):
                shutil.copyfile(series / name, made / part / name)
            events = [path for path in sorted((series / "events").rglob("*.jsonl")) if path.stat().st_size]
            for design in read_order(series).designs:
                paths = [path for path in events if path.parent.name == f"arm={design}"]
                if paths:
                    _pack(made / part / SCALE_ARCHIVES.format(design=design), paths, series)
        for part in by_part:
            shutil.rmtree(to / part, ignore_errors=True)
            (made / part).replace(to / part)
    remake_scale(to, to)
    return sorted(to.glob(f"*/{SCALE_ARCHIVES.format(design='*')}"))


def make_again(published: Path, to: Path) -> list[Path]:
    """Make all pages and tables of a published folder again, in the folder ``to``. Return the pages' paths.

    Raises:
        PublishError: If there are neither raw events of a comparison nor series of ``mqbench scale``.
    """
    pages = []
    if series_below(published):
        pages.append(remake_scale(published, to))
    if archives(published) or not pages:
        remake(published, to)
        pages.append(to / PAGE)
    return pages


def remake_scale(published: Path, to: Path) -> Path:
    """Make page and tables of all series in ``published`` from their rows, in the folder ``to``."""
    return write_report(to, [(read_order(each), read_rows(each)) for each in series_below(published)])


def _pack(name: Path, paths: Sequence[Path], root: Path) -> None:
    """Pack files into an archive, under their names below ``root``."""
    with (
        lzma.open(name, "wb", filters=_FILTERS) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        # Put files of one kind one after the other, because similar files compress better when they are close
        # together.
        for path in sorted(paths, key=lambda path: (path.name, path)):
            archive.add(path, str(path.relative_to(root)), filter=_without_origin)


def remake(published: Path, to: Path) -> None:
    """Make page and tables from the raw events in ``published``, in the folder ``to``.

    Raises:
        PublishError: If there are no raw events, or if the report fails. In this case no file was changed.
    """
    if not archives(published):
        name = ARCHIVES.format(series="SERIES")
        raise PublishError(f"{published}: no {name}; name a folder that this program published")
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".publish-", dir=to) as folder:
        unpacked, made = Path(folder, "raw"), Path(folder, "made")
        made.mkdir()
        for name in NEIGHBOURS:  # the page links to other pages in the same folder
            if (published / name).is_file():
                shutil.copyfile(published / name, made / name)
        for archive in archives(published):
            shutil.unpack_archive(archive, unpacked)
        code = make_report([str(each) for each in sorted(unpacked.iterdir())], str(made))
        if code:
            raise PublishError(f"{published}: the report ended with {code}")
        for name, source in ((PAGE, made / PAGE), *((name, made / "marts" / name) for name in TABLES)):
            source.replace(to / name)


def _files(root: Path) -> Iterator[Path]:
    """Yield the manifest and the event files of each run at or below ``root``, sorted by path."""
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
    """Remove user, group and time from an archive's entry, so that the same runs make the same archive."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Publish a finished measurement with its raw events.")
    parser.add_argument(
        "result",
        nargs="?",
        type=Path,
        help="folder of mqbench compare with its report.html, or folder with series of mqbench scale",
    )
    parser.add_argument("to", nargs="?", type=Path, help="folder for the page and the archives; it is made")
    parser.add_argument(
        "--again",
        type=Path,
        metavar="PUBLISHED",
        help="make page and tables of this published folder anew, from its raw events",
    )
    arguments = parser.parse_args(argv)
    if (arguments.again is None) != (arguments.to is not None) or (arguments.again and arguments.result):
        parser.error("give RESULT and TO, or --again PUBLISHED")
    try:
        if arguments.again:
            for page in make_again(arguments.again, arguments.again):
                print(page)
            return 0
        publishing = publish_scale if series_below(arguments.result) else publish
        made = publishing(arguments.result, arguments.to)
    except (PublishError, OSError) as error:
        print(f"publish: {error}", file=sys.stderr)
        return 1
    for archive in made:
        size = archive.stat().st_size
        print(f"{archive}: {size / 1e6:.1f} MB")
        if size > COMMITTED_BYTES_MAX:
            limit = COMMITTED_BYTES_MAX / 1e6
            print(f"publish: above {limit:.0f} MB: keep it beside a release, not in the repository")
    return 0


if __name__ == "__main__":
    sys.exit(main())
