"""Tests of the files in which a nameserver stores KV values and changed settings."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from routekeeper.nameserver.disk import files as disk
from routekeeper.nameserver.settings.files import (
    FILE_SIZE_MAX,
    TOKEN_SIZE_MAX,
    FileError,
    encode_kv,
    load_kv_file,
    load_settings_file,
    load_token,
    save_kv_file,
    save_settings_file,
    write_atomic,
)

TABLE: dict[str, dict[str, str | None]] = {
    "ORDER_TOPIC_CONFIG": {"T": "broker-a:4"},
    "EMPTY": {},
    "NULL": {"k": None},
    "ä": {"ключ": "值\n"},
}


def test_kv_file_has_rocketmqs_format() -> None:
    assert encode_kv({"b": {"k": "v"}, "a": {}}) == b'{"configTable":{"a":{},"b":{"k":"v"}}}'


def test_saved_kv_file_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    save_kv_file(path, TABLE)
    assert load_kv_file(path) == TABLE


@pytest.mark.parametrize("content", [None, b"", b" \n"], ids=["missing", "empty", "blank"])
def test_file_that_was_never_written_may_be_missing_or_empty(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kvConfig.json"
    if content is not None:
        path.write_bytes(content)
    assert load_kv_file(path) == {}
    assert [record.levelname for record in caplog.records] == ([] if content is None else ["WARNING"])


@pytest.mark.parametrize("content", [None, b"", b" \n"], ids=["missing", "empty", "blank"])
def test_missing_or_empty_file_falls_back_to_its_backup(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kvConfig.json"
    save_kv_file(path, TABLE)
    save_kv_file(path, {})
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert load_kv_file(path) == TABLE


def test_previous_version_is_kept_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    save_kv_file(path, {"a": {"k": "old"}})
    save_kv_file(path, {"a": {"k": "new"}})
    assert load_kv_file(tmp_path / "kvConfig.json.bak") == {"a": {"k": "old"}}
    names = ["kvConfig.json", "kvConfig.json.bak", "kvConfig.json.bak.sha256", "kvConfig.json.sha256"]
    # When the backup was loaded, its checksum was written, too.
    assert sorted(p.name for p in tmp_path.iterdir()) == names


@pytest.mark.parametrize(
    "content",
    [b'{"configTable":{"a":', b"[1]x", b'{"configTable":[]}', b'{"configTable":{"a":"b"}}', b"\xff\xfe"],
    ids=["cut off", "no json", "wrong table", "wrong namespace", "no text"],
)
def test_broken_file_falls_back_to_its_backup(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kvConfig.json"
    save_kv_file(path, {"a": {"k": "old"}})
    save_kv_file(path, {"a": {"k": "new"}})
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert load_kv_file(path) == {"a": {"k": "old"}}
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith(f"state file damaged file={path} damage=")
    assert record.getMessage().endswith(f" used={path}.bak")


def test_broken_file_and_backup_are_an_error_not_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b"{")
    with pytest.raises(FileError, match=r"kvConfig\.json"):
        load_kv_file(path)
    (tmp_path / "kvConfig.json.bak").write_bytes(b"{")
    with pytest.raises(FileError, match="restore one of them, or remove both"):
        load_kv_file(path)


def test_oversized_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    with open(path, "wb") as file:
        file.truncate(FILE_SIZE_MAX + 1)
    with pytest.raises(FileError, match=str(FILE_SIZE_MAX)):
        load_kv_file(path)


def test_numbers_in_a_hand_written_file_are_text_and_null_stays(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b'{"configTable":{"a":{"n":4,"b":true,"z":null}}}')
    assert load_kv_file(path) == {"a": {"n": "4", "b": "true", "z": None}}


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kvConfig.json"
    write_atomic(path, b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "_sync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"


def test_files_are_their_owners_and_no_name_put_there_is_followed(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "data" / "kvConfig.json", tmp_path / "elsewhere"
    before = os.umask(0)
    try:
        write_atomic(path, b"old")
        elsewhere.write_bytes(b"mine")
        (path.parent / "kvConfig.json.tmp").symlink_to(elsewhere)
        write_atomic(path, b"new")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert elsewhere.read_bytes() == b"mine"
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    names = ("kvConfig.json", "kvConfig.json.bak", "kvConfig.json.sha256")
    assert modes == dict.fromkeys(names, 0o600)
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_saved_settings_load_again(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    save_settings_file(path, {"orderMessageEnable": "true", "productEnvName": "zürich 1"})
    assert path.read_bytes() == b"orderMessageEnable=true\nproductEnvName=z\\u00fcrich 1\n"
    assert load_settings_file(path) == {"orderMessageEnable": "true", "productEnvName": "zürich 1"}


def test_settings_file_in_utf8_is_mojibake_as_in_java(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_bytes("a=é".encode())
    assert load_settings_file(path) == {"a": "Ã©"}


def token_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_token_is_one_word_and_blanks_around_it_do_not_count(tmp_path: Path) -> None:
    assert load_token(token_file(tmp_path, b"  0123456789abcdef\n")) == ("0123456789abcdef", "")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_token_file_that_others_can_read_is_a_warning(tmp_path: Path, mode: int) -> None:
    token, warning = load_token(token_file(tmp_path, b"0123456789abcdef", mode))
    assert token == "0123456789abcdef"
    assert "can be read by others" in warning
    assert f"{mode:04o}" in warning
    assert token not in warning


def test_short_token_is_a_warning_that_does_not_tell_it(tmp_path: Path) -> None:
    token, warning = load_token(token_file(tmp_path, b"zqx"))
    assert token == "zqx"
    assert "3 characters" in warning
    assert token not in warning


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"two words", "one word of visible ASCII"),
        (b"two\nlines", "one word of visible ASCII"),
        ("schlüssel".encode(), "one word of visible ASCII"),
        (b"x" * (TOKEN_SIZE_MAX + 1), f"more than {TOKEN_SIZE_MAX} bytes"),
    ],
    ids=["nothing", "blank", "words", "lines", "umlaut", "large"],
)
def test_token_file_that_holds_no_token_is_an_error(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(FileError, match=words):
        load_token(token_file(tmp_path, content))


def test_token_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be read: No such file"):
        load_token(tmp_path / "token")
