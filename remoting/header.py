"""The two header codecs: JSON and ROCKETMQ binary."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import orjson

from routekeeper.remoting.bounds import ARGUMENTS_MAX
from routekeeper.remoting.codes import HeaderCodec, LanguageCode
from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError
from routekeeper.remoting.lenient import REQUEST, loads_raw

_FIXED: Final = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, remark length
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT32_RANGE: Final = range(-(2**31), 2**31)
_INT16_RANGE: Final = range(-(2**15), 2**15)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
#: Code of each language by its name in JSON headers.
LANGUAGES: Final = {language.name: language for language in LanguageCode}


_Arguments = Annotated[dict[str, str], msgspec.Meta(max_length=ARGUMENTS_MAX)]
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """Header of one request or response, with the members that known peers send.

    Attributes:
        code: Request or response code, int32 (int16 in the binary form).
        language: Name of the sender's language; any name is accepted, see :data:`LANGUAGES`.
        version: Ordinal of the sender's release.
        opaque: Correlation id, int32; a response repeats the id of its request.
        flag: Bits, see ``FLAG_RESPONSE`` and ``FLAG_ONEWAY``.
        remark: Text for people, or None.
        ext_fields: Arguments, text to text. None (no arguments) and empty differ only on the wire.
        serialize_type: Name of the codec. JSON headers contain it, but no code reads it.
    """

    code: _Int32 = 0
    language: str = "JAVA"
    version: _Int32 = 0
    opaque: _Int32 = 0
    flag: _Int32 = 0
    remark: str | None = None
    ext_fields: _Arguments | None = msgspec.field(default=None, name="extFields")
    serialize_type: str = msgspec.field(default="JSON", name="serializeTypeCurrentRPC")


#: Reads a usual JSON header in one step. For any other header, it raises an error in :data:`UNUSUAL`. Then
#: call :func:`decode_header`, which reads unusual headers and names the fault of a wrong header.
read_plain: Final = msgspec.json.Decoder(Header).decode
UNUSUAL: Final = (msgspec.DecodeError, UnicodeDecodeError)


def encode_header(header: Header, codec: HeaderCodec) -> bytes:
    """Encode a header.

    Raises:
        LocalProtocolError: If a number or a name does not fit the codec's field, or a text is not UTF-8.
    """
    if codec is not HeaderCodec.JSON:
        return _encode_binary(header)
    return encode_json(
        header.code,
        header.language,
        header.version,
        header.opaque,
        header.flag,
        header.remark,
        header.ext_fields,
    )


def decode_header(data: bytes, codec: HeaderCodec) -> Header:
    """Decode a header as tolerantly as Java: skip unknown members, use the default for missing members.

    Raises:
        RemoteProtocolError: If the bytes are no header of this codec.
    """
    return _decode_json(data) if codec is HeaderCodec.JSON else _decode_binary(data)


def encode_json(
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: Mapping[str, str] | None,
) -> bytes:
    """Encode a JSON header from its members; the arguments are the attributes of :class:`Header`.

    Raises:
        LocalProtocolError: If a text has half of a surrogate pair.
    """
    # Java writes the members in alphabetical order and leaves out members that are null.
    members: dict[str, Any] = {"code": code}
    if ext_fields is not None:
        members["extFields"] = ext_fields if type(ext_fields) is dict else dict(ext_fields)
    members["flag"] = flag
    members["language"] = language
    members["opaque"] = opaque
    if remark is not None:
        members["remark"] = remark
    members["serializeTypeCurrentRPC"] = "JSON"
    members["version"] = version
    try:
        return orjson.dumps(members)
    except orjson.JSONEncodeError as error:
        raise LocalProtocolError(f"header cannot be sent as JSON: {error}") from None


def _decode_json(data: bytes) -> Header:
    try:
        return read_plain(data)
    except UNUSUAL:
        return read_any_json(data)


def read_any_json(data: bytes) -> Header:
    """Read a JSON header of any sender; unknown members, and numbers as text, are allowed.

    Unlike :data:`read_plain`, this function accepts everything that :func:`decode_header` accepts.

    Raises:
        RemoteProtocolError: If the bytes are no JSON header.
    """
    try:
        members = _loads(data)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"header of {len(data)} bytes is not JSON: {error}") from None
    if type(members) is not dict:
        raise RemoteProtocolError(f"header is a JSON {type(members).__name__}, must be an object")
    remark, language = members.get("remark"), members.get("language", "JAVA")
    ext_fields = members.get("extFields")
    if ext_fields is not None:
        if type(ext_fields) is not dict:
            raise RemoteProtocolError(f"extFields is a JSON {type(ext_fields).__name__}, must be an object")
        _check_count(len(ext_fields))
        for value in ext_fields.values():
            if type(value) is not str:
                ext_fields = _texts(ext_fields)
                break
    return Header(
        _int32(members, "code"),
        language if type(language) is str else "",
        _int32(members, "version"),
        _int32(members, "opaque"),
        _int32(members, "flag"),
        _spelt(remark) if remark is not None else None,
        ext_fields,
    )


def _loads(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # A client may send keys of messages in a local encoding. Java reads U+FFFD in place of wrong bytes.
        text = data.decode("utf-8", "replace")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # A .NET client does not escape the control characters that separate a message's properties, and a
        # client in JavaScript may send half of a surrogate pair. Java reads both.
        if len(data) > REQUEST.dialect_size:
            raise
        return loads_raw(text)


def _check_count(count: int) -> None:
    if count > ARGUMENTS_MAX:
        raise RemoteProtocolError(f"header has {count} arguments or more, allowed are {ARGUMENTS_MAX}")


def _spelt(value: object) -> str:
    """Return a plain JSON value (text, number or boolean) as text."""
    if type(value) is str:
        return value
    if type(value) in (int, float, bool):
        return orjson.dumps(value).decode()
    raise RemoteProtocolError(f"remark is a JSON {type(value).__name__}, must be text")


def _int32(members: Mapping[str, Any], name: str) -> int:
    value: object = members.get(name, 0)
    if value is None:
        return 0
    if type(value) is str and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int or value not in _INT32_RANGE:
        # The error message shows the beginning of a long text, and only the type of a list or object. The
        # whole value would fill the message.
        plain = value if type(value) in (int, float, bool) else type(value).__name__
        shown = repr(value[:40]) if type(value) is str else plain
        raise RemoteProtocolError(f"header member {name} is {shown}, allowed: integers of 32 bits")
    return value


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return JSON values as text; leave out an argument whose value is null."""
    try:
        return {
            name: value if type(value) is str else orjson.dumps(value).decode()
            for name, value in values.items()
            if value is not None
        }
    except TypeError as error:  # orjson can read deeper nesting than it can write
        raise RemoteProtocolError(f"extFields hold a value that is no argument: {error}") from None


def _encode_binary(header: Header) -> bytes:
    if header.code not in _INT16_RANGE or header.version not in _INT16_RANGE:
        raise LocalProtocolError(
            f"code={header.code} or version={header.version} does not fit the 16 bits of a binary header"
        )
    try:
        remark = (header.remark or "").encode()
        entries = b"".join(
            _INT16.pack(len(key)) + key + _INT32.pack(len(value)) + value
            for key, value in (
                (name.encode(), text.encode()) for name, text in (header.ext_fields or {}).items()
            )
        )
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"header cannot be sent as UTF-8: {error.reason}") from None
    except struct.error:  # a broker may forward a client's answer, and the client chose these names
        raise LocalProtocolError(
            "argument name is longer than the 32767 bytes that a binary header allows"
        ) from None
    language = LANGUAGES.get(header.language, LanguageCode.JAVA)
    fixed = _FIXED.pack(header.code, language, header.version, header.opaque, header.flag, len(remark))
    return fixed + remark + _INT32.pack(len(entries)) + entries


def _decode_binary(data: bytes) -> Header:
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(data)
        position = _FIXED.size
        remark, position = _text(data, position, remark_size)
        (entries_size,) = _INT32.unpack_from(data, position)
        position += 4
        end = position + entries_size
        if entries_size < 0 or end > len(data):
            raise RemoteProtocolError(f"extFields of {entries_size} bytes run past the header's {len(data)}")
        ext_fields: dict[str, str] | None = {} if entries_size else None
        count = 0  # counts repeated names, too: 1 MiB of repeated names would block other work for too long
        while position < end:
            count += 1
            _check_count(count)
            (key_size,) = _INT16.unpack_from(data, position)
            key, position = _text(data, position + 2, key_size)
            (value_size,) = _INT32.unpack_from(data, position)
            value, position = _text(data, position + 4, value_size)
            assert ext_fields is not None
            ext_fields[key] = value
    except struct.error as error:
        raise RemoteProtocolError(f"binary header of {len(data)} bytes is malformed: {error}") from None
    return Header(
        code,
        LanguageCode(language).name if language <= LanguageCode.NODE_JS else "",
        version,
        opaque,
        flag,
        remark if remark_size else None,
        ext_fields,
    )


def _text(data: bytes, start: int, size: int) -> tuple[str, int]:
    end = start + size
    if size < 0 or end > len(data):
        raise RemoteProtocolError(f"text of {size} bytes runs past the header's {len(data)}")
    return data[start:end].decode("utf-8", "replace"), end
