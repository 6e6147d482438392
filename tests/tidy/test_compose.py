"""The container files, checked as far as that goes without a container engine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bench.__main__ import parser as mqbench_parser

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "compose").glob("*.yaml"))
SERVERS = {"mqnamesrv": "nameserver", "mqbroker": "broker"}


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def commands() -> list[Any]:
    return [
        pytest.param(service["command"], id=f"{path.stem}-{name}")
        for path in FILES
        for name, service in load(path)["services"].items()
    ]


@pytest.fixture(scope="session")
def compose_schema() -> dict[str, Any]:
    """The Compose specification's schema, out of the wheel that ``make test`` fetches."""
    wheels = sorted((Path(sys.prefix) / "compose-schema").glob("docker_compose-*.whl"))
    if not wheels:
        reason = "the Compose schema is not here: run make test"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with zipfile.ZipFile(wheels[0]) as wheel:
        schema: dict[str, Any] = json.loads(wheel.read("compose/config/compose_spec.json"))
    return schema


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_compose_file_follows_the_schema(path: Path, compose_schema: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(compose_schema).validate(load(path))


def test_schema_refuses_a_misspelt_key(compose_schema: dict[str, Any]) -> None:
    document = load(ROOT / "compose" / "raft.yaml")
    document["services"]["broker-1"]["comand"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.Draft7Validator(compose_schema).validate(document)


@pytest.mark.parametrize("command", commands())
def test_command_line_parses_with_our_own_program(command: list[str], tmp_path: Path) -> None:
    program, *arguments = command
    if program in SERVERS:
        secret = tmp_path / "secret"
        secret.write_text("0123456789abcdef" * 4)
        arguments = [str(secret) if word == "/run/secrets/raft-secret" else word for word in arguments]
        done = subprocess.run(
            [sys.executable, "-m", SERVERS[program], *arguments, "-p"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "=" in done.stdout
    elif program == "mqbench":
        assert mqbench_parser().parse_args(arguments).do
    else:
        assert program == "spark-submit", shlex.join(command)
        job = next(word for word in arguments if word.endswith(".py"))
        path = ROOT / Path(job).relative_to("/app")
        assert path.exists(), f"{job} is not in the image"
        words = arguments[arguments.index(job) + 1 :]
        done = subprocess.run(
            [sys.executable, str(path), *words, "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_every_mount_and_dependency_is_declared() -> None:
    for path in FILES:
        document = load(path)
        for service in document["services"].values():
            for mount in service.get("volumes", []):
                assert mount.split(":")[0] in document["volumes"]
            for name in service.get("depends_on", []):
                assert name in document["services"]
            for name in service.get("secrets", []):
                assert name in document["secrets"]


def test_image_holds_every_package_and_lock_file_it_installs() -> None:
    lines = (ROOT / "compose" / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert {"remoting", "nameserver", "broker", "client", "bench", "requirements-bench.lock"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
