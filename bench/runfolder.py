"""The folder of one run of the comparison, and the manifest that describes the run.

Layout, Hive style, so that Spark turns the path into columns::

    OUT/runs/series=equal/scenario=broker-dies/block=3/arm=raft/
        manifest.json              lists the event files with their lines and checksums
        KIND-PROCESS.jsonl         bench.events, one file per kind and process; also .jsonl.gz or .jsonl.zst
        anything else              logs, data directories: ignored by the report
    OUT/void/...the same path.../attempt=1/

A round ("block" in paths and code) has one run of every design ("arm"). All runs of a round have the same
seed, and so the same load and faults. One cluster makes the runs of several scenarios of one round and
design, one after the other. These runs have the same ``session``.

The manifest is written when the run is over. The report does not use a folder without a manifest, or with a
manifest without ``ended_ns``.

If the harness failed, the run is void. Its manifest is kept in ``void``, and the run is made again at the
same place in its round, with the same seed. If a server ended by itself, or was not ready in time, the run is
not void. It counts as lost for its design.
"""

import zlib
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from routekeeper.bench.events import FILE_PREFIX, event_files
from routekeeper.bench.files import write_at_once

MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = 2
"""Format version of the manifest and the events. A report refuses a manifest with a higher version."""

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
"""Maps each repeated arm to the original arm. Both arms run the same software, so they must give equal
results."""
REAL: Final[dict[Arm, Arm]] = {"independent-real": "independent", "raft-real": "raft"}
"""Maps each arm with RocketMQ's own brokers and Java client to an arm with the same kind of servers, but with
our brokers and client."""

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
"""Means by which links are cut: our proxy between the processes, or the kernel between network namespaces."""

_LEVELS: Final = ("series", "scenario", "block", "arm")


class ManifestError(Exception):
    """A manifest is missing, unreadable, of a newer format, or contradicts its folder."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine on which a run was made."""

    cpu: str
    """Model name of the processor, as the system reports it."""
    cores: int
    """Number of logical processors that this process may use."""
    memory_bytes: int
    system: str
    """Name of the operating system, and the kernel's release."""


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """One timer, as it was set in a run."""

    used_ms: float
    documented_ms: float | None = None
    """The default in ms that the timer's system documents, or null if it documents no default."""
    scaled: bool = False
    """True if the run's divisor applied to the timer."""
    source: str = ""
    """Description of where the value comes from, in words."""


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One headline measure: a measure and a pair of designs, named before anything runs."""

    name: str
    scenario: str
    case: str | None = None
    """The fault whose window is measured, or null if the whole scenario is measured."""
    series: Series = "equal"
    """Name of the series in whose runs the scenario is measured."""
    measure: str
    arms: tuple[Arm, Arm]
    """The two compared designs. A difference is the first design's value minus the second design's value."""
    unit: str
    margin: float
    """Largest difference that would not change a decision, in ``unit``."""
    better: Literal["lower", "higher"] = "lower"


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """Number of lines and checksum of an event file, both without compression."""

    lines: int
    crc32_sum: int
    """Sum of the CRC-32 of all lines without line ends, so that the order of the lines does not matter."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about one run except its events. Instants are ns on CLOCK_MONOTONIC."""

    format: int = FORMAT
    arm: Arm
    series: Series
    scenario: str
    block: int
    """Number of the round ("block" in the code), from 1. Designs are compared round by round."""
    order_in_block: int
    """Position of the design in its round, from 0. The order is drawn from the round's seed."""
    attempt: int = 1
    """Number of the attempt: 1, or more if earlier attempts were void."""
    session: str
    """Name that all runs of one cluster share."""
    profile: str
    seed: int
    """Seed of the round, from which load, faults and order of all its designs are drawn."""
    durability: Durability | None
    """Durability of the servers' storage, or null for an arm that stores nothing."""
    servers: int
    """Number of nameservers or of ZooKeeper's servers."""
    brokers: int
    """Number of real broker processes. Their indexes begin at 0."""
    sim_brokers: int
    """Number of brokers that the generator simulates. Their indexes begin at 100."""
    clients: int
    """Number of clients whose route caches are observed (views of ``client``)."""
    divisor: float
    """Divisor by which the scaled timers were divided."""
    timers: dict[str, Timer]
    watches: bool = False
    """True if the arm notifies clients of changes. Otherwise clients poll each ``pollNameServerInterval``."""
    links: Links | Literal["none"] = "none"
    """Means by which the run's links are cut, or ``none`` if they cannot be cut."""
    workload: dict[str, Any]
    """The plan of the run after its values were checked."""
    lines: list[Line] = []
    machine: Machine
    versions: dict[str, str]
    """Maps each installed program to its version: ``routekeeper``, ``python``, ``zookeeper``, ``java``..."""
    commit: str
    """Git commit, followed by ``+`` if files were changed. The value is ``unknown`` outside a checkout."""
    command: list[str]
    """Command line that made this run, in a form that can be typed again."""
    started_at: str
    """``started_ns`` by the wall clock: ISO 8601, UTC. It is for people, and no program computes with it."""
    started_ns: int
    """Instant at which the load began. If it never began, instant at which the run was prepared."""
    measure_begin_ns: int
    """Start of the measured time. Operations due earlier belong to the warm-up or to the scenario before."""
    measure_end_ns: int
    """End of the measured time. Operations due then or later do not count, although users still send some."""
    ended_ns: int | None = None
    """Instant at which the cluster had been stopped. Null while it runs, and for ever if the harness died."""
    void: str | None = None
    """Reason why the harness failed, so that this run must not be used. Null if the run may be used."""
    files: dict[str, FileSum] | None = None
    """Maps each event file beside the manifest to its checksum. Null in old manifests without checksums."""
    lost: str | None = None
    """Reason why this run counts as lost, such as a server that ended by itself. Null if it is not lost."""


def run_folder(out: Path, *, series: Series, scenario: str, block: int, arm: Arm) -> Path:
    """Return the folder of a run below ``out``, without creating it."""
    return out / "runs" / f"series={series}" / f"scenario={scenario}" / f"block={block}" / f"arm={arm}"


def void_folder(out: Path, manifest: Manifest) -> Path:
    """Return the folder in which the manifest of a void attempt is kept."""
    folder = run_folder(
        out, series=manifest.series, scenario=manifest.scenario, block=manifest.block, arm=manifest.arm
    )
    return out / "void" / folder.relative_to(out / "runs") / f"attempt={manifest.attempt}"


def event_sums(folder: Path) -> dict[str, FileSum]:
    """Return the entries of a manifest for the event files in a run folder."""
    return {path.name: _sum_of(path) for kind in FILE_PREFIX for path in event_files(folder, kind)}


def _sum_of(path: Path) -> FileSum:
    lines = total = 0
    with path.open("rb") as file:
        for line in file:
            lines += 1
            total += zlib.crc32(line.removesuffix(b"\n"))
    return FileSum(lines=lines, crc32_sum=total)


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write ``manifest`` into ``folder`` in one step, in place of an older manifest. Return its path."""
    path = folder / MANIFEST_NAME
    write_at_once(path, [msgspec.json.format(msgspec.json.encode(manifest), indent=2), b"\n"])
    return path


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a run folder.

    Raises:
        ManifestError: If the manifest is missing or damaged, if its format is newer than ours, or if it
            contradicts the folder's path.
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
    """Return all run folders at or below ``roots``, sorted by path, without duplicates and void attempts.

    A root may be a run folder itself, a comparison's folder (``OUT`` of ``--out OUT``),
    or any folder between them. A run folder is recognised
    by its name, so that a folder without a manifest is found, too, and can be reported.
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
