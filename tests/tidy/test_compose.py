"""Tests of the container files that need no container engine. tests/containers runs the containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from routekeeper.bench.__main__ import parser as mqbench_parser
from routekeeper.nameserver.settings.declared import NamesrvSettings

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "compose").glob("*.yaml"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
OURS = {f"routekeeper:{VERSION}", f"routekeeper-bench:{VERSION}"}
SECRETS = "/run/secrets/"
PROMETHEUS = ROOT / "compose" / "prometheus"
GRAFANA = ROOT / "compose" / "grafana"
SERVERS = {"mqnamesrv": "routekeeper.nameserver", "mqbroker": "routekeeper.broker"}


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def commands() -> list[Any]:
    return [
        pytest.param(service["command"], id=f"{path.stem}-{name}")
        for path in FILES
        for name, service in load(path)["services"].items()
        if service["image"] in OURS
    ]


@pytest.fixture(scope="session")
def compose_schema() -> dict[str, Any]:
    """Return the Compose specification's schema, from the wheel that ``make test`` downloads."""
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


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_command_line_parses_with_our_own_program(command: list[str], tmp_path: Path) -> None:
    program, *arguments = command
    if program in SERVERS:
        secret = tmp_path / "secret"
        secret.write_text("0123456789abcdef" * 4)
        arguments = [str(secret) if word.startswith(SECRETS) else word for word in arguments]
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
    elif program == "locust":
        arguments = [word.replace("/app/", f"{ROOT}/") for word in arguments]
        done = subprocess.run(
            [sys.executable, "-m", "locust", *arguments, "--list"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "ProducerUser" in done.stdout
    else:
        assert program == "mqbench", shlex.join(command)
        assert mqbench_parser().parse_args(arguments).do


@pytest.mark.parametrize(
    "unit", sorted((ROOT / "compose" / "systemd").glob("*.service")), ids=lambda p: p.stem
)
def test_the_page_starts_each_service_and_writes_its_settings_with_usable_content(
    unit: Path, tmp_path: Path
) -> None:
    page = (ROOT / "compose" / "README.md").read_text()
    assert f"systemctl enable --now {unit.stem}\n" in page
    (path,) = re.findall(r"^ExecStart=.* -c (\S+)", unit.read_text(), re.MULTILINE)
    written = re.search(rf"^printf '(.*)' > {re.escape(path)}$", page, re.MULTILINE)
    assert written is not None, path
    settings = tmp_path / "settings"
    settings.write_text(written[1].replace("\\n", "\n"))
    printed = subprocess.run(
        [sys.executable, "-m", SERVERS[unit.stem], "-c", str(settings), "-p"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(settings.read_text().splitlines()) <= set(printed.stdout.splitlines())


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
            for config in service.get("configs", []):
                assert config["source"] in document["configs"]
            used = [word for word in service.get("command", ()) if word.startswith(SECRETS)]
            assert set(used) == {SECRETS + name for name in service.get("secrets", [])}


def test_every_file_that_is_mounted_exists_and_no_secret_is_kept_here() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    for path in FILES:
        document = load(path)
        for config in document.get("configs", {}).values():
            assert (path.parent / config["file"]).is_file()
        for secret in document.get("secrets", {}).values():
            default = re.fullmatch(r"\$\{[A-Z_]+:-\./([\w-]+)\}", secret["file"])
            assert default, secret
            assert f"compose/{default[1]}" in ignored


def test_group_can_be_changed_over_http_in_every_member() -> None:
    for name, service in load(ROOT / "compose" / "raft.yaml")["services"].items():
        if name.startswith("namesrv-"):
            command = service["command"]
            assert command[command.index("--http-token-file") + 1] == "/run/secrets/http-token"


def test_our_images_have_the_version_of_the_package_everywhere() -> None:
    found = set()
    for path in (*FILES, *(ROOT / "compose" / "kubernetes").glob("*.yaml")):
        found |= set(re.findall(r"image: *(routekeeper\S*)", path.read_text()))
    assert found == OURS


def test_foreign_images_are_of_a_certain_version() -> None:
    images = {s["image"] for path in FILES for s in load(path)["services"].values()} - OURS
    assert images
    assert [image for image in images if not re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", image)] == []


def test_prometheus_scrapes_every_server_and_loads_the_rules() -> None:
    (service,) = load(ROOT / "compose" / "prometheus.yaml")["services"].values()
    mounted = {Path(config["target"]) for config in service["configs"]}
    (named,) = (word for word in service["command"] if word.startswith("--config.file="))
    file = Path(named.partition("=")[2])
    assert file in mounted
    config = load(PROMETHEUS / file.name)
    assert {file.parent / rules for rules in config["rule_files"]} == mounted - {file}
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert set(jobs) == set(SERVERS)
    for program, job in jobs.items():
        (targets,) = (group["targets"] for group in job["static_configs"])
        for cluster in ("independent", "raft"):
            servers = {
                f"{name}:{other['command'][other['command'].index('--http') + 1].rpartition(':')[2]}"
                for name, other in load(ROOT / "compose" / f"{cluster}.yaml")["services"].items()
                if other["command"][0] == program
            }
            assert sorted(targets) == sorted(servers)
    for rules, program in (("alerts.yml", "mqnamesrv"), ("broker-alerts.yml", "mqbroker")):
        assert set(re.findall(r'job="(\w+)"', (PROMETHEUS / rules).read_text())) == {program}


def test_grafana_is_given_prometheus_and_each_dashboard() -> None:
    (service,) = load(ROOT / "compose" / "grafana.yaml")["services"].values()
    mounted = {config["source"]: Path(config["target"]) for config in service["configs"]}
    (source,) = load(GRAFANA / "datasources.yml")["datasources"]
    (prometheus,) = load(ROOT / "compose" / "prometheus.yaml")["services"]
    assert source["url"] == f"http://{prometheus}:9090"
    (provider,) = load(GRAFANA / "dashboards.yml")["providers"]
    shown = {path for path in mounted.values() if path.parent == Path(provider["options"]["path"])}
    assert {path.name for path in shown} == {path.name for path in GRAFANA.glob("*.json")}
    for path in GRAFANA.glob("*.json"):
        board = json.loads(path.read_text())
        assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["uid"]}


def services() -> list[Any]:
    return [
        pytest.param(service, id=f"{path.stem}-{name}")
        for path in FILES
        for name, service in load(path)["services"].items()
        if service.get("command", [""])[0] in SERVERS
    ]


@pytest.mark.parametrize("service", services())
def test_server_is_confined_watched_and_given_time_to_end(service: dict[str, Any], tmp_path: Path) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}
    assert service["pids_limit"] > 0
    assert service["healthcheck"]["test"][0] == "CMD"
    # Docker must wait long enough before it kills the server, which first answers all open requests.
    assert service["stop_grace_period"] == f"{NamesrvSettings().drain_s + 15:.0f}s"


def dockerfile() -> dict[str, list[list[str]]]:
    """Return the instructions of each stage of the Dockerfile, split into words.

    The instructions of a stage begin with those of the stage on which it is built.
    """
    stages: dict[str, list[list[str]]] = {}
    for line in (ROOT / "compose" / "Dockerfile").read_text().replace("\\\n", " ").splitlines():
        words = line.split()
        if words[:1] == ["FROM"]:
            name = words[3]
            stages[name] = list(stages.get(words[1], ()))
        elif words and not line.startswith("#") and stages:
            stages[name].append(words)
    return stages


def copied(stage: str) -> set[str]:
    lines = [words for words in dockerfile()[stage] if words[0] == "COPY" and not words[1].startswith("--")]
    return {word for words in lines for word in words[1:-1]}


def test_image_holds_every_package_and_only_the_bench_image_what_measures() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert {"remoting", "nameserver", "broker", "client", "bench"} <= packages
    assert copied("server-packages") - {
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "bin",
    } == packages - {"bench"} | {"requirements.lock"}
    assert copied("bench-packages") - copied("server-packages") == {"bench", "requirements-bench.lock"}
    assert [name for name in copied("bench-packages") if not (ROOT / name).exists()] == []


def test_build_sees_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied("bench-packages")


@pytest.mark.parametrize("stage", ["server", "bench"])
def test_image_runs_as_nobody_special(stage: str) -> None:
    (user,) = (words[1] for words in dockerfile()[stage] if words[0] == "USER")
    assert user == "10001:10001"
