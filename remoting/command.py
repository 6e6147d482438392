"""RemotingCommand: one request or response as a value."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from routekeeper.remoting.bounds import REQUEST_HEADER_MAX
from routekeeper.remoting.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    VERSION,
    HeaderCodec,
    LanguageCode,
    ResponseCode,
)
from routekeeper.remoting.errors import RemoteProtocolError, RemotingError
from routekeeper.remoting.frame import Frame, encode_frame, split_frame
from routekeeper.remoting.header import (
    LANGUAGES,
    UNUSUAL,
    Header,
    decode_header,
    encode_header,
    encode_json,
    read_plain,
)

_LENGTHS_SIZE: Final = 8  # bytes of the two length words before a frame's header
_HEADER_WORD: Final = struct.Struct(">I")


class RemotingCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One request or response, the unit of communication between peers.

    Attributes:
        code: Request code in requests, response code in responses.
        opaque: Correlation id, an int32. No two unanswered requests of a connection have the same opaque.
        ext_fields: Arguments, text to text; never None. A receiver does not see a difference between absent
            and empty arguments.
        body: Raw bytes. An empty body and an absent body are the same on the wire.
        codec: Codec of the received header, or of the header to be sent.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    language: LanguageCode | None = LanguageCode.PYTHON
    version: int = VERSION
    remark: str | None = None
    ext_fields: Mapping[str, str]
    body: bytes = b""
    codec: HeaderCodec = HeaderCodec.JSON

    @classmethod
    def request(
        cls,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
    ) -> Self:
        """Make a request; the session that sends the request assigns ``opaque``."""
        return cls(code=code, ext_fields=ext_fields or {}, body=body, flag=FLAG_ONEWAY if oneway else 0)

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        *,
        remark: str | None = None,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Make the response to this request, with the same opaque and the same header codec."""
        return RemotingCommand(
            code=code,
            opaque=self.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            ext_fields=ext_fields or {},
            body=body,
            codec=self.codec,
        )

    def failed(self, error: Exception) -> RemotingCommand:
        """Make the response to this request after its handler raised ``error``.

        The remark is the error's text. If the error is no RemotingError, the name of its class comes first.
        """
        words = str(error) if isinstance(error, RemotingError) else f"{type(error).__name__}: {error}"
        # Replace characters that UTF-8 cannot encode, for example in the name of a file.
        return self.reply(ResponseCode.SYSTEM_ERROR, remark=words.encode("utf-8", "replace").decode())

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def with_opaque(self, opaque: int) -> RemotingCommand:
        return replace(self, opaque=opaque)

    def encode(self, opaque: int | None = None) -> bytes:
        """Return the whole frame.

        Args:
            opaque: Opaque to write into the frame; None for the opaque of this command.

        Raises:
            LocalProtocolError: The frame would exceed a limit, a number or a name does not fit into its
                field, or a text is not UTF-8.
        """
        language = "JAVA" if self.language is None else self.language._name_  # faster than .name
        opaque = self.opaque if opaque is None else opaque
        arguments = self.ext_fields or None
        if self.codec is _JSON:
            header = encode_json(self.code, language, self.version, opaque, self.flag, self.remark, arguments)
        else:
            spelt = dict(arguments) if arguments is not None else None
            header = encode_header(
                Header(self.code, language, self.version, opaque, self.flag, self.remark, spelt), self.codec
            )
        return encode_frame(header, self.body, codec=self.codec)


def encode_done(request: RemotingCommand) -> bytes:
    """Return the frame of a successful answer without content: ``request.reply().encode()``.

    Most answers to brokers are of this kind. All bytes except the opaque are encoded in advance.
    """
    if request.codec is not _JSON:
        return request.reply().encode()
    opaque = b"%d" % request.opaque
    return _DONE_HEADS[len(opaque)] + opaque + _DONE_AFTER


# This module-level name saves a look-up in the enum class. The look-up would take longer than the rest of
# encode_done().
_JSON: Final = HeaderCodec.JSON
_DONE_OPAQUE: Final = 2_000_000_000
_DONE_LENGTHS: Final = struct.Struct(">II")
_DONE_BEFORE, _, _DONE_AFTER = (
    RemotingCommand(code=0, opaque=_DONE_OPAQUE, ext_fields={})
    .reply()
    .encode()[_LENGTHS_SIZE:]
    .partition(b"%d" % _DONE_OPAQUE)
)
_DONE_SIZE: Final = len(_DONE_BEFORE) + len(_DONE_AFTER)
#: The bytes of a successful, empty answer before its opaque. The index is the number of characters of the
#: opaque: an int32 has 1 to 11 characters.
_DONE_HEADS: Final = tuple(
    _DONE_LENGTHS.pack(4 + _DONE_SIZE + characters, _DONE_SIZE + characters) + _DONE_BEFORE
    for characters in range(12)
)


SUCCESS: Final = RemotingCommand(code=ResponseCode.SUCCESS, ext_fields={})
"""Answer that a handler may return in place of ``request.reply()``, see :func:`encode_done`."""


def read_command(data: bytes, start: int, size: int) -> RemotingCommand:
    """Return the request in the frame whose length word is at position ``start`` and has the value ``size``.

    The result equals ``decode_command(split_frame(data, start, size))``. For most frames, this function takes
    only a third of the time. It also has a stricter limit: the header may have at most
    :data:`~routekeeper.remoting.bounds.REQUEST_HEADER_MAX` bytes.

    Raises:
        RemoteProtocolError: The frame or its header is malformed, or the header is too long.
    """
    found = _read_plain(data, start, size)
    if found is not None:
        return found
    frame = split_frame(data, start, size)
    if len(frame.header) > REQUEST_HEADER_MAX:
        raise RemoteProtocolError(
            f"header of {len(frame.header)} bytes is above the limit of {REQUEST_HEADER_MAX}"
        )
    return decode_command(frame)


def read_pieces(pieces: Sequence[bytes | bytearray]) -> RemotingCommand:
    """Return the request in a frame that was received in pieces; copy its body only once.

    Raises:
        RemoteProtocolError: See :func:`read_command`.
    """
    head = bytes(pieces[0])  # bytes() copies only a bytearray, and such a piece is small
    if len(head) >= _LENGTHS_SIZE:
        (word,) = _HEADER_WORD.unpack_from(head, 4)
        body_at = _LENGTHS_SIZE + word
        found = _read_plain(head, 0, body_at - 4) if body_at <= len(head) else None
        if found is not None:
            return replace(found, body=b"".join((memoryview(head)[body_at:], *pieces[1:])))
    frame = b"".join(pieces)
    return read_command(frame, 0, len(frame) - 4)


def read_answer(data: bytes, start: int, size: int) -> RemotingCommand:
    """Return the command in a frame, like :func:`read_command`, but with a header of any size.

    Use this only for data from a peer to which this program connected.

    Raises:
        RemoteProtocolError: The frame or its header is malformed.
    """
    found = _read_plain(data, start, size)
    return decode_command(split_frame(data, start, size)) if found is None else found


def _read_plain(data: bytes, start: int, size: int) -> RemotingCommand | None:
    """Return the command in a frame with a small JSON header of known members; None for any other frame."""
    if size < 4:
        return None
    (word,) = _HEADER_WORD.unpack_from(data, start + 4)
    stop = start + 4 + size
    body_at = start + _LENGTHS_SIZE + word
    # If the header is not JSON, the first byte of this word is not 0. The word then exceeds the limit.
    if word > REQUEST_HEADER_MAX or body_at > stop:
        return None
    try:
        header = read_plain(data[start + _LENGTHS_SIZE : body_at])
    except UNUSUAL:
        return None  # decode_header() then reads the header or raises the error
    return RemotingCommand(
        code=header.code,
        opaque=header.opaque,
        flag=header.flag,
        language=LANGUAGES.get(header.language),
        version=header.version,
        remark=header.remark,
        ext_fields=header.ext_fields or {},
        body=data[body_at:stop],
    )


def decode_command(frame: Frame) -> RemotingCommand:
    """Decode the header of a frame, and return the command.

    Raises:
        RemoteProtocolError: The header is malformed.
    """
    header = decode_header(frame.header, frame.codec)
    return RemotingCommand(
        code=header.code,
        opaque=header.opaque,
        flag=header.flag,
        language=LANGUAGES.get(header.language),
        version=header.version,
        remark=header.remark,
        ext_fields=header.ext_fields or {},
        body=frame.body,
        codec=frame.codec,
    )
