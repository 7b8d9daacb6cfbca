"""A slave knows ahead whether its master's handshake has its log cut: then the disk must be well first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqha.ha.action import OpenHa
from rmqha.ha.stream.client import HaClient
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.wire.ha_stream import MasterHandshake
from tests.ha.memory_log import MemoryLog
from tests.support.tracer import SilentTracer


class WatchedLog(MemoryLog):
    """Counts what is durable and takes something away."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[str] = []

    def truncate(self, end_offset: PhyOffset) -> None:
        self.cuts.append("truncate")
        super().truncate(end_offset)

    def restart_at(self, phy_offset: PhyOffset) -> None:
        self.cuts.append("restart_at")
        super().restart_at(phy_offset)

    def clear_epochs(self) -> None:
        self.cuts.append("clear_epochs")
        super().clear_epochs()


@st.composite
def logs(draw: st.DrawFn) -> tuple[EpochHistory, int, int]:
    """Epochs, start and end of a log whose numbers are small, so that two of them meet often."""
    epochs = sorted(draw(st.sets(st.integers(1, 4), max_size=3)))
    starts = sorted(draw(st.sets(st.integers(0, 6), min_size=len(epochs), max_size=len(epochs))))
    entries = [EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in zip(epochs, starts, strict=True)]
    begin = starts[0] if starts else 0
    end = draw(st.integers(max([begin, *starts]), 8)) if starts else begin
    return EpochHistory(entries), begin, end


@given(logs(), logs(), st.sampled_from(["ap", "cp"]), st.integers(0, 8))
def test_no_log_is_cut_unannounced(
    own: tuple[EpochHistory, int, int], master: tuple[EpochHistory, int, int], ha_mode: str, confirm: int
) -> None:
    log = WatchedLog()
    log.epochs, log.start, end = own
    log.data = bytearray(end - log.start)
    log.confirm = max(log.start, min(confirm, end))
    client = HaClient(BrokerConfig(ha_mode=ha_mode, total_replicas=3), log, BrokerId(2), SilentTracer())
    (dial,) = client.follow(0, "127.0.0.1:1")
    assert isinstance(dial, OpenHa) and not client.would_cut(b""), "there is no connection yet"
    client.opened(0, dial.conn_id)
    epochs, _, master_end = master
    last = epochs.last
    data = MasterHandshake(PhyOffset(master_end), last.epoch if last else Epoch(-1), epochs).encode()
    before = (log.epochs, log.start, len(log.data), client.state)
    assert client.would_cut(data[: len(data) // 2]), "nobody knows yet"
    announced = client.would_cut(data)
    assert (log.epochs, log.start, len(log.data), client.state) == before and not log.cuts
    client.received(0, dial.conn_id, data)
    assert announced or not log.cuts


def test_a_log_that_only_goes_on_waits_for_nothing() -> None:
    """The way of every slave after an election."""
    log = WatchedLog()
    log.epochs, log.data = EpochHistory([EpochEntry(Epoch(1), PhyOffset(0))]), bytearray(500)
    client = HaClient(BrokerConfig(ha_mode="cp", total_replicas=3), log, BrokerId(2), SilentTracer())
    (dial,) = client.follow(0, "127.0.0.1:1")
    assert isinstance(dial, OpenHa)
    client.opened(0, dial.conn_id)
    for entries, cuts in (([(1, 0)], False), ([(1, 0), (2, 500)], False), ([(1, 0), (2, 400)], True)):
        epochs = EpochHistory(EpochEntry(Epoch(epoch), PhyOffset(start)) for epoch, start in entries)
        last = epochs.last
        assert last is not None
        assert client.would_cut(MasterHandshake(PhyOffset(500), last.epoch, epochs).encode()) == cuts
