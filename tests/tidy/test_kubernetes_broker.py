"""Tests of the Kubernetes manifests: published schemas, and agreement with the broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from routekeeper.broker.server.ending import END_S

FOLDER = Path(__file__).resolve().parents[2] / "compose" / "kubernetes"
SCHEMAS = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict"
NAMESERVERS = "namesrv-0.namesrv:9876;namesrv-1.namesrv:9876;namesrv-2.namesrv:9876"


def documents(name: str) -> dict[str, dict[str, Any]]:
    text = (FOLDER / f"{name}.yaml").read_text()
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def schemas() -> Iterator[zipfile.ZipFile]:
    """Yield the schemas of Kubernetes, from the wheel that ``make test`` downloads."""
    wheels = sorted((Path(sys.prefix) / "compose-schema").glob("kubernetes_validate-*.whl"))
    if not wheels:
        reason = "the schemas of Kubernetes are not here: run make test"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with zipfile.ZipFile(wheels[0]) as wheel:
        yield wheel


def validator(schemas: zipfile.ZipFile, document: dict[str, Any]) -> jsonschema.Draft7Validator:
    def read(name: str) -> Resource[Any]:
        content = json.loads(schemas.read(f"{SCHEMAS}/{name.rpartition('/')[2]}"))
        return Resource.from_contents(content, default_specification=DRAFT7)

    group, _, version = document["apiVersion"].rpartition("/")
    name = "-".join(filter(None, (document["kind"].lower(), group.partition(".")[0], version)))
    registry: Registry[Any] = Registry(retrieve=read)  # type: ignore[call-arg]
    return jsonschema.Draft7Validator(read(f"{name}.json").contents, registry=registry)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_manifest_follows_the_published_schema(name: str, schemas: zipfile.ZipFile) -> None:
    for document in documents(name).values():
        found = validator(schemas, document)
        assert [error.message for error in found.iter_errors(document)] == []


def test_schema_refuses_a_misspelled_field(schemas: zipfile.ZipFile) -> None:
    document = documents("broker")["StatefulSet"]
    document["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    assert list(validator(schemas, document).iter_errors(document))


def container() -> dict[str, Any]:
    (found,) = documents("broker")["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def settings(pod: str, folder: Path) -> dict[str, str]:
    """Return the broker's settings in one pod, from its command line."""
    program, *words = (word.replace("$(POD_NAME)", pod) for word in container()["command"])
    assert program == "mqbroker"
    flags = [f"--store={folder}" if word == "--store=/data" else word for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "routekeeper.broker", *flags, "-p"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_each_pod_is_a_broker_of_its_own_at_the_name_of_its_service(tmp_path: Path) -> None:
    found = settings("broker-1", tmp_path)
    stateful = documents("broker")["StatefulSet"]
    service = documents("broker")["Service"]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"] == "broker"
    assert found["brokerName"] == "broker-1"
    assert (found["brokerIP1"], found["advertisePort"]) == ("broker-1.broker", found["listenPort"])
    members = documents("raft")["StatefulSet"]
    addresses = [
        f"{members['metadata']['name']}-{number}.{members['spec']['serviceName']}:9876"
        for number in range(members["spec"]["replicas"])
    ]
    assert found["namesrvAddr"] == ";".join(addresses) == NAMESERVERS
    ports = {"remoting": found["listenPort"], "http": found["httpListen"].rpartition(":")[2]}
    assert {port["name"]: str(port["containerPort"]) for port in container()["ports"]} == ports
    assert {port["name"]: str(port["port"]) for port in service["spec"]["ports"]} == ports


def test_probes_volume_and_time_to_end_are_those_of_the_broker() -> None:
    spec = documents("broker")["StatefulSet"]["spec"]
    probes = {name: container()[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert probes["readiness"] == {"path": "/readyz", "port": "http"}
    # A broker whose disk fails is not ready. Kubernetes must not restart it, because this would not help.
    assert probes["startup"] == probes["liveness"] == {"path": "/healthz", "port": "http"}
    (claim,) = spec["volumeClaimTemplates"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container()["volumeMounts"]}
    assert mounts["/data"] == claim["metadata"]["name"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > END_S
    labels = spec["template"]["metadata"]["labels"]
    assert labels == spec["selector"]["matchLabels"] == documents("broker")["Service"]["spec"]["selector"]


def test_broker_is_confined_as_the_nameservers_are() -> None:
    (nameserver,) = documents("raft")["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert container()["securityContext"] == nameserver["securityContext"]
    pods = [documents(name)["StatefulSet"]["spec"]["template"]["spec"] for name in ("raft", "broker")]
    assert pods[0]["securityContext"] == pods[1]["securityContext"]
