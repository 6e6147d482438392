"""Tests of the strict reader of plain_acl.yml: an error names the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.remoting.acl.accounts import (
    AclFileError,
    Permission,
    encode_acl_file,
    merge_files,
    parse_acl_file,
)
from routekeeper.remoting.acl.loading import acl_files, acl_folders, read_accounts, read_keys
from routekeeper.remoting.acl.signing import parse_keys
from routekeeper.remoting.route import DataVersion

SAMPLE = b"""
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""


def test_sample_of_rocketmq_is_read() -> None:
    file = parse_acl_file(SAMPLE, "plain_acl.yml")
    assert [entry.text for entry in file.white] == ["10.10.103.*", "192.168.0.*"]
    plain, admin = file.accounts
    assert (plain.access_key, plain.secret_key, plain.admin, plain.white) == (
        "RocketMQ",
        "12345678",
        False,
        None,
    )
    assert (plain.default_topic_perm, plain.default_group_perm) == (Permission.DENY, Permission.SUB)
    assert plain.perms == {
        "topicA": Permission.DENY,
        "topicB": Permission.PUB | Permission.SUB,
        "topicC": Permission.SUB,
        "%RETRY%groupA": Permission.DENY,
        "%RETRY%groupB": Permission.PUB | Permission.SUB,
        "%RETRY%groupC": Permission.SUB,
    }
    assert admin.admin
    assert admin.white is not None
    assert admin.white.match("192.168.1.7")


def test_secret_is_in_no_representation() -> None:
    assert "12345678" not in repr(merge_files({"f": parse_acl_file(SAMPLE, "f")}))


def test_written_file_says_the_same() -> None:
    file = parse_acl_file(SAMPLE, "f")
    assert parse_acl_file(encode_acl_file(file), "f") == file


def test_file_that_apaches_broker_has_written_is_read() -> None:
    text = b"""accounts:
- accessKey: RocketMQ
  admin: false
  defaultGroupPerm: SUB
  secretKey: '1234567890'
  topicPerms: [topicA=DENY, topicB=PUB|SUB]
dataVersion:
- {counter}
globalWhiteRemoteAddresses: ['10.10.103.*']
""".replace(b"- {counter}", b"- counter: 3\n  timestamp: 1700000000000")
    file = parse_acl_file(text, "f")
    assert file.data_version == DataVersion(timestamp=1_700_000_000_000, counter=3)
    assert file.accounts[0].topic_perms == ("topicA=DENY", "topicB=PUB|SUB")


@pytest.mark.parametrize("text", [b"accounts: []\n", b"accounts:\nglobalWhiteRemoteAddresses:\n"])
def test_file_without_accounts_allows_nobody(text: bytes) -> None:
    file = parse_acl_file(text, "f")
    assert file.accounts == ()
    assert file.white == ()


ACCOUNT = "accounts:\n- accessKey: writers\n  secretKey: 12345678\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", r"f\.yml: line 1: the file is empty; to allow nobody, write accounts: \[\]"),
        ("# nothing\n", r"f\.yml: line 1: the file is empty"),
        (
            "acounts: []\n",
            r"f\.yml: line 1: acounts is unknown, allowed are globalWhiteRemoteAddresses, accounts",
        ),
        (ACCOUNT + "  adminn: true\n", r"f\.yml: line 4: adminn is unknown, allowed are accessKey"),
        (
            ACCOUNT + "  defaultTopicPerm: PUBB\n",
            r"line 4: defaultTopicPerm: 'PUBB' is no permission, allowed are DENY",
        ),
        (ACCOUNT + "  defaultTopicPerm: pub\n", "line 4: defaultTopicPerm: 'pub' is no permission"),
        (ACCOUNT + "  topicPerms:\n  - A=PUB\n  - B=ANY\n", "line 6: topicPerms: 'ANY' is no permission"),
        (ACCOUNT + "  topicPerms:\n  - A\n", "line 5: topicPerms: 'A' is not NAME=PERMISSION"),
        (ACCOUNT + "  groupPerms:\n  - A=SUB\n  - A=PUB\n", "line 6: groupPerms: A appears twice; keep one"),
        (ACCOUNT + "  admin: yes\n", "line 4: admin: 'yes' is neither true nor false"),
        (ACCOUNT + "  topicPerms: A=PUB\n", "line 4: topicPerms must be a list"),
        (ACCOUNT + "  whiteRemoteAddress: 1.2.3\n", "line 4: '1.2.3' names no addresses"),
        ("globalWhiteRemoteAddresses:\n- localhost\n", "line 2: 'localhost' names no addresses"),
        ("accounts:\n- accessKey: writers\n", "line 2: an account without secretKey"),
        ("accounts:\n- accessKey: short\n  secretKey: 12345678\n", "line 2: accessKey has 5 characters"),
        (
            "accounts:\n- accessKey: writers\n  secretKey: 1234567\n  secretKey: 1\n",
            "line 4: secretKey appears twice; keep one",
        ),
        (
            "accounts:\n- accessKey: writers\n  secretKey: 01234567\n",
            "line 3: secretKey: YAML reads this as no text",
        ),
        (ACCOUNT + ACCOUNT.removeprefix("accounts:\n"), "line 4: accessKey writers appears twice; keep one"),
        ("accounts: nobody\n", "line 1: accounts must be a list"),
        ("- a\n", "line 1: the file must be keys with values"),
        ("dataVersion:\n- counter: x\n", "line 2: counter: 'x' is no whole number"),
    ],
)
def test_fault_is_named_with_file_and_line(text: str, fault: str) -> None:
    with pytest.raises(AclFileError, match=fault) as refused:
        parse_acl_file(text.encode(), "f.yml")
    assert "12345678" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_file_above_its_bound_is_refused() -> None:
    with pytest.raises(AclFileError, match="f: 1048577 bytes, allowed are 1048576"):
        parse_acl_file(b"#" * (1024 * 1024 + 1), "f")


def test_account_in_two_files_is_refused() -> None:
    files = {name: parse_acl_file(ACCOUNT.encode(), name) for name in ("a.yml", "b.yml")}
    with pytest.raises(AclFileError, match=r"b\.yml: accessKey writers is in a\.yml, too"):
        merge_files(files)


def test_too_many_white_entries_are_refused() -> None:
    text = "globalWhiteRemoteAddresses:\n" + "- 1.2.3.4\n" * 1025
    with pytest.raises(AclFileError, match="1025 entries, allowed are 1024"):
        merge_files({"f": parse_acl_file(text.encode(), "f")})


def test_files_of_a_folder_are_found_as_rocketmq_finds_them(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "..data").mkdir()
    for name in ("b.yml", "a.yaml", "inner/c.yml", "notes.txt", "..data/b.yml"):
        (tmp_path / name).write_text("")
    folders = acl_folders(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in acl_files(folders)] == [
        "a.yaml",
        "b.yml",
        "inner/c.yml",
    ]
    assert acl_folders(tmp_path / "none") == []


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AclFileError, match=r"plain_acl\.yml cannot be read: No such file"):
        read_accounts([tmp_path / "plain_acl.yml"], may_lack=tmp_path / "plain_acl.yml")


def test_keys_are_read_as_tools_yml_has_them(tmp_path: Path) -> None:
    (tmp_path / "tools.yml").write_text("accessKey: rocketmq2\nsecretKey: 12345678\n")
    keys = read_keys(tmp_path / "tools.yml")
    assert (keys.access_key, keys.secret_key, keys.security_token) == ("rocketmq2", "12345678", None)
    assert "12345678" not in repr(keys)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"accessKey: a\n", "secretKey missing"),
        (b"accessKey: a\nsecret: b\n", "line 2: secret is unknown"),
        (b"accessKey: a\nsecretKey: 0777\n", "line 2: secretKey: YAML reads this as no text"),
        (b"accessKey: a\nsecretKey: [b]\n", "line 2: secretKey must be one text"),
        (b"a\n", "line 1: not KEY: VALUE"),
    ],
)
def test_keys_that_cannot_be_used_are_refused(text: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_keys(text)


CUT = b"""\
globalWhiteRemoteAddresses:
- 192.168.1.15
accounts:
- accessKey: writers
  secretKey: secret-of-writers
  defaultTopicPerm: PUB|SUB
  topicPerms:
  - Orders=PUB
  - Payroll=DENY
"""


def reread(path: Path, *, before: bytes, after: bytes) -> str:
    """Write an access file twice, and return the reason why a running server refuses the second content."""
    path.write_bytes(before)
    in_force = read_accounts([path])
    path.write_bytes(after)
    try:
        read_accounts([path], in_force=in_force)
    except AclFileError as refused:
        return str(refused).removeprefix(f"{path}: ")
    return ""


@pytest.mark.parametrize("whole", [CUT, CUT.rstrip()], ids=["newline at the end", "no newline at the end"])
def test_running_server_takes_no_beginning_of_its_file_but_whole_accounts(
    tmp_path: Path, whole: bytes
) -> None:
    """Without this rule some of these beginnings allow sends to Payroll, and one makes another host white.

    The beginning before the only account is taken: it allows nobody more.
    """
    path = tmp_path / "f.yml"
    accepted = [size for size in range(len(whole)) if not reread(path, before=whole, after=whole[:size])]
    end_of_whites, end_of_title = CUT.index(b"accounts:"), CUT.index(b"- accessKey")
    assert {end_of_whites, end_of_title} <= set(accepted)
    assert set(accepted) <= {end_of_whites - 1, end_of_whites, end_of_title - 1, end_of_title}
    assert reread(path, before=whole, after=whole) == ""


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (b"", "line 1: the file is empty"),
        (CUT[:-18], "the last line has no newline, perhaps the file is incomplete; end the last line"),
        (CUT.replace(b"Payroll=DENY\n", b"Payroll=PUB"), "the last line has no newline"),
        (CUT.replace(b"  - Payroll=DENY\n", b""), "only the beginning of the content in force, perhaps"),
        (CUT.replace(b"  - Payroll=DENY\n", b"# complete\n"), ""),
        (CUT.replace(b"  - Orders=PUB\n", b""), ""),
        (CUT[: CUT.index(b"- accessKey")], ""),
        (CUT + b"- accessKey: readers\n  secretKey: secret-of-readers\n", ""),
        (b"accounts: []\n", ""),
    ],
    ids=[
        "empty",
        "cut in a line",
        "changed and cut",
        "cut after a line",
        "comment",
        "shorter",
        "without its last account",
        "longer",
        "no account",
    ],
)
def test_running_server_tells_a_cut_file_from_a_changed_one(
    tmp_path: Path, after: bytes, reason: str
) -> None:
    found = reread(tmp_path / "f.yml", before=CUT, after=after)
    assert found.startswith(reason) if reason else found == ""


def test_starting_server_and_a_new_file_have_nothing_to_compare_with(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yml", tmp_path / "b.yml"
    first.write_bytes(ACCOUNT.encode())
    second.write_bytes(CUT.replace(b"writers", b"readers").rstrip())
    in_force = read_accounts([first])
    assert read_accounts([first, second], in_force=in_force).by_key.keys() == {"writers", "readers"}


@pytest.mark.parametrize("size", range(len(b"accessKey: rocketmq2\nsecretKey: 12345678\n")))
def test_every_beginning_of_the_keys_in_force_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "tools.yml"
    path.write_bytes(b"accessKey: rocketmq2\nsecretKey: 12345678\n")
    in_force = read_keys(path)
    assert read_keys(path, in_force=in_force) == in_force
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(AclFileError) as refused:
        read_keys(path, in_force=in_force)
    assert "1234" not in str(refused.value)
