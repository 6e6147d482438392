"""Prometheus' text format, and what of a raft group's figures goes into it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


class Samples:
    """Collects samples; each family is described once and stands together."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, help_: str, value: float, /, **labels: str) -> None:
        lines = self._families.setdefault(name, [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"])
        inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value}" if inner else f"{name} {value}")

    def text(self) -> str:
        return "".join(line + "\n" for lines in self._families.values() for line in lines)


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure of ``raft_status`` and the metric it becomes; ``scale`` brings it to base units."""

    key: str
    name: str
    kind: str
    help: str
    scale: float = 1


_FIGURES: Final = (
    _Figure("term", "mqnamesrv_raft_term", "gauge", "Current term."),
    _Figure("commit_index", "mqnamesrv_raft_commit_index", "gauge", "Committed."),
    _Figure("applied_index", "mqnamesrv_raft_applied_index", "gauge", "Applied here."),
    _Figure("last_index", "mqnamesrv_raft_last_index", "gauge", "Last entry in the log here."),
    _Figure("durable_index", "mqnamesrv_raft_durable_index", "gauge", "Last entry that the journal holds."),
    _Figure(
        "last_contact_ms",
        "mqnamesrv_raft_last_contact_seconds",
        "gauge",
        "Age of the contact with a majority; absent if there never was one.",
        0.001,
    ),
    _Figure(
        "contact_limit_ms",
        "mqnamesrv_raft_contact_limit_seconds",
        "gauge",
        "Age of contact above which default reads are refused.",
        0.001,
    ),
    _Figure("leader_changes", "mqnamesrv_raft_leader_changes_total", "counter", "Leaders seen to change."),
    _Figure("elections", "mqnamesrv_raft_elections_total", "counter", "Candidacies begun here."),
    _Figure("journal_bytes", "mqnamesrv_raft_journal_bytes", "gauge", "Journal on disk."),
    _Figure("log_bytes", "mqnamesrv_raft_log_bytes", "gauge", "Log entries in memory."),
    _Figure("snapshot_index", "mqnamesrv_raft_snapshot_index", "gauge", "Last entry in the snapshot."),
    _Figure("snapshot_bytes", "mqnamesrv_raft_snapshot_bytes", "gauge", "Size of the newest snapshot."),
    _Figure(
        "snapshot_age_s",
        "mqnamesrv_raft_snapshot_age_seconds",
        "gauge",
        "Age of the newest snapshot, if any.",
    ),
    _Figure(
        "snapshot_failures", "mqnamesrv_raft_snapshot_failures_total", "counter", "Snapshots not stored."
    ),
    _Figure("storage_stalled", "mqnamesrv_raft_storage_stalled", "gauge", "1 while a journal write hangs."),
    _Figure(
        "storage_stalls", "mqnamesrv_raft_storage_stalls_total", "counter", "Journal writes above one second."
    ),
    _Figure(
        "refused_truncations",
        "mqnamesrv_raft_refused_truncations_total",
        "counter",
        "Orders of a leader to drop committed entries, refused: two histories, never to be seen.",
    ),
    _Figure("apply_errors", "mqnamesrv_raft_apply_errors_total", "counter", "Entries that failed to apply."),
    _Figure(
        "refused_reads",
        "mqnamesrv_raft_refused_reads_total",
        "counter",
        "Reads refused because the freshness asked could not be given.",
    ),
    _Figure(
        "refused_writes",
        "mqnamesrv_raft_refused_writes_total",
        "counter",
        "Writes refused without anything sent: no leader, or none in contact.",
    ),
    _Figure(
        "unknown_outcomes",
        "mqnamesrv_raft_unknown_outcomes_total",
        "counter",
        "Writes whose verdict did not come in time.",
    ),
    _Figure("proposals", "mqnamesrv_raft_proposals", "gauge", "Writes of this member without a verdict."),
    _Figure(
        "barriers", "mqnamesrv_raft_barriers_total", "counter", "Barriers sent for linearizable reads here."
    ),
    _Figure(
        "barrier_rounds",
        "mqnamesrv_raft_barrier_rounds_total",
        "counter",
        "Rounds of heartbeats that barriers needed, as leader.",
    ),
)


def add_raft_figures(samples: Samples, status: Mapping[str, object]) -> None:
    """Add what ``raft_status`` says; a figure that is absent or None is left out."""
    for figure in _FIGURES:
        value = status.get(figure.key)
        if isinstance(value, (int, float)):  # bool is one
            scaled = int(value) if figure.scale == 1 and value == int(value) else value * figure.scale
            samples.add(figure.name, figure.kind, figure.help, scaled)
    commit, applied = status.get("commit_index"), status.get("applied_index")
    if isinstance(commit, int) and isinstance(applied, int):
        samples.add(
            "mqnamesrv_raft_apply_lag",
            "gauge",
            "Entries committed and not yet applied here.",
            max(0, commit - applied),
        )
    leads = int(status.get("role") == "leader")
    samples.add("mqnamesrv_raft_is_leader", "gauge", "1 while leading.", leads)
    samples.add(
        "mqnamesrv_raft_leader_known", "gauge", "1 while a leader is known.", int(bool(status.get("leader")))
    )
    members, learners = names_of(status, "members"), names_of(status, "learners")
    for kind, count in (("voter", len(members) - len(learners)), ("learner", len(learners))):
        samples.add("mqnamesrv_raft_members", "gauge", "Members by kind, as known here.", count, kind=kind)
    linked = names_of(status, "linked")
    for member in members:
        if member != status.get("me"):
            samples.add(
                "mqnamesrv_raft_link_up",
                "gauge",
                "1 while the authenticated link to a member is up.",
                int(member in linked),
                peer=member,
            )


def names_of(status: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return the members that ``raft_status`` lists under a key; none if it has no such key."""
    names = status.get(key)
    return tuple(str(name) for name in names) if isinstance(names, (list, tuple)) else ()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
