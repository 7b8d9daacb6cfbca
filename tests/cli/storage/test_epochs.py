"""`rmqha epochs` as a user meets it: stores of a real RocketMQ and of ours, epoch files alone, damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmqha.cli.main import cli, main
from rmqha.host.disk import HostDisk
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.store.meta import epoch_file
from rmqha.store.store import Store
from tests.golden.reader import manifest
from tests.store.damage.damaged import OWN, make_own
from tests.store.support import commit_all, message, unpack
from tests.support.tracer import RecordingTracer

DOCUMENT_MASTER = "6:200 7:1200 8:2500"
DOCUMENT_SLAVE = "6:200 7:1200 8:2250"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["epochs", *arguments], catch_exceptions=False)


def written(path: Path, text: str) -> str:
    """An epoch file with the entries "epoch:start …"."""
    entries = [EpochEntry(Epoch(int(a)), PhyOffset(int(b))) for a, b in (item.split(":") for item in text.split())]
    path.write_bytes(epoch_file.encode(EpochHistory(entries)))
    return str(path)


def replica(root: Path, *steps: tuple[int, int], committed_count: int = -1) -> str:
    """A store of ours: under each (epoch, count of messages) so many are appended; all or so many are committed."""
    store = Store.open(HostDisk(root), OWN, RecordingTracer(), process_id=1)
    number = 0
    for epoch, count in steps:
        store.append_epoch(Epoch(epoch), store.max_phy_offset)
        for _ in range(count):
            store.append(message(number, body=b"%d|%d" % (epoch, number)), 1_700_000_000_000 + number)
            number += 1
            if number == committed_count:
                commit_all(store)
    if committed_count < 0:
        commit_all(store)
    store.close()
    return str(root)


# --- show -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("archive", ["n0", "n1", "n0-killed"])
def test_show_tells_what_mqadmin_told_of_a_real_store(tmp_path: Path, archive: str) -> None:
    unpack(archive, tmp_path)
    done = run("show", str(tmp_path / archive), "-o", "json")
    assert done.exit_code == 0
    shown = json.loads(done.stdout)
    wanted = [(item["epoch"], item["startOffset"]) for item in manifest()["epochs"]]
    assert [(item["epoch"], item["startOffset"]) for item in shown["epochs"]] == wanted
    assert [item["endOffset"] for item in shown["epochs"]] == [1592610, 2379663, 3157115, 3947871]  # getBrokerEpoch.txt
    assert (shown["minOffset"], shown["endOffset"], shown["committedEnd"]) == (0, 3947871, 3947871)
    assert shown["notes"] == []


def test_show_of_a_file_knows_no_end_unless_told(tmp_path: Path) -> None:
    path = written(tmp_path / "epochs", DOCUMENT_SLAVE)
    open_end = run("show", path)
    assert open_end.exit_code == 0
    assert "where its log ends is not known" in open_end.stdout
    assert open_end.stdout.splitlines()[-1].split() == ["8", "2250", "open"]
    assert run("show", path, "--end", "2500").stdout.splitlines()[-1].split() == ["8", "2250", "2500", "250"]


def test_show_says_what_is_not_as_it_should_be(tmp_path: Path) -> None:
    make_own(tmp_path)
    path = tmp_path / epoch_file.PATH
    path.write_bytes(path.read_bytes().replace(b"6-", b"6+"))
    assert (tmp_path / epoch_file.BACKUP_PATH).exists()
    done = run("show", str(tmp_path))
    assert done.exit_code == 1
    assert "its older copy epochFileCheckpoint.bak is shown" in done.stdout
    end = json.loads(run("show", str(tmp_path), "-o", "json").stdout)["endOffset"]
    written(path, f"3:0 6:{end + 1}")
    done = run("show", str(tmp_path))
    assert done.exit_code == 1
    assert f"epoch 6 starts at {end + 1}, behind the log's end" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "missing"], 2, "cannot be read: No such file or directory; check the path"),
        (["show", "text"], 2, "give a store directory or an epochFileCheckpoint"),
        (["show", "."], 2, "is no message store"),
        (["show", "store", "--end", "5"], 2, "--end belongs to an epoch file"),
        (["show", "file", "--end", "5"], 2, "starts at 2250, behind 5"),
        (["diff", "file", "missing"], 2, "cannot be read"),
        (["show", "broken"], 1, "rmqha fsck"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("no epochs\n")
    written(Path("file"), DOCUMENT_SLAVE)
    make_own(Path("store"))
    make_own(Path("broken"))
    (Path("broken") / epoch_file.PATH).write_text("x")
    (Path("broken") / epoch_file.BACKUP_PATH).unlink()
    with pytest.raises(SystemExit) as stopped:
        main(["epochs", *arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == code
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


# --- diff -------------------------------------------------------------------------------------------------------------
def test_diff_of_the_documents_example(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a", DOCUMENT_MASTER), written(tmp_path / "b", DOCUMENT_SLAVE)
    done = run("diff", a, b, "--end-a", "3000", "--end-b", "2500", "-o", "json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (found["consistentPoint"], found["newer"], found["fork"]) == (2250, "a", True)
    assert (found["bFollowsA"]["endOffset"], found["bFollowsA"]["cutBytes"]) == (2250, 250)
    assert (found["aFollowsB"]["endOffset"], found["aFollowsB"]["cutBytes"]) == (2250, 750)
    text = run("diff", a, b, "--end-a", "3000", "--end-b", "2500").stdout
    rows = [line.split() for line in text.splitlines() if line.strip() and line.split()[0] in "678"]
    assert rows == [
        ["6", "200", "1200", "200", "1200", "same"],
        ["7", "1200", "2500", "1200", "2250", "other", "end"],
        ["8", "2500", "3000", "2250", "2500", "other", "start"],
    ]
    assert "consistent point: 2250" in text
    assert "an election among the two takes A, so B would follow" in text
    assert "B cuts its 250 bytes from 2250 on" in text


def test_diff_of_files_alone_says_what_it_does_not_know(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a", DOCUMENT_MASTER), written(tmp_path / "b", DOCUMENT_SLAVE)
    found = json.loads(run("diff", a, b, "-o", "json").stdout)
    assert (found["consistentPoint"], found["bFollowsA"]["cutBytes"], found["fork"]) == (2250, None, True)
    same = run("diff", a, a, "-o", "json")
    assert same.exit_code == 0
    assert json.loads(same.stdout)["consistentPoint"] is None
    assert "the entries agree; where the logs end is not known" in run("diff", a, a).stdout


def test_a_log_that_is_a_part_of_the_other_costs_nothing(tmp_path: Path) -> None:
    a, b = replica(tmp_path / "a", (3, 10), (4, 10)), replica(tmp_path / "b", (3, 7))
    done = run("diff", a, b, "-o", "json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert found["newer"] == "a"
    assert found["consistentPoint"] == found["b"]["endOffset"]
    assert (found["bFollowsA"]["case"], found["bFollowsA"]["cutBytes"]) == ("2-2", 0)
    # the other way round A would cut what it has more
    extra = found["a"]["endOffset"] - found["b"]["endOffset"]
    assert (found["aFollowsB"]["case"], found["aFollowsB"]["cutBytes"]) == ("2-3", extra)


def test_a_longer_log_of_the_same_epoch_is_cut_by_who_follows_the_shorter(tmp_path: Path) -> None:
    """An elected master writes its new epoch from its own end on, whatever others hold beyond it."""
    a, b = replica(tmp_path / "a", (3, 10)), replica(tmp_path / "b", (3, 7))
    found = json.loads(run("diff", a, b, "-o", "json").stdout)
    assert found["aFollowsB"]["cutBytes"] == found["a"]["endOffset"] - found["b"]["endOffset"] > 0
    assert found["bFollowsA"]["cutBytes"] == 0


def test_an_epoch_without_bytes_is_replaced_by_the_next_masters(tmp_path: Path) -> None:
    """Else its number would be lent to bytes that the old master of that epoch wrote elsewhere."""
    a, b = replica(tmp_path / "a", (3, 10), (5, 0)), replica(tmp_path / "b", (3, 10), (5, 4))
    found = json.loads(run("diff", a, b, "-o", "json").stdout)
    assert found["bFollowsA"]["cutBytes"] == found["b"]["endOffset"] - found["a"]["endOffset"] > 0
    assert (found["aFollowsB"]["cutBytes"], found["fork"]) == (0, False)


def test_a_fork_of_uncommitted_bytes_is_cut_and_one_of_committed_bytes_is_refused_in_cp(tmp_path: Path) -> None:
    master = replica(tmp_path / "master", (3, 7), (5, 10))
    loose, firm = replica(tmp_path / "loose", (3, 10), committed_count=5), replica(tmp_path / "firm", (3, 10))
    cut = json.loads(run("diff", master, loose, "-o", "json").stdout)["bFollowsA"]
    assert (cut["verdict"], cut["verdictInCp"]) == ("follow", "follow")
    assert cut["cutBytes"] > 0
    done = run("diff", master, firm)
    assert done.exit_code == 1
    assert "with haMode=cp this is refused, since some of them are committed" in done.stdout
    assert "to do: stop both brokers" in done.stdout
    refused = json.loads(run("diff", master, firm, "-o", "json").stdout)
    assert refused["bFollowsA"]["verdictInCp"] == "refuse"
    assert "move its directory away" in refused["advice"]


def test_nothing_in_common_keeps_every_byte_and_tells_an_operator_what_to_do(tmp_path: Path) -> None:
    a, b = replica(tmp_path / "a", (3, 10)), replica(tmp_path / "b", (4, 12))
    done = run("diff", a, b)
    assert done.exit_code == 1
    assert "nothing in common: no epoch entry of A and B has the same epoch and start" in done.stdout
    assert "refused in AP and CP, nothing is cut" in done.stdout
    assert "to do: stop both brokers; look at what each has alone (rmqha log cat DIR --uncommitted)" in done.stdout
    found = json.loads(run("diff", a, b, "-o", "json").stdout)
    assert (found["consistentPoint"], found["nothingInCommon"]) == (None, True)
    assert {found[way]["verdict"] for way in ("aFollowsB", "bFollowsA")} == {"refuse"}


@pytest.mark.parametrize("ours", [True, False])
def test_an_empty_replica_copies_everything(tmp_path: Path, ours: bool) -> None:
    a, b = replica(tmp_path / "a", (3, 10)), str(tmp_path / "b")
    if ours:
        replica(tmp_path / "b")
        assert not (tmp_path / "b" / "commitlog").exists()
    else:
        (tmp_path / "b" / "commitlog").mkdir(parents=True)
    done = run("diff", a, b, "-o", "json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (found["bFollowsA"]["case"], found["bFollowsA"]["verdict"], found["fork"]) == ("empty", "follow", False)


@pytest.mark.parametrize(
    ("b_text", "end_b", "case"),
    [
        ("6:200", 800, "1-1"),
        ("6:200", 1500, "1-2"),
        ("6:200 7:1200", 2000, "1-2"),
        ("7:1200", 2000, "2-2"),
        ("7:1200", 3500, "2-3"),
        ("6:200 7:1200", 3500, "1-3"),
        ("9:3000", 3500, "3-3"),
        ("7:1200", 1200, "empty"),
    ],
)
def test_cases_name_where_the_slaves_log_lies(tmp_path: Path, b_text: str, end_b: int, case: str) -> None:
    a, b = written(tmp_path / "a", "7:1200 8:2500"), written(tmp_path / "b", b_text)
    found = json.loads(run("diff", a, b, "--end-a", "3000", "--end-b", str(end_b), "-o", "json").stdout)
    assert found["bFollowsA"]["case"] == case


def test_tables_fit_the_terminal(tmp_path: Path) -> None:
    a = written(tmp_path / "a", "1:0 9999:9000000000000000")
    done = run("diff", a, a, "--end-a", "9200000000000000", "--end-b", "9200000000000000")
    tables = [line for line in done.stdout.splitlines() if line.lstrip()[:1].isdigit() or "START" in line]
    assert len(tables) == 3
    assert max(map(len, tables)) <= 80
    assert any("9200000000000000" in line for line in tables)
