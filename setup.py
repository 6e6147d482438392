"""Folders of the package's parts in the repository; all other settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).parent
FOLDERS = [
    folder for folder in ("remoting", "nameserver", "broker", "client", "bench") if (ROOT / folder).is_dir()
]
# bench/micro measures parts of the code beside other commits of it: it needs a checkout.
NAMES = find_namespace_packages(
    str(ROOT),
    include=[f"{folder}{end}" for folder in FOLDERS for end in ("", ".*")],
    exclude=["bench.micro", "bench.micro.*"],
)

setup(
    # Shell scripts: RocketMQ's guides say "sh mqadmin", which fails on programs in Python as pip makes them.
    scripts=[f"bin/{name}" for name in ("mqnamesrv", "mqbroker", "mqadmin", "mqshutdown")],
    packages=["routekeeper", *(f"routekeeper.{name}" for name in NAMES)],
    package_dir={"routekeeper": "routekeeper", **{f"routekeeper.{folder}": folder for folder in FOLDERS}},
)
