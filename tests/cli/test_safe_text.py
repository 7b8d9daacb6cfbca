"""Names that peers choose never steer a terminal, whichever command shows them."""

from __future__ import annotations

import ast
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmqha.cli.cluster_table import print_cluster
from rmqha.cli.diagnosis import doctor
from rmqha.cli.main import cli, main
from rmqha.cli.render import Text, console, table
from rmqha.cli.safe_text import SafeText, raw, safe_streams
from rmqha.host.tracer import HostTracer
from rmqha.model.series import MetricFamilies, MetricKind, Series
from rmqha.ops.cluster_view import ClusterView, GroupView, NodeView
from rmqha.ops.finding import wrong
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord
from rmqha.ops.local.supervisor import start_stamp
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from rmqha.wire.state.name_server_state import NameServerState
from rmqha.wire.state.replica_state import ReplicaState

HOSTILE = "x\x1b[2J\x1b]0;t\x07\x9b31m\r\u202e\u2066\x00[red]y[/red][link=http://z]:skull:"
ROOT = Path(__file__).parent.parent.parent


def is_harmless(text: str) -> bool:
    return all(char in "\n\t" or char.isprintable() for char in text) and "[red]y[/red]" in text


def test_tables_and_sentences_show_markup_and_escapes_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    out = console()
    out.print(table([("A", "left")], [[HOSTILE], [Text(HOSTILE, "red")]]))
    out.print(HOSTILE)
    out.print(Text(HOSTILE, "bold"))
    text = capsys.readouterr().out
    assert is_harmless(text) and text.count(":skull:") == 4 and "\\u001b[2J" in text


def test_own_styles_still_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    console().print(Text(HOSTILE, "bold red"))
    assert "\x1b[" in stream.getvalue() and "\x1b[2J" not in stream.getvalue()


FORGED = HOSTILE + "\nforged line"
ELECTION = {"masterEpoch": 1, "brokerId": 1, "causeText": FORGED, "reason": FORGED, "atMs": 0}
REPLICA = {"brokerId": FORGED, "address": FORGED, "inSyncStateSet": True, "isMaster": False, "notElectable": FORGED}
EXPLANATION = {
    "version": 1, "answer": FORGED, "nextTotalReplicas": FORGED, "totalReplicas": FORGED, "eligible": [],
    "masterBrokerId": None, "replicas": [REPLICA | {"diskProblem": FORGED}], "elections": [ELECTION],
}  # fmt: skip


class Liar:
    """A server that answers what it likes; `fails`: refusals whose remarks steer a terminal."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        """Connections side by side: else one would wait for the end of another."""
        with ThreadPoolExecutor(8) as pool:
            while True:
                try:
                    peer, _ = self._listener.accept()
                except OSError:
                    return
                pool.submit(self._talk, peer)

    def _talk(self, peer: socket.socket) -> None:
        parser = FrameParser(1 << 20)
        with peer, suppress(ConnectionError):  # who has seen enough goes
            while data := peer.recv(65536):
                for request in parser.feed(data):
                    peer.sendall(encode_frame(self._answer(request)))

    def _answer(self, request: Command) -> Command:
        if self._fails:
            return request.reply(1, remark=FORGED)
        event = {"at_ms": 0, "event": FORGED, FORGED: FORGED, "x": FORGED}
        body = {"topicList": [FORGED], "events": [event], **EXPLANATION}
        return request.reply(ext={"isLeader": "true"}, body=json.dumps(body).encode())


@pytest.fixture(params=[False, True])
def liar(request: pytest.FixtureRequest) -> Iterator[Liar]:
    found = Liar(fails=request.param)
    yield found
    found.close()


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list", "--namesrv", "{}"],
        ["topic", "list", "--namesrv", "{}", "-o", "json"],
        ["describe", "topic", "T", "--namesrv", "{}"],
        ["explain", "g", "--controller", "{}"],
        ["quorum", "show", "--controller", "{}"],
        ["health", "--namesrv", "{}", "--timeout", "2"],
        ["history", "--directory", "DIR"],
        ["status", "--directory", "DIR"],
        ["top", "--once", "--directory", "DIR"],
        ["describe", "group", "g", "--directory", "DIR"],
    ],
    ids=" ".join,
)
def test_whatever_a_server_answers_no_command_is_steered(
    liar: Liar, command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stamp = start_stamp(os.getpid())
    record = NodeRecord("g-1", "broker", liar.address, group="g", pid=os.getpid(), process_start=stamp or "")
    controller = NodeRecord("c-1", "controller", liar.address, liar.address, pid=os.getpid(), process_start=stamp or "")
    ClusterState(tmp_path, "c", "cp", "c.toml", {"g-1": record, "c-1": controller}).write()
    with pytest.raises(SystemExit):
        main([str(tmp_path) if word == "DIR" else word.format(liar.address) for word in command])
    shown = capfd.readouterr()
    text = shown.out + shown.err
    assert text and all(char == "\n" or char.isprintable() for char in text), text
    if command[:2] in (["topic", "list"], ["history", "--directory"]):
        assert not any(line.startswith("forged") for line in text.splitlines()), text


def view_of(replica: ReplicaState, name_server: NameServerState) -> ClusterView:
    record = NodeRecord("g-1", "broker", f"127.0.0.1:1{HOSTILE}", group="g", pid=0)
    cluster = ClusterState(Path("/nowhere"), HOSTILE, "cp", "c.toml", {"g-1": record})
    return ClusterView(
        cluster, {"g-1": NodeView(record, True, replica, name_server=name_server)}, {"g": GroupView("g")}
    )


def test_status_shows_hostile_states(capsys: pytest.CaptureFixture[str]) -> None:
    replica = ReplicaState(role=HOSTILE, epoch=1, max_phy_offset=0, confirm_offset=0, writable=False)
    replica.one_copy_synced, replica.why_not_writable, replica.controller_refusal = True, HOSTILE, HOSTILE
    print_cluster(view_of(replica, NameServerState(follows=HOSTILE, event_index=7)), console())
    assert is_harmless(capsys.readouterr().out)


def test_doctor_shows_hostile_findings(capsys: pytest.CaptureFixture[str]) -> None:
    with safe_streams():
        doctor.show([wrong(HOSTILE, HOSTILE, HOSTILE, HOSTILE)], True)
    assert is_harmless(capsys.readouterr().out)


def test_logs_show_hostile_lines(tmp_path: Path) -> None:
    record = NodeRecord("g-1", "broker", "127.0.0.1:1")
    state = ClusterState(tmp_path, "c", "cp", "c.toml", {"g-1": record})
    state.write()
    state.log_path("g-1").parent.mkdir(parents=True)
    state.output_path("g-1").write_text(HOSTILE + "\n")
    tracer = HostTracer(str(state.log_path("g-1")))
    tracer.event("refused", group=HOSTILE, x={HOSTILE: [HOSTILE + "\nforged line"]})
    tracer.close()
    assert state.log_path("g-1").read_text().isascii() and state.log_path("g-1").read_text().count("\n") == 1
    found = CliRunner().invoke(cli, ["logs", "g-1", "--directory", str(tmp_path)])
    assert found.exit_code == 0 and is_harmless(found.output)


def test_what_commands_echo_is_safe_and_json_stays_json() -> None:
    stream = io.StringIO()
    safe = SafeText(stream)
    safe.write(json.dumps({"a": HOSTILE}, ensure_ascii=False) + "\n")
    safe.writelines([HOSTILE, "\n"])
    first, second = stream.getvalue().splitlines()
    assert json.loads(first) == {"a": HOSTILE} and is_harmless(first) and is_harmless(second)
    before = sys.stdout
    with safe_streams():
        assert raw(sys.stdout) is before
        with safe_streams():
            assert raw(sys.stdout) is before
    assert sys.stdout is before


def test_labels_of_metrics_are_one_line() -> None:
    families = MetricFamilies({})
    series = Series("x", MetricKind.GAUGE, "", ("topic",))
    families.put(series, 1, HOSTILE)
    assert is_harmless(families.samples[series][0].labels["topic"])


def test_commands_have_no_other_way_to_the_terminal() -> None:
    """Consoles are made in one place, and nobody writes to the streams behind the wrappers."""
    found = []
    for folder in ("cli", "drill"):
        for path in sorted((ROOT / "rmqha" / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    if called in ("Console", "rich.print") or called.endswith(("stdout.write", "stderr.write")):
                        found.append(f"{path.name}: {called}")
    assert found == []
