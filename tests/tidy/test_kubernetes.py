"""Tests that our programs accept the command lines of the Kubernetes example, and that its parts agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "compose" / "kubernetes" / "raft.yaml"
SECRETS = "/run/secrets/mqnamesrv/"


def documents() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(EXAMPLE.read_text())}


def stateful_set() -> dict[str, Any]:
    spec: dict[str, Any] = documents()["StatefulSet"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (found,) = stateful_set()["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def pods() -> list[str]:
    name = documents()["StatefulSet"]["metadata"]["name"]
    return [f"{name}-{number}" for number in range(stateful_set()["replicas"])]


def settings(pod: str, directory: Path) -> dict[str, str]:
    """Return the server's settings in one pod, from its command line as Kubernetes expands it."""
    (variable,) = container()["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    (directory / "secret").write_text("0123456789abcdef" * 4)
    program, *words = (word.replace(f"$({variable['name']})", pod) for word in container()["command"])
    assert program == "mqnamesrv"
    assert not [word for word in words if "$(" in word]
    flags = [
        f"{word.partition('=')[0]}={directory / 'secret'}" if SECRETS in word else word for word in words
    ]
    done = subprocess.run(
        [sys.executable, "-m", "routekeeper.nameserver", *flags, "-p"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=directory,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("pod", pods())
def test_command_line_is_that_of_a_member_of_the_group(pod: str, tmp_path: Path) -> None:
    found = settings(pod, tmp_path)
    service = documents()["Service"]["metadata"]["name"]
    assert found["mode"] == "raft"
    assert found["raftAddress"] == f"{pod}.{service}:9878"
    assert found["raftPeers"].split(",") == [f"{name}.{service}:9878" for name in pods()]
    assert (
        int(found["shutdownWaitTimeSeconds"])
        < stateful_set()["template"]["spec"]["terminationGracePeriodSeconds"]
    )
    mounts = {mount["mountPath"]: mount["name"] for mount in container()["volumeMounts"]}
    assert mounts[found["dataDir"]] == stateful_set()["volumeClaimTemplates"][0]["metadata"]["name"]


def test_ports_and_probes_are_those_that_the_server_binds(tmp_path: Path) -> None:
    found = settings(pods()[0], tmp_path)
    bound = {
        "remoting": found["listenPort"],
        "raft": found["raftListen"].rpartition(":")[2],
        "http": found["httpListen"].rpartition(":")[2],
    }
    assert {port["name"]: str(port["containerPort"]) for port in container()["ports"]} == bound
    assert {port["name"]: str(port["port"]) for port in documents()["Service"]["spec"]["ports"]} == bound
    probes = {name: container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {"http"}
    assert probes["readiness"]["path"] == "/readyz"
    # A member without a leader is not ready. Kubernetes must not restart it, which would make the outage
    # worse.
    assert {probes["startup"]["path"], probes["liveness"]["path"]} == {"/healthz"}


def test_members_meet_before_they_are_ready_and_one_at_most_is_away() -> None:
    found = documents()
    assert found["Service"]["spec"]["clusterIP"] == "None"
    assert found["Service"]["spec"]["publishNotReadyAddresses"] is True
    assert stateful_set()["serviceName"] == found["Service"]["metadata"]["name"]
    assert stateful_set()["podManagementPolicy"] == "Parallel"
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == (len(pods()) - 1) // 2
    labels = stateful_set()["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"] == labels == found["Service"]["spec"]["selector"]
    assert stateful_set()["selector"]["matchLabels"] == labels


def test_pod_is_confined_as_in_the_compose_files() -> None:
    pod = stateful_set()["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["runAsNonRoot"] is True
    context = container()["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert container()["resources"]["limits"].keys() == {"cpu", "memory"}
    mounted = {mount["name"] for mount in container()["volumeMounts"]}
    declared = {volume["name"] for volume in pod["volumes"]}
    assert mounted == declared | {"data"}
