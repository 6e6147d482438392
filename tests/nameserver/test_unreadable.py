"""Each decoder must raise its own error for bytes that are not UTF-8 or are nested too deeply.

For such bytes, msgspec raises exceptions that do not derive from its class ``MsgspecError``. Any client can
send such bytes in its first frame, so an exception that no code catches would be dangerous.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from routekeeper.nameserver.commands import (
    Batch,
    CommandFormatError,
    DeleteTopic,
    Proposal,
    decode_batch,
    decode_command,
    encode_batch,
    encode_command,
)
from routekeeper.nameserver.raft.consensus import messages
from routekeeper.nameserver.raft.consensus.members import decode_configuration
from routekeeper.nameserver.raft.links.auth import MAGIC, NONCE_SIZE, Credentials, Handshake, LinkError
from routekeeper.nameserver.raft.types import StopMember
from routekeeper.nameserver.replicated import peer_messages
from routekeeper.nameserver.routes.image import ImageError, decode_image


def _hello(frame: bytes) -> object:
    mine = Credentials(me="a:1", members=frozenset({"a:1", "b:1"}), cluster="c", secret=b"x" * 32)
    return Handshake(mine, peer=None, nonce=bytes(NONCE_SIZE)).receive(frame)


def _longer(value: bytes) -> bytes:
    """Append an element that is nested too deeply to an encoded array.

    Decoders must skip elements that they do not know, because a newer release may append elements.
    """
    return bytes((value[0] + 1,)) + value[1:] + _DEEP


_NO_TEXT, _DEEP = b"\xa1\x96", b"\x91" * 100_000 + b"\xc0"
_HELLO = msgspec.msgpack.encode([MAGIC, "b:1", "a:1", "c", bytes(NONCE_SIZE), False])
_COMMAND = encode_command(DeleteTopic(topic="T", cluster_name=None, topic_revision=0))
_BATCH = encode_batch(Batch(proposals=(Proposal(boot_id=1, sequence=1, command=_COMMAND),)))
_VOTE = messages.encode(messages.Stale(term=1))
_REACHED = peer_messages.encode(peer_messages.ReadIndexReply(number=1, index=1))

UNREADABLE: dict[str, tuple[Callable[[bytes], object], type[Exception], bytes]] = {
    "hello, no text": (_hello, LinkError, b"\x96" + _NO_TEXT),
    "hello, deep": (_hello, LinkError, _longer(_HELLO)),
    "message, no text": (messages.decode, messages.MessageError, b"\1\x97\x00" + _NO_TEXT),
    "message, deep": (messages.decode, messages.MessageError, _VOTE[:1] + _longer(_VOTE[1:])),
    "exchange, no text": (
        peer_messages.decode,
        peer_messages.PeerMessageError,
        b"\1" + msgspec.msgpack.encode([1, 1, 1, 1, 1, 0.5, [["X", 1]]]).replace(b"\xa1X", _NO_TEXT),
    ),
    "exchange, deep": (
        peer_messages.decode,
        peer_messages.PeerMessageError,
        _REACHED[:1] + _longer(_REACHED[1:]),
    ),
    "command, no text": (decode_command, CommandFormatError, _COMMAND[:2] + b"\x94\x07" + _NO_TEXT),
    "command, deep": (decode_command, CommandFormatError, _COMMAND[:2] + _longer(_COMMAND[2:])),
    "batch, deep": (decode_batch, CommandFormatError, _BATCH[:1] + _longer(_BATCH[1:])),
    "configuration, no text": (decode_configuration, StopMember, b"\x92\1\x91" + _NO_TEXT),
    "configuration, deep": (decode_configuration, StopMember, b"\x92\1" + _DEEP),
    "image, no text": (decode_image, ImageError, b"\x92\1" + _NO_TEXT),
    "image, deep": (decode_image, ImageError, b"\x92\1" + _DEEP),
}


@pytest.mark.parametrize(("read", "error", "data"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_refused_in_the_readers_own_words(
    read: Callable[[bytes], object], error: type[Exception], data: bytes
) -> None:
    with pytest.raises(error):
        read(data)
