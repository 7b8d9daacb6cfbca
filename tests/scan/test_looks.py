"""Looks at a store that has been looked at before: the same views, and no more read than was appended."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.model.error import StoreError
from rmqha.scan.api import ViewCache, ViewOptions, open_store, plan_ranges
from rmqha.scan.read import LogFile
from rmqha.scan.storage import LocalStorage
from tests.store.log_writer import LogWriter, Message

FILE_BYTES = 8 * 1024 * 1024
COMMITTED = ViewOptions()


class Reads:
    """Bytes that are read of local files."""

    def __init__(self) -> None:
        self.count = 0


class CountingFile:
    def __init__(self, file: Any, reads: Reads) -> None:
        self._file, self._reads = file, reads
        self.seek, self.close = file.seek, file.close

    def readinto(self, buffer: Any) -> int | None:
        found: int | None = self._file.readinto(buffer)
        self._reads.count += found or 0
        return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted = Reads()
    opening, content = LocalStorage.open, LocalStorage.content

    def read(self: LocalStorage, path: str) -> bytes | None:
        found = content(self, path)
        counted.count += len(found or b"")
        return found

    monkeypatch.setattr(LocalStorage, "open", lambda self, path: CountingFile(opening(self, path), counted))
    monkeypatch.setattr(LocalStorage, "content", read)
    return counted


def filled(root: Path, count: int, **fields: Any) -> LogWriter:
    writer = LogWriter(root, FILE_BYTES)
    writer.append_all([Message(queue_offset=n, body=bytes(900), **fields) for n in range(count)])
    writer.write(confirm_offset=writer.end, epochs="1\n0\n1-0\n")
    return writer


def test_a_look_at_an_unchanged_store_reads_64_kib_at_most(tmp_path: Path, reads: Reads) -> None:
    writer = filled(tmp_path, 5000)
    cache = ViewCache()
    first = open_store(str(tmp_path), COMMITTED, cache)
    assert first.end_offset == writer.end and reads.count > writer.end
    reads.count = 0
    assert open_store(str(tmp_path), COMMITTED, cache) == first
    assert reads.count <= 64 * 1024


def test_a_look_reads_only_what_was_appended(tmp_path: Path, reads: Reads) -> None:
    writer = filled(tmp_path, 5000)
    cache = ViewCache()
    open_store(str(tmp_path), COMMITTED, cache)
    for number in range(5000, 5003):
        writer.append(Message(queue_offset=number, body=bytes(900)))
        writer.write(confirm_offset=0, epochs="1\n0\n1-0\n")
        reads.count = 0
        found = open_store(str(tmp_path), COMMITTED, cache)
        assert reads.count <= 1024 * 1024 + 512 * 1024, "what may stand behind unwritten bytes, and little else"
        assert found == open_store(str(tmp_path)) and found.end_offset == writer.end


def test_a_plan_of_10_000_files_reads_the_first_and_the_last(tmp_path: Path, reads: Reads) -> None:
    """A log of 10 TB is planned in half a second: of the files between, names and sizes count."""
    count, end = 10_000, 0
    for index in (0, count - 1):
        writer = LogWriter(tmp_path, FILE_BYTES, base=index * FILE_BYTES)
        writer.append_all([Message(queue_offset=n) for n in range(index, index + 10)])
        end = writer.end
        writer.write(confirm_offset=end)
    for index in range(1, count - 1):
        with (tmp_path / "commitlog" / f"{index * FILE_BYTES:020}").open("wb") as file:
            file.truncate(FILE_BYTES)
    view = open_store(str(tmp_path))
    ranges = plan_ranges(view, min_ranges=4, target_bytes=FILE_BYTES)
    assert len(ranges) == count and ranges[-1].end == view.end_offset == end
    assert reads.count < 4 * FILE_BYTES


def test_what_another_epoch_wrote_anew_is_looked_at_anew(tmp_path: Path) -> None:
    writer = filled(tmp_path, 50)
    cache = ViewCache()
    open_store(str(tmp_path), COMMITTED, cache)
    cut = LogWriter(tmp_path, FILE_BYTES)
    offsets = cut.append_all([Message(queue_offset=n, body=bytes(900)) for n in range(20)])
    cut.append_all([Message(queue_offset=n, body=b"z" * 100) for n in range(20, 30)])
    assert cut.end < writer.end
    cut.write(confirm_offset=cut.end, epochs=f"2\n0\n1-0\n2-{offsets[-1]}\n")
    assert open_store(str(tmp_path), COMMITTED, cache) == open_store(str(tmp_path))


def test_damage_behind_what_is_known_is_told(tmp_path: Path) -> None:
    writer = filled(tmp_path, 50)
    cache = ViewCache()
    open_store(str(tmp_path), COMMITTED, cache)
    offsets = writer.append_all([Message(queue_offset=n, body=bytes(900)) for n in range(50, 53)])
    writer.put(offsets[1] + 4, b"\1\1\1\1")
    writer.write(confirm_offset=writer.end, epochs="1\n0\n1-0\n")
    with pytest.raises(StoreError, match="expected the record magic"):
        open_store(str(tmp_path), COMMITTED, cache)


def test_a_pickled_memory_is_empty(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    cache = ViewCache()
    open_store(str(tmp_path), COMMITTED, cache)
    assert cache.view is not None and pickle.loads(pickle.dumps(cache)) == ViewCache()


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "hidden", "confirm", "cut", "tear"]), st.integers(1, 40)), max_size=9
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, uncommitted=st.booleans(), few=st.sampled_from([1, 3, 4096]))
def test_any_history_looks_the_same_with_and_without_memory(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], uncommitted: bool, few: int
) -> None:
    root = tmp_path_factory.mktemp("log")
    options, cache = ViewOptions(uncommitted=uncommitted), ViewCache()
    writer, epoch, epochs, number = LogWriter(root, 4096), 1, [(1, 0)], 0
    confirm = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rmqha.scan.files.KNOWN_COUNT", few)
        for what, count in [("append", 3), *steps]:
            if what in ("append", "hidden"):
                for _ in range(count):
                    writer.append(Message(queue_offset=number, body=bytes(50)), dispatched=what == "append")
                    number += 1
            elif what == "confirm":
                confirm = writer.end
            elif what == "cut":
                queues = writer.queue_entries
                kept = [entry for entries in queues.values() for entry in entries][: -count or None]
                end = kept[-1][1] + kept[-1][2] if kept else 0
                for start, piece in writer.pieces.items():
                    low = max(end - start, 0)
                    if low < len(piece):
                        piece[low:] = bytes(len(piece) - low)
                for name in queues:
                    queues[name] = [entry for entry in queues[name] if entry[1] < end] or [(0, 0, 0)]
                writer.end, number, confirm = end, len(kept), min(confirm, end)
                epoch += 1
                epochs = [item for item in epochs if item[1] < end] + [(epoch, end)]
            else:
                writer.put(writer.end, bytes(range(1, 30)))
            lines = "".join(f"{item[0]}-{item[1]}\n" for item in epochs)
            writer.write(confirm_offset=confirm, epochs=f"{len(epochs)}\n0\n{lines}")
            assert _told(root, options, cache) == _told(root, options, None), (what, count)


def _told(root: Path, options: ViewOptions, cache: ViewCache | None) -> Any:
    try:
        return open_store(str(root), options, cache)
    except StoreError as error:
        return str(error)


def test_a_log_that_is_cut_while_it_is_looked_at_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of records that the walk had found were zeros when their queues were asked."""
    writer = filled(tmp_path, 50)
    writer.write(confirm_offset=0, epochs="1\n0\n1-0\n")
    whole = open_store(str(tmp_path))
    window, cut = LogFile.window, list[int]()

    def cut_once(self: LogFile, start: int, stop: int, **named: Any) -> Any:
        found = window(self, start, stop, **named)
        if stop - start == 4 and not cut:
            cut.append(start)
            found.data[:4] = 0
        return found

    monkeypatch.setattr(LogFile, "window", cut_once)
    assert open_store(str(tmp_path)) == whole
    assert cut
