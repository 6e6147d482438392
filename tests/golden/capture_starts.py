"""Program that records the options of Apache's programs, and the settings that ``-p`` and ``-m`` print.

    python tests/golden/capture_starts.py 4.9.7
    python tests/golden/capture_starts.py 5.3.3

The program writes ``starts/RELEASE.json`` and ``starts/RELEASE-PROGRAM-FLAG.properties``. README.md beside
this file describes these files. The program needs the tools of the interop tests.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tests.interop.apache import BROKER_MAIN, NAMESRV_MAIN, RELEASES, Apache  # noqa: E402  (run as a script)

OUT: Final = HERE / "starts"
HOST: Final = "localhost.localdomain"
"""Host name that replaces the recording machine's name in the recorded settings."""
LIMIT_S: Final = 300.0


def options(apache: Apache, folder: Path) -> list[dict[str, object]]:
    """Return all options of mqnamesrv, mqbroker and mqadmin, as commons-cli declares them."""
    command, environment = apache.command(str(HERE / "OptionTables.java"), [], folder)
    printed = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout
    rows: list[dict[str, object]] = []
    for line in printed.splitlines():
        mark, *cells = line.split("\t")
        if mark == "option":
            program, alias, short, long, argument, required = cells
            rows.append(
                {
                    "program": program,
                    "alias": alias,
                    "short": short,
                    "long": long,
                    "argument": argument == "true",
                    "required": required == "true",
                }
            )
    return rows


def settings(apache: Apache, main: str, flag: str, folder: Path) -> str:
    """Return the settings that a program prints for the option ``-p`` or ``-m``, one setting per line."""
    command, environment = apache.command(main, [flag], folder, level="INFO")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    log = folder / "apache.log"
    printed = done.stdout + (log.read_text() if log.exists() else "")
    lines = []
    for line in printed.splitlines():
        found = re.search(r"(?:^| - )([A-Za-z][A-Za-z0-9]*=.*)$", line)
        if found:
            lines.append(found.group(1))
    text = "".join(line + "\n" for line in lines)
    return neutral(text, str(folder))


def neutral(text: str, folder: str) -> str:
    """Return the settings, with fixed names in place of the recording machine's names."""
    text = text.replace(folder, "/home/rocketmq").replace(socket.gethostname(), HOST)
    return re.sub(r"^(brokerIP[12])=.*$", r"\1=192.0.2.10", text, flags=re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record how Apache's programs are started.")
    parser.add_argument("release", choices=RELEASES)
    release = parser.parse_args().release
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="golden") as name:
        folder = Path(name)
        apache = Apache.open(release, folder)
        rows = options(apache, folder / "options")
        lines = ",\n".join(json.dumps(row) for row in rows)
        (OUT / f"{release}.json").write_text(f"[\n{lines}\n]\n")
        for program, start in (("mqnamesrv", NAMESRV_MAIN), ("mqbroker", BROKER_MAIN)):
            for flag in ("-p", "-m") if program == "mqbroker" else ("-p",):
                text = settings(apache, start, flag, folder / f"{program}{flag}")
                (OUT / f"{release}-{program}{flag}.properties").write_text(text)


if __name__ == "__main__":
    main()
