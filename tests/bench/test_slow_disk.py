"""If the disk of one process is made slow, each of its syncs takes longer, in Python and in a JVM."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from routekeeper.bench import slow_disk
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.slow_disk import SlowDisks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(slow_disk.missing() is not None, reason=f"a slow disk needs {slow_disk.missing()}"),
]

MORE_MS: Final = 20.0
#: Programs in Python and Java. For each line of stdin, they sync the file that their argument names, and then
#: print a line.
PYTHON: Final = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for line in sys.stdin:
    os.write(file, b"x")
    (os.fsync if line == "fsync\\n" else os.fdatasync)(file)
    print("done", flush=True)
"""
JAVA: Final = """
import java.io.*;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.*;

class Sync {
    public static void main(String[] words) throws IOException {
        FileChannel file = FileChannel.open(
            Path.of(words[0]), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            file.write(ByteBuffer.wrap(new byte[] {1}));
            file.force(line.equals("fsync"));
            System.out.println("done");
        }
    }
}
"""


@contextmanager
def syncing(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def quick_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory, if the system has one.

    While other processes use the disk, a sync on the disk may take a second.
    """
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as found:
        yield Path(found)


def least_ms(process: subprocess.Popen[str], word: str) -> float:
    """Return the time in ms of the fastest of 20 syncs.

    Args:
        word: Kind of sync: ``fsync`` or ``fdatasync``.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    found = []
    for _ in range(20):
        began = time.perf_counter()
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        found.append((time.perf_counter() - began) * 1e3)
    return min(found)


@pytest.mark.parametrize("language", ["python", "java"])
def test_sync_takes_longer_while_the_disk_is_slow(tmp_path: Path, quick_disk: Path, language: str) -> None:
    if language == "java":
        if shutil.which("javac") is None:
            pytest.skip("needs a Java development kit")
        (tmp_path / "Sync.java").write_text(JAVA)
        program = ["java", str(tmp_path / "Sync.java")]
    else:
        program = [sys.executable, "-c", PYTHON]
    disks = SlowDisks(tmp_path / "shim", more_ms=MORE_MS)
    command = [*disks.prefix(1), *program, str(quick_disk / "synced")]
    with syncing(command) as process:
        for word in ("fsync", "fdatasync"):
            disks.quick(1)
            disks.slow(0)  # the disk of process 0, not of this process
            quick = least_ms(process, word)
            disks.slow(1)
            slow = least_ms(process, word)
            print(f"{language} {word}: {quick:.2f} ms, slow {slow:.2f} ms")
            assert slow >= MORE_MS
            assert quick < MORE_MS


def test_shim_that_does_not_compile_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_disk, "_SOURCE", "this is no C")
    with pytest.raises(ClusterError, match="the shim of the slow disk does not compile: "):
        SlowDisks(tmp_path, more_ms=MORE_MS)
