"""The audit sees what it is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rmqha.drill.audit import audit, check_same_bytes, records
from rmqha.drill.error import DrillError
from rmqha.drill.traffic import TOPIC, AckedMessage, FailedSend
from tests.store.log_writer import Message, encode

KEYS = ("A", "B", "C", "B")


def write_log(store: Path, keys: tuple[str, ...] = KEYS) -> int:
    """One queue with a record per key; its end."""
    data = b""
    for place, key in enumerate(keys):
        properties = f"UNIQ_KEY\x01{key}\x02".encode()
        message = Message(topic=TOPIC.encode(), body=f"body {key}".encode(), queue_offset=place, properties=properties)
        data += encode(message, len(data))
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / f"{0:020}").write_bytes(data.ljust(65536, b"\0"))
    return len(data)


def acked(number: int, key: str, queue_offset: int) -> AckedMessage:
    return AckedMessage(0, number, key, 0, queue_offset, 0)


ALL = [acked(0, "A", 0), acked(1, "B", 1), acked(2, "C", 2)]


def test_what_lies_where_it_was_acknowledged_passes_and_copies_are_counted(tmp_path: Path) -> None:
    found = audit(tmp_path, write_log(tmp_path), ALL, ["C"])
    assert (found.lost, found.misplaced, found.swapped, found.copies, found.record_count) == ([], [], 0, 1, 4)


def test_lost_misplaced_and_swapped_messages_are_found(tmp_path: Path) -> None:
    end = write_log(tmp_path)
    assert audit(tmp_path, end, [*ALL, acked(3, "D", 4)], ["E"]).lost == ["D", "E"]
    assert audit(tmp_path, end, [replace(ALL[0], queue_offset=2)]).misplaced == ["A"]
    assert audit(tmp_path, end, [ALL[0], acked(1, "C", 2), acked(2, "B", 1)]).swapped == 1


def test_an_order_that_real_time_forbids_is_found(tmp_path: Path) -> None:
    """Of different lanes: A was acknowledged before B was sent, and stands behind it."""
    end = write_log(tmp_path, ("B", "A"))
    late = AckedMessage(1, 0, "B", 0, 0, at_ms=2000, latency_ms=500)
    early = AckedMessage(0, 0, "A", 0, 1, at_ms=1000, latency_ms=500)
    with pytest.raises(DrillError, match="A was acknowledged at 1000 ms and stands behind B"):
        audit(tmp_path, end, [late, early])
    assert audit(tmp_path, end, [replace(late, latency_ms=1002), early]).lost == []


def test_a_send_that_failed_cannot_stand_before_what_was_acknowledged_earlier(tmp_path: Path) -> None:
    end = write_log(tmp_path, ("B", "A"))
    body = bytes(next(iter(records(tmp_path, end))).body).decode()
    early = AckedMessage(0, 0, "A", 0, 1, at_ms=1000, latency_ms=500)
    assert audit(tmp_path, end, [early], failed=[]).lost == []
    with pytest.raises(DrillError, match="stands behind"):
        audit(tmp_path, end, [early], failed=[FailedSend(body, 2000)])


def test_other_bytes_or_a_missing_tail_are_found(tmp_path: Path) -> None:
    end = write_log(tmp_path / "one")
    assert write_log(tmp_path / "other", ("A", "B", "C", "D")) == end
    write_log(tmp_path / "short", KEYS[:3])
    check_same_bytes([tmp_path / "one"], end)
    for name in ("other", "short"):
        with pytest.raises(DrillError, match="differ below byte"):
            check_same_bytes([tmp_path / "one", tmp_path / name], end)
