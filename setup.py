"""Folders of the package's parts in the repository. All other settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).parent
FOLDERS = [
    folder for folder in ("remoting", "nameserver", "broker", "client", "bench") if (ROOT / folder).is_dir()
]
# Leave out bench/micro, because it compares commits of the code and so works only in a checkout.
NAMES = find_namespace_packages(
    str(ROOT),
    include=[f"{folder}{end}" for folder in FOLDERS for end in ("", ".*")],
    exclude=["bench.micro", "bench.micro.*"],
)

setup(
    # Install shell scripts, because RocketMQ's guides say "sh mqadmin". That fails with the Python programs
    # that pip makes for entry points.
    scripts=[f"bin/{name}" for name in ("mqnamesrv", "mqbroker", "mqadmin", "mqshutdown")],
    packages=["routekeeper", *(f"routekeeper.{name}" for name in NAMES)],
    package_dir={"routekeeper": "routekeeper", **{f"routekeeper.{folder}": folder for folder in FOLDERS}},
)
