"""Route queries whose JSON headers break the rules of JSON, sent to a running nameserver."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.command import decode_command
from routekeeper.remoting.frame import Frame, FrameDecoder, encode_frame
from tests.nameserver.test_main import started


@pytest.mark.slow
def test_query_with_a_raw_control_character_or_half_a_character_is_answered(tmp_path: Path) -> None:
    header = (
        b'{"code":105,"extFields":{"topic":"T%b"},"flag":0,"language":"DOTNET","opaque":%d,"version":275}'
    )
    # Each header comes three times, because the nameserver answers known headers without reading them again.
    asked = [(text, number) for number, text in enumerate([b"\x01", b"\\ud83d", b"\n"] * 3, 10)]
    with (
        started(tmp_path, "--http", "off") as (_, ready),
        socket.create_connection(split_address(ready["listen"]), timeout=60) as peer,
    ):
        decoder = FrameDecoder()
        for text, opaque in asked:
            peer.sendall(encode_frame(header % (text, opaque), codec=HeaderCodec.JSON))
            frames: list[Frame] = []
            while not frames:
                received = peer.recv(1 << 16)
                assert received, "the nameserver closed the connection"
                frames = list(decoder.feed(received))
            (answer,) = map(decode_command, frames)
            assert (answer.code, answer.opaque) == (17, opaque)
