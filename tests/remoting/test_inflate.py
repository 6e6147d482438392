"""Tests of compressed bodies: the results of each method, and refusal of a huge body before decompression."""

from __future__ import annotations

import subprocess
import sys
import zlib

import lz4.frame
import pytest
import zstandard

from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError
from routekeeper.remoting.inflate import LZ4, ZLIB, ZSTANDARD, deflate, inflate
from routekeeper.remoting.message import SYS_COMPRESSED, compress_body, decompress_body

BODY = b"some text that repeats itself, some text that repeats itself" * 50
METHODS = [pytest.param(0, id="zlib of 4.9"), pytest.param(ZLIB, id="zlib"), LZ4, ZSTANDARD]


def zstd_unsized(body: bytes) -> bytes:
    """Compress as Java's ZstdOutputStream does, without the size of the content in the header."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(body)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("body", [b"", b"x", BODY])
def test_what_was_compressed_comes_back(method: int, body: bytes) -> None:
    small = compress_body(body, method=method)
    assert decompress_body(small, SYS_COMPRESSED | method << 8) == body
    assert decompress_body(small, 0) == small, "not compressed, as far as the flag says"


def test_a_zstandard_frame_without_size_comes_back() -> None:
    assert inflate(zstd_unsized(BODY), ZSTANDARD, size_max=len(BODY)) == BODY


@pytest.mark.parametrize("method", METHODS)
def test_a_body_at_its_limit_is_taken_and_one_above_is_refused(method: int) -> None:
    small = deflate(BODY, method, level=5)
    assert inflate(small, method, size_max=len(BODY)) == BODY
    with pytest.raises(RemoteProtocolError, match=f"limit of {len(BODY) - 1}"):
        inflate(small, method, size_max=len(BODY) - 1)


@pytest.mark.parametrize("method", METHODS)
def test_cut_and_foreign_bodies_are_refused(method: int) -> None:
    small = deflate(BODY, method, level=5)
    for bad in (b"", b"x", b"no stream of any kind", *(small[:size] for size in range(1, len(small), 7))):
        with pytest.raises(RemoteProtocolError):
            inflate(bad, method, size_max=1 << 20)


@pytest.mark.parametrize("method", [4, 7])
def test_unknown_methods_are_refused(method: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"method {method}, known are"):
        inflate(b"x", method, size_max=1)
    with pytest.raises(LocalProtocolError):
        deflate(b"x", method, level=5)


BOMBS = {
    "zlib": (ZLIB, lambda zeros: zlib.compress(zeros, 9)),
    "lz4": (LZ4, lz4.frame.compress),
    "lz4 that states its size": (LZ4, lambda zeros: lz4.frame.compress(zeros, store_size=True)),
    "zstd": (ZSTANDARD, zstd_unsized),
    "zstd that states its size": (ZSTANDARD, zstandard.compress),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_no_more_memory_than_the_limit(name: str) -> None:
    method, compress = BOMBS[name]
    bomb = compress(bytes(100 << 20))
    program = f"""
import resource, sys
import lz4.frame, zstandard
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.inflate import inflate
bomb = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    inflate(bomb, {method}, size_max=4 << 20)
except RemoteProtocolError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], input=bomb, capture_output=True, check=True)
    assert int(done.stdout) * 1024 < 32 << 20, "kilobytes grown"


def test_the_two_libraries_are_loaded_only_when_a_body_needs_them() -> None:
    program = (
        "import sys, routekeeper.remoting.message\n"
        "print([name for name in ('lz4', 'zstandard') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout == "[]\n"
