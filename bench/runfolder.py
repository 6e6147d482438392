"""The folder of one run of the comparison, and the manifest that says what the run was.

Layout, Hive style, so that Spark turns the path into columns::

    OUT/runs/series=equal/scenario=broker-dies/block=3/arm=raft/
        manifest.json              lists the event files with their lines and checksums
        KIND-PROCESS.jsonl         bench.events, one file per kind and process; also .jsonl.gz or .jsonl.zst
        anything else              logs, data directories: ignored by the report
    OUT/void/...the same path.../attempt=1/

A *block* holds one run of every arm with the same seed, hence the same load and faults. Several scenarios of
one block and arm come from one cluster's life, one slot of time after the other: they share ``session``.

The manifest is written when the run is over; a folder without one, or without ``ended_ns``, is not used. A
void run leaves a manifest in ``void`` and is made again, at the same place of its block and with the same
seed. A run in which a server ended by itself, or did not serve in time, is not void: its arm has lost.
"""

import re
import zlib
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from routekeeper.bench.events import FILE_PREFIX, event_files
from routekeeper.bench.files import write_at_once

MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = 2
"""Version of the manifest and of the events beside it; a report refuses a newer one."""

Arm = Literal[
    "independent",
    "raft",
    "zookeeper",
    "apache",
    "independent-again",
    "raft-again",
    "zookeeper-again",
    "independent-real",
    "raft-real",
]
AGAIN: Final[dict[Arm, Arm]] = {
    "independent-again": "independent",
    "raft-again": "raft",
    "zookeeper-again": "zookeeper",
}
"""The same arm once more: nothing may differ."""
REAL: Final[dict[Arm, Arm]] = {"independent-real": "independent", "raft-real": "raft"}
"""Arms with RocketMQ's own brokers and Java client before our nameservers, to the same with ours."""

Series = Literal[
    "equal",
    "equal-described",
    "equal-lengths",
    "equal-tenth",
    "equal-undivided",
    "equal-polling",
    "equal-journal",
    "defaults",
    "rest",
]
Durability = Literal["memory", "journal", "fsync"]
Links = Literal["proxy", "kernel"]
"""What cuts links: our proxy, which they pass, or the kernel, between network namespaces."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LEVELS: Final = ("series", "scenario", "block", "arm")


class ManifestError(Exception):
    """A manifest is missing, unreadable, of a newer format, or contradicts its folder."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a run."""

    cpu: str
    """Model name as the system gives it."""
    cores: int
    """Logical processors this process may use."""
    memory_bytes: int
    system: str
    """Operating system and kernel release."""


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """One timer as it was set."""

    used_ms: float
    documented_ms: float | None = None
    """The default that the timer's system documents; null if it documents none."""
    scaled: bool = False
    """True if the run's divisor applied to the timer."""
    source: str = ""
    """The source of the value, in words."""


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One primary line: one measure, one pair of arms, named before anything runs."""

    name: str
    scenario: str
    case: str | None = None
    """The fault whose window counts; null for the whole scenario."""
    series: Series = "equal"
    """The series in whose runs the scenario is measured."""
    measure: str
    arms: tuple[Arm, Arm]
    """The difference is first minus second."""
    unit: str
    margin: float
    """Differences up to this are of no consequence, in ``unit``."""
    better: Literal["lower", "higher"] = "lower"


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """An event file as it was recorded, whether or not it has been compressed since."""

    lines: int
    crc32_sum: int
    """Sum of the CRC-32 of each line, without its line end: the order of lines does not matter."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one run that is not an event. Instants are ns on CLOCK_MONOTONIC."""

    format: int = FORMAT
    arm: Arm
    series: Series
    scenario: str
    block: int
    """Counted from 1. The unit of comparison."""
    order_in_block: int
    """Place of the arm within its block, from 0; drawn by the block's seed."""
    attempt: int = 1
    """1, or more if earlier ones were void."""
    session: str
    """Same for runs that come from one cluster's life."""
    profile: str
    seed: int
    """The block's: load, faults and order are drawn from it, in every arm alike."""
    durability: Durability | None
    """Null for an arm that stores nothing."""
    servers: int
    """Nameservers or ZooKeeper servers."""
    brokers: int
    """Real broker processes, indexes from 0."""
    sim_brokers: int
    """Brokers that the generator plays, indexes from 100."""
    clients: int
    """Clients whose route caches are observed (views of ``client``)."""
    divisor: float
    """The divisor of the scaled timers."""
    timers: dict[str, Timer]
    watches: bool = False
    """True if the arm notifies clients of changes; else they ask every ``pollNameServerInterval``."""
    links: Links | Literal["none"] = "none"
    """The means by which links of the run are cut."""
    workload: dict[str, Any]
    """The checked workload."""
    lines: list[Line] = []
    machine: Machine
    versions: dict[str, str]
    """``routekeeper``, ``python``, ``zookeeper``, ``java``, ``kazoo``... as installed."""
    commit: str
    """Git commit, with ``+`` behind it if files differed; ``unknown`` outside a checkout."""
    command: list[str]
    """The command line that made this run, to be typed again."""
    started_at: str
    """``started_ns`` on the wall clock, ISO 8601, UTC. For people; never computed with."""
    started_ns: int
    """Instant at which the load began; if it never began, instant at which the run was prepared."""
    measure_begin_ns: int
    """Operations due earlier belong to the warm-up or to the scenario before."""
    measure_end_ns: int
    """Operations that are due at or after this instant are not used; users stay longer."""
    ended_ns: int | None = None
    """Instant at which the cluster had been stopped; null while it runs, and for ever if the harness died."""
    void: str | None = None
    """Why the harness failed, so that this run must not be used; null if it may."""
    files: dict[str, FileSum] | None = None
    """Every event file beside it, by name; null in manifests of before, whose files nobody can check."""
    lost: str | None = None
    """Why the arm has lost this scenario in this block: a server ended by itself or did not serve."""


def run_folder(out: Path, *, series: Series, scenario: str, block: int, arm: Arm) -> Path:
    """Return the folder of a run below ``out``; it is not created.

    Raises:
        ValueError: If the scenario's name would not survive as a path component.
    """
    if _NAME.fullmatch(scenario) is None:
        raise ValueError(f"scenario {scenario!r}: allowed are 1 to 64 letters, digits, '_', '.', '-'")
    return out / "runs" / f"series={series}" / f"scenario={scenario}" / f"block={block}" / f"arm={arm}"


def void_folder(out: Path, manifest: Manifest) -> Path:
    """Return where a void attempt is kept."""
    folder = run_folder(
        out, series=manifest.series, scenario=manifest.scenario, block=manifest.block, arm=manifest.arm
    )
    return out / "void" / folder.relative_to(out / "runs") / f"attempt={manifest.attempt}"


def event_sums(folder: Path) -> dict[str, FileSum]:
    """Return a manifest's entries for the event files in a run folder."""
    return {path.name: _sum_of(path) for kind in FILE_PREFIX for path in event_files(folder, kind)}


def _sum_of(path: Path) -> FileSum:
    lines = total = 0
    with path.open("rb") as file:
        for line in file:
            lines += 1
            total += zlib.crc32(line.removesuffix(b"\n"))
    return FileSum(lines=lines, crc32_sum=total)


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write ``manifest`` into ``folder``, replacing an older one in one step; return its path."""
    path = folder / MANIFEST_NAME
    write_at_once(path, [msgspec.json.format(msgspec.json.encode(manifest), indent=2), b"\n"])
    return path


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a run folder.

    Raises:
        ManifestError: If it is missing or damaged, its format is newer than ours, or it contradicts the
            folder's path.
    """
    path = folder / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise ManifestError("no manifest.json") from None
    except msgspec.MsgspecError as error:
        raise ManifestError(f"manifest.json cannot be read: {error}") from error
    if manifest.format > FORMAT:
        raise ManifestError(f"manifest.json has format {manifest.format}, this program knows up to {FORMAT}")
    said = tuple(f"{level}={getattr(manifest, level)}" for level in _LEVELS)
    parts = folder.resolve().parts
    if parts[-1].startswith("attempt="):
        parts = parts[:-1]
    if parts[-len(said) :] != said:
        raise ManifestError(f"manifest.json says {'/'.join(said)}, the folder's path does not")
    return manifest


def find_run_folders(roots: list[Path]) -> list[Path]:
    """Return every run folder at or below ``roots``, each once, sorted by path; void attempts are none.

    A root may be a run folder itself, ``OUT``, ``OUT/runs`` or anything between. A folder counts by its name,
    so that one without a manifest is found and reported.
    """
    found: set[Path] = set()
    for root in roots:
        resolved = root.resolve()
        for folder in [resolved, *resolved.rglob("arm=*")]:
            names = folder.parts[-len(_LEVELS) :]
            if (
                folder.is_dir()
                and len(names) == len(_LEVELS)
                and all(name.startswith(f"{level}=") for name, level in zip(names, _LEVELS, strict=True))
                and "void" not in folder.parts[-len(_LEVELS) - 1 : -len(_LEVELS)]
            ):
                found.add(folder)
    return sorted(found)
