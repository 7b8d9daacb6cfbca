"""config/*.json with its .bak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.error import StoreError
from rmqha.sim.disk import DiskStopped, SimDisk
from rmqha.store.meta.config_file import load, replace
from tests.store.support import sim_disk

PATH = "config/t.json"


def number(body: Mapping[str, Any]) -> int:
    return int(body["n"])


def disk_with(main: bytes | None, backup: bytes | None) -> SimDisk:
    disk = sim_disk()
    for path, data in ((PATH, main), (f"{PATH}.bak", backup)):
        if data is not None:
            disk.write_atomic(path, data)
    return disk


@pytest.mark.parametrize(
    ("main", "backup", "value", "said"),
    [
        (None, None, None, []),
        (b'{"n":1}', None, 1, []),
        (b'{"n":1}', b"{", 1, []),
        (None, b'{"n":2}', 2, []),
        (b'{"n":1', b'{"n":2}', 2, ["config/t.json cannot be read", "config/t.json.bak was taken instead."]),
        (b"[]", b'{"n":2}', 2, ["expected a JSON object, found list"]),
        (b'{"n":"x"}', b'{"n":2}', 2, ["invalid literal"]),
        (b'{"m":1}', b'{"n":2}', 2, ["config/t.json cannot be read ('n')"]),
        (b" \n", b'{"n":2}', 2, ["config/t.json is empty"]),
        (b"", None, None, ["config/t.json is empty."]),
        (b"\0\0\0", b'{"n":2}', 2, ["cannot be read"]),
        (b"\xff", b'{"n":2}', 2, ["cannot be read"]),
    ],
)
def test_which_is_taken(main: bytes | None, backup: bytes | None, value: int | None, said: list[str]) -> None:
    disk = disk_with(main, backup)
    found = load(disk, "t", number)
    assert found.value == value
    assert len(found.lines) == bool(said) and all(words in found.lines[0] for words in said)
    if said and value is not None:
        assert disk.read(f"{PATH}.damaged") == main
        assert load(disk, "t", number) == (value, [])


@pytest.mark.parametrize(("main", "backup"), [(b"{", None), (b"{", b"}"), (None, b"{"), (b"", b"{"), (b"{", b"")])
def test_nothing_readable_is_one_sentence_with_the_choices(main: bytes | None, backup: bytes | None) -> None:
    disk = disk_with(main, backup)
    with pytest.raises(StoreError, match=r"sim/config/t\.json.* cannot be read .*; restore config/t\.json .*remove"):
        load(disk, "t", number)
    assert not disk.exists(f"{PATH}.damaged")


def test_a_disk_error_is_a_sentence() -> None:
    disk = disk_with(b'{"n":1}', None)
    disk.failing = frozenset({"read"})
    with pytest.raises(StoreError, match=r"sim/config/t\.json: cannot read the file: Input/output error"):
        load(disk, "t", number)


def test_the_old_content_is_the_backup() -> None:
    disk = sim_disk()
    for value in (1, 2, 3):
        replace(disk, "t", b'{"n":%d}' % value)
    assert (disk.read(PATH), disk.read(f"{PATH}.bak")) == (b'{"n":3}', b'{"n":2}')


def test_damage_never_becomes_the_backup() -> None:
    disk = disk_with(b"{", b'{"n":2}')
    load(disk, "t", number)
    replace(disk, "t", b'{"n":3}')
    assert (disk.read(PATH), disk.read(f"{PATH}.bak")) == (b'{"n":3}', b'{"n":2}')


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_any_operation_leaves_the_old_or_the_new(power_loss: bool) -> None:
    stops = 0
    for stop in range(1, 9):
        disk = disk_with(b'{"n":1}', b'{"n":0}')
        disk.stop_after = disk.operations + stop
        try:
            replace(disk, "t", b'{"n":2}')
        except DiskStopped:
            stops += 1
            disk.crash(power_loss=power_loss)
            assert load(disk, "t", number) == (1, [])
        else:
            assert load(disk, "t", number) == (2, [])
    assert stops == 2


@given(main=st.none() | st.binary(max_size=20), backup=st.none() | st.binary(max_size=20))
def test_any_bytes_are_a_value_or_a_sentence(main: bytes | None, backup: bytes | None) -> None:
    disk = disk_with(main, backup)
    try:
        found = load(disk, "t", dict)
    except StoreError as error:
        assert "config/t.json" in str(error)
    else:
        assert isinstance(found.value, dict) or found.value is None
