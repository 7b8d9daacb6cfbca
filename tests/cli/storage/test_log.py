"""`rmqha log` and `rmqha fsck` as a user meets them: on stores of a real RocketMQ, whole and damaged."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmqha.cli.main import cli, main
from tests.golden.reader import manifest
from tests.store.damage.damaged import make_own
from tests.store.support import unpack


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("golden")
    unpack("n0", target)
    return target / "n0"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=True)


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """(exit code, standard error) of the whole command."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, capsys.readouterr().err


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def messages() -> list[dict[str, Any]]:
    """Of the manifest, those that are records of their own."""
    return [entry for entry in manifest()["messages"] if entry["topic"] != "GoldBatchCQ"]


# --- timers -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def with_timers(tmp_path: Path) -> Path:
    """n0 with the files in which RocketMQ keeps its timers: of 15 messages five wait."""
    unpack("n0", tmp_path)
    unpack("n0-timerwheel", tmp_path)
    return tmp_path / "n0"


def test_stat_tells_how_far_timers_are_and_what_is_damaged(with_timers: Path) -> None:
    told = json.loads(run("log", "stat", str(with_timers), "-o", "json").stdout)["timers"]
    assert (told["readTimeMs"], told["queueOffset"], told["problem"]) == (1795227286000, 15, None)
    assert (told["logUnits"], told["logWaiting"]) == (15, 5) and told["wheelSlots"] >= 5
    assert "timerlog/ names 15, 5 of them due later" in run("log", "stat", str(with_timers)).stdout
    path = with_timers / "timerlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[52 * 3] = 1
    path.write_bytes(data)
    done = run("log", "stat", str(with_timers))
    assert done.exit_code == 0 and f"timerlog/{0:020d} at byte 156" in done.stdout


def test_cat_and_grep_tell_when_a_timer_message_comes_and_for_what(golden: Path) -> None:
    done = run("log", "cat", str(golden), "--topic", "rmq_sys_wheel_timer")
    lines = done.stdout.splitlines()
    assert len(lines) == 15 and all(re.search(r"\(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d for \w+\)", line) for line in lines)
    topic = re.search(r" for (\w+)\)", lines[0])
    assert topic is not None
    found = run("log", "grep", str(golden), f"^{topic[1]}$", "--topic", "rmq_sys_wheel_timer").stdout.splitlines()
    assert lines[0] in found


# --- cat --------------------------------------------------------------------------------------------------------------
def test_cat_prints_every_message_of_the_manifest(golden: Path) -> None:
    done = run("log", "cat", str(golden), "-o", "json")
    assert done.exit_code == 0
    found = {value["physicalOffset"]: value for value in objects(done.stdout)}
    assert len(found) == 716
    for expected in messages():
        value = found[expected["commitLogOffset"]]
        names = ("topic", "queueId", "queueOffset", "storeSize", "storeTimestamp", "bornTimestamp", "flag", "bodyCRC")
        assert {name: value[name] for name in names} == {name: expected[name] for name in names}
        assert value["offsetMsgId"] == expected["offsetMsgId"]
        wanted = {key: text for key, text in expected["properties"].items() if key not in ("MIN_OFFSET", "MAX_OFFSET")}
        assert value["properties"] == wanted
        body = value["body"].encode() if "body" in value else base64.b64decode(value["bodyBase64"])
        assert hashlib.sha256(body).hexdigest() == expected["bodySha256"]


def test_cat_chooses_by_topic_queue_place_and_time(golden: Path) -> None:
    everything = objects(run("log", "cat", str(golden), "-o", "json", "--body", "none").stdout)
    assert not any("body" in value or "bodyBase64" in value for value in everything)
    low, high = everything[200], everything[400]

    def chosen(*options: str) -> list[dict[str, Any]]:
        return objects(run("log", "cat", str(golden), "-o", "json", "--body", "none", *options).stdout)

    assert chosen("--topic", "GoldMixed", "--queue", "1") == [
        value for value in everything if (value["topic"], value["queueId"]) == ("GoldMixed", 1)
    ]
    start, end = str(low["physicalOffset"]), str(high["physicalOffset"])
    assert chosen("--from", start, "--to", end) == everything[200:400]
    assert chosen("--from", str(low["physicalOffset"] - 1), "--limit", "1") == [low]
    since, until = low["storeTimestamp"], high["storeTimestamp"]
    assert chosen("--since", str(since), "--until", str(until)) == [
        value for value in everything if since <= value["storeTimestamp"] < until
    ]
    assert chosen("--limit", "0") == []


def test_cat_lines_are_whole_in_a_pipe_and_printable(golden: Path) -> None:
    done = run("log", "cat", str(golden))
    lines = done.stdout.splitlines()
    assert len(lines) == 716
    assert max(map(len, lines)) > 80 and not any(line.endswith("…") for line in lines)
    assert all(line.isprintable() for line in lines)
    assert lines[0].split()[:2] == ["0", "GoldNormal:0@0"]


# --- the others -------------------------------------------------------------------------------------------------------
def test_ls_and_stat_agree_with_the_manifest(golden: Path) -> None:
    files = json.loads(run("log", "ls", str(golden), "-o", "json").stdout)
    assert [item["startOffset"] for item in files] == [0, 1048576, 2097152, 3145728]
    assert sum(item["records"] for item in files) == 716
    assert files[-1]["startOffset"] + files[-1]["usedBytes"] == manifest()["maxPhyOffset"]
    stat = json.loads(run("log", "stat", str(golden), "-o", "json").stdout)
    assert (stat["records"], stat["committedEnd"], stat["inUse"]) == (716, manifest()["maxPhyOffset"], False)
    assert stat["epochs"] == [
        {"epoch": entry["epoch"], "startOffset": entry["startOffset"]} for entry in manifest()["epochs"]
    ]
    bounds = {
        f"{item['topic']}/{item['queueId']}": [item["minQueueOffset"], item["maxQueueOffset"] + 1]
        for item in stat["queues"]
    }
    expected = {name: pair for name, pair in manifest()["queues"].items() if "BatchCQ" not in name and pair[1]}
    assert {name: bounds[name] for name in expected} == expected
    for command in ("ls", "stat"):
        text = run("log", command, str(golden)).stdout
        assert max(map(len, text.splitlines())) <= 80, command


def test_grep_finds_by_key_and_by_pattern(golden: Path) -> None:
    wanted = next(entry for entry in messages() if entry["properties"].get("KEYS", "").count(" ") == 1)
    for key in (wanted["properties"]["KEYS"].split(" ")[0], wanted["properties"]["UNIQ_KEY"]):
        found = objects(run("log", "grep", str(golden), "--key", key, "-o", "json").stdout)
        assert wanted["commitLogOffset"] in [value["physicalOffset"] for value in found]
    found = objects(run("log", "grep", str(golden), "^NORMAL-0-[01] ", "-i", "-o", "json").stdout)
    assert {value["body"][:10] for value in found} == {"normal-0-0", "normal-0-1"}
    assert run("log", "grep", str(golden), "-F", "^normal").exit_code == 1


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_export_is_whole_or_not_there(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    target = tmp_path / f"out.{suffix}"
    assert run("log", "export", str(golden), str(target), "--topic", "GoldOrder").exit_code == 0
    expected = objects(run("log", "cat", str(golden), "--topic", "GoldOrder", "-o", "json").stdout)
    if suffix == "jsonl":
        assert objects(target.read_text()) == expected
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        rows = parquet.read_table(target).to_pylist()
        assert [(row["physicalOffset"], row["keys"], row["body"].decode()) for row in rows] == [
            (value["physicalOffset"], value["keys"], value["body"]) for value in expected
        ]
    before = target.read_bytes()
    code, text = sentence(capsys, "log", "export", str(golden), str(target))
    assert (code, text) == (2, f"rmqha: {target} exists; say --force to replace it\n")
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_no_export_replaces_what_is_no_file(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    target = tmp_path / "out.jsonl"
    os.mkfifo(target) if kind == "pipe" else target.mkdir()
    code, text = sentence(capsys, "log", "export", str(golden), str(target), "--force")
    assert (code, text.count("\n")) == (2, 1) and "which no file may replace: name another file" in text
    assert not target.is_file() and list(tmp_path.iterdir()) == [target]


def test_verify_names_the_first_failure(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run("log", "verify", str(golden))
    assert (done.exit_code, done.stdout) == (0, "716 records, 3905602 bytes, up to offset 3947871\n")
    root = shutil.copytree(golden, tmp_path / "n0")
    path = "commitlog/00000000000001048576"
    content = bytearray((root / path).read_bytes())
    content[100] ^= 0xFF
    (root / path).write_bytes(content)
    code, text = sentence(capsys, "log", "verify", str(root))
    assert code == 1
    assert f"rmqha: {root}/{path} at byte 0: expected a body with CRC" in text
    assert text.count("\n") == 1
    code, text = sentence(capsys, "log", "cat", str(root))
    assert code == 1
    assert f"{root}/{path} at byte 0: expected a body with CRC" in text
    assert json.loads(run("log", "verify", str(root), "-o", "json").stdout)["first"]["file"] == path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["log", "ls", "nowhere"], "nowhere is no directory"),
        (["log", "ls", "."], "is no message store, it has no directory commitlog"),
        (["fsck", "nowhere"], "nowhere is no directory"),
        (["fsck", "nowhere", "--repair"], "nowhere is no directory"),
        (["fsck", "x", "--cut-at", "5"], "belong to --repair"),
        (["log", "grep", "x"], "PATTERN or --key"),
        (["log", "grep", "x", "("], "is no regular expression"),
        (["log", "grep", "x", r"(a)\1"], "which has no back-references and no look-around"),
        (["log", "grep", "x", "(?=a)"], "which has no back-references and no look-around"),
        (["log", "grep", "x", "a" * 1001], "longer than 1000 characters"),
        (["log", "grep", "x", "((a{100}){100}){100}"], "is no regular expression"),
        (["log", "cat", "x", "--since", "soon"], "--since 'soon' is no time"),
        (["log", "export", "x", "y.csv"], "does not say which format"),
    ],
)
def test_wrong_usage_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = sentence(capsys, *arguments)
    assert code == 2
    assert words in text
    assert text.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_has_stored_nothing_is_told_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "brokerIdentity").write_text("c#broker-a#1")
    code, text = sentence(capsys, "log", "stat", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} has no directory commitlog: the broker of this store has stored no message yet" in text


def test_fsck_says_each_finding_in_a_line_and_repairs(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_own(root)
    assert run("fsck", str(root)).exit_code == 0
    (root / "checkpoint").write_bytes(b"short")
    done = run("fsck", str(root))
    assert done.exit_code == 1
    assert "error: checkpoint at byte 5: expected 4096 bytes, found 5; rmqha fsck --repair mends it\n" in done.stdout
    value = json.loads(run("fsck", str(root), "-o", "json").stdout)
    assert (value["sound"], value["findings"][0]["file"], value["findings"][0]["byte"]) == (False, "checkpoint", 5)
    done = run("fsck", str(root), "--repair")
    assert done.exit_code == 0
    assert f"every byte that changed is kept in {root}/rmqha.fsck-1" in done.stdout
    assert (root / "rmqha.fsck-1" / "bytes" / "checkpoint.0").read_bytes() == b"short"
    assert run("fsck", str(root)).exit_code == 0
