"""Settings reach the file together, and who stored one hears how that ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameserver import kv_config
from nameserver.kv_config import KvConfig
from rmqha.host.disk import HostDisk
from rmqha.model.error import RemoteProtocolError
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng

WORD = st.sampled_from(["a", "ab", "", 'q"', "a\n", "\u00e9", "a\\"])


@given(st.lists(st.tuples(WORD, WORD, st.none() | WORD)))
def test_the_file_is_the_table(changes: list[tuple[str, str, str | None]]) -> None:
    disk = SimDisk(SimPrng(1))
    kv, table = KvConfig(disk, "kv.json"), dict[str, dict[str, str]]()
    for namespace, key, value in changes:
        if value is None:
            kv.delete(namespace, key)
            table.get(namespace, {}).pop(key, None)
        else:
            kv.put(namespace, key, value)
            table.setdefault(namespace, {})[key] = value
    table = {namespace: settings for namespace, settings in table.items() if settings}
    if disk.exists("kv.json"):
        assert json.loads(disk.read("kv.json")) == {"configTable": table}
    again = KvConfig(disk, "kv.json")
    assert {name: again.namespace(name) for name in table} == table == {name: kv.namespace(name) for name in table}


def test_changes_share_a_write_and_each_is_answered_when_it_is_there() -> None:
    disk = SimDisk(SimPrng(1))
    kv, answers, wanted = KvConfig(disk, "kv.json"), list[tuple[int, str]](), list[int]()
    kv.save_soon = lambda: wanted.append(1)

    def put(number: int) -> None:
        kv.put("n", str(number), "v")
        kv.wait(lambda fault: answers.append((number, fault)))

    put(0)
    put(1)
    write = kv.unsaved()
    put(2)
    assert write is not None and wanted and not answers
    write()
    kv.saved()
    assert answers == [(0, ""), (1, "")]
    assert sorted(KvConfig(disk, "kv.json").namespace("n")) == ["0", "1"]
    kv.save()
    assert answers[2:] == [(2, "")]


def test_who_stores_what_the_disk_does_not_take_hears_so() -> None:
    disk = SimDisk(SimPrng(1))
    kv, faults = KvConfig(disk, "kv.json"), list[str]()
    disk.failing = frozenset(("create",))
    kv.put("n", "k", "v")
    kv.wait(faults.append)
    assert faults == ["the setting counts here but the disk does not take it ([Errno 5] Input/output error); ask again"]
    disk.failing = frozenset()
    kv.put("n", "k", "v")
    kv.wait(faults.append)
    assert faults[1:] == [""] and KvConfig(disk, "kv.json").get("n", "k") == "v"


def test_as_many_as_max_kv_count_allows(tmp_path: Path) -> None:
    kv = KvConfig(HostDisk(tmp_path), "kv.json", 2)
    for key in ("a", "b"):
        kv.put("n", key, "1")
    with pytest.raises(RemoteProtocolError, match="maxKvCount"):
        kv.put("m", "c", "1")
    kv.put("n", "a", "2")
    kv.delete("n", "b")
    kv.put("m", "c", "1")
    assert KvConfig(HostDisk(tmp_path), "kv.json").namespace("m") == {"c": "1"}


def test_the_settings_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "MAX_TABLE_CHARS", 20)
    found = KvConfig()
    found.put("n", "a", "12345678")
    found.put("n", "b", "12345678")
    with pytest.raises(RemoteProtocolError, match="at most 20 characters"):
        found.put("n", "c", "")
    found.put("n", "a", "8765432")
    with pytest.raises(RemoteProtocolError, match="at most 20 characters"):
        found.put("n", "b", "1234567890")
    assert found.get("n", "b") == "12345678"
    found.delete("n", "b")
    found.put("n", "c", "12345678")
