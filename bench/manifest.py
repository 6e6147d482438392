"""The folder of one benchmark run, and the manifest that says what the run was.

Layout, Hive style, so that Spark turns the path into columns::

    OUT/runs/mode=raft/scenario=compare/rep=3/
        manifest.json
        ops-PROCESS.jsonl          bench.samples.Operation, one file per generator process
        changes-PROCESS.jsonl      Change
        visibility-PROCESS.jsonl   Visibility
        faults-PROCESS.jsonl       Fault
        processes-PROCESS.jsonl    ProcessSample
        anything else              logs, data directories: ignored by the report

The harness writes the manifest twice: when the run begins (``ended_ns`` null) and when it is over. A manifest
that was never completed, or that says why the run is void, keeps the run out of every figure; the report says
so.
"""

import os
import re
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from bench.samples import Event, event_files

MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = 1
"""Version of the manifest and of the events beside it; a report refuses a newer one."""

Mode = Literal["independent", "raft"]
Durability = Literal["memory", "journal", "fsync"]

_SCENARIO: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ManifestError(Exception):
    """A manifest is missing, unreadable, of a newer format, or contradicts its folder."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the run took place."""

    cpu: str
    """Model name as the system gives it."""
    cores: int
    """Logical processors this process may use."""
    memory_bytes: int
    system: str
    """Operating system and kernel release."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one run that is not an event. Instants are ns on CLOCK_MONOTONIC."""

    format: int = FORMAT
    mode: Mode
    scenario: str
    rep: int
    """Repetition, counted from 1, unique within mode and scenario."""
    pair: int
    """Runs of both modes with the same scenario and pair number are compared with each other."""
    order_in_pair: int
    """0 if this run came first in its pair, 1 if second."""
    profile: str
    seed: int
    durability: Durability | None
    """Raft mode's level; null in independent mode, which stores nothing."""
    nameservers: int
    brokers: int
    timer_divisor: float
    """The documented broker, client and scan timers were divided by this, alike in every mode."""
    timers_ms: dict[str, int]
    """The timers as used, after the division, named as in the settings: ``registerNameServerPeriod``..."""
    workload: dict[str, Any]
    """The checked workload: rates per operation (``route_wire_per_s``...), topics, message size."""
    machine: Machine
    versions: dict[str, str]
    """``routekeeper``, ``python``, ``pysyncobj``, ``locust``, ``uvloop``... as installed."""
    commit: str
    """Git commit, with ``+`` behind it if files differed; ``unknown`` outside a checkout."""
    command: list[str]
    """The command line that made this run, to be typed again."""
    started_at: str
    """Wall clock, ISO 8601, UTC. For people; never computed with."""
    started_ns: int
    measure_begin_ns: int
    """End of the warm-up: operations due earlier are not looked at."""
    measure_end_ns: int
    """Operations due at or after it are not looked at."""
    settle_ms: int = 5000
    """How long after a fault's end the system is given before operations count as steady again."""
    ended_ns: int | None = None
    """When all processes had been stopped; null while it runs and for ever if the harness died."""
    void: str | None = None
    """Why the harness says that this run must not be used; null if it may."""


def run_folder(out: Path, *, mode: Mode, scenario: str, rep: int) -> Path:
    """Return the folder of a run below ``out``; it is not created.

    Raises:
        ValueError: If the scenario's name would not survive as a path component.
    """
    if _SCENARIO.fullmatch(scenario) is None:
        raise ValueError(f"scenario {scenario!r}: allowed are 1 to 64 letters, digits, '_', '.', '-'")
    return out / "runs" / f"mode={mode}" / f"scenario={scenario}" / f"rep={rep}"


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write ``manifest`` into ``folder``, replacing an older one in one step; return its path."""
    path = folder / MANIFEST_NAME
    temporary = path.with_suffix(".json.new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    os.replace(temporary, path)
    return path


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a run folder.

    Raises:
        ManifestError: If it is missing or damaged, its format is newer than ours, or mode, scenario or
            repetition are not those that the folder's path names.
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
    said = (f"mode={manifest.mode}", f"scenario={manifest.scenario}", f"rep={manifest.rep}")
    if folder.resolve().parts[-3:] != said:
        raise ManifestError(f"manifest.json says {'/'.join(said)}, the folder's path does not")
    return manifest


def find_run_folders(roots: list[Path]) -> list[Path]:
    """Return every run folder at or below ``roots``, each once, sorted by path.

    A root may be a run folder itself, ``OUT``, ``OUT/runs`` or anything between. A folder counts by its name
    (``rep=N`` below ``scenario=`` below ``mode=``), so that one without a manifest is found and reported.
    """
    found: set[Path] = set()
    for root in roots:
        resolved = root.resolve()
        for folder in [resolved, *resolved.rglob("rep=*")]:
            names = folder.parts[-3:]
            starts = ("mode=", "scenario=", "rep=")
            if folder.is_dir() and len(names) == 3 and all(map(str.startswith, names, starts)):
                found.add(folder)
    return sorted(found)


def run_files(folders: list[Path], kind: type[Event]) -> list[Path]:
    """Return the files of one event kind in all of ``folders``, in order."""
    return [path for folder in folders for path in event_files(folder, kind)]
