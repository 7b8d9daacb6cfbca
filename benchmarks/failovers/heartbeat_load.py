"""Brokers' heartbeats over many connections: the load of `bench_controllers`, in a process of its own.

    python -m benchmarks.failovers.heartbeat_load ADDRESS CONNECTIONS PER_SECOND SECONDS [BURST]

Each connection is one replica (groups of three, declared as Apache's brokers do, so that the first becomes master
unasked): it applies for its id, registers, and then sends a heartbeat each second, also while others still register:
a broker that is silent is asked whether it lives, and these have no port to answer at. Prints one line READY
when all are registered, then one JSON object: how long that took, BURST connections at once, and how often the
controller said that it does not lead; beats sent and answered, milliseconds of the answers, CPU of this side. A plain
epoll loop over frames that were made before, since this side must not be the limit.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time

from benchmarks.figures import summary
from rmqha.host.process import raise_file_limit
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame

TIMEOUT_S = 60.0
TICK_S = 0.005
BURST = 201
"""Connections that register at once: whole groups."""
BEAT_EVERY_S = 0.8
"""While others register."""
ASK_AGAIN_S = 0.2
MAX_FRAME_BYTES = 1024 * 1024


def setup_frames(number: int) -> tuple[list[bytes], bytes]:
    """What connection `number` sends first, and its heartbeat."""
    group, broker_id = divmod(number, 3)
    name, address = f"load-{group}", f"127.0.0.1:{10000 + number % 50000}"
    ids = {"clusterName": "c", "brokerName": name}
    own = {**ids, "brokerId": str(broker_id + 1)}
    applied = {**ids, "appliedBrokerId": str(broker_id + 1), "registerCheckCode": f"{address};{number}"}
    commands = [
        Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, applied),
        Command(RequestCode.CONTROLLER_REGISTER_BROKER, {**own, "brokerAddress": address}),
    ]
    if broker_id == 0:
        commands.append(Command(RequestCode.CONTROLLER_ELECT_MASTER, {**own, "designateElect": "false"}))
    beat = {
        **own,
        "brokerAddr": address,
        "epoch": "1",
        "maxOffset": "123456789",
        "confirmOffset": "123456789",
        "heartbeatTimeoutMills": "10000",
        "electionPriority": "2147483647",
        "totalReplicas": "3",
        "haMode": "cp",
        "stopping": "false",
        "zone": "",
        "boundTotalReplicas": "3",
        "diskProblem": "",
        "slaves": "2:0:0:1048576;3:0:0:1048576" if broker_id == 0 else "",
    }
    return [encode_frame(command) for command in commands], encode_frame(Command(RequestCode.BROKER_HEARTBEAT, beat))


class Load:
    def __init__(self, address: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._count = count
        self.poll = select.epoll()
        self.sockets: dict[int, socket.socket] = {}
        self.order: list[int] = []
        self.not_leader_count = 0

    def _open(self) -> None:
        """One more connection: it has to speak soon."""
        made = socket.create_connection(self._address)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setblocking(False)
        self.sockets[made.fileno()] = made
        self.order.append(made.fileno())
        self.poll.register(made.fileno(), select.EPOLLIN)

    def register(self, burst: int) -> list[bytes]:
        """Pass the set-up frames through, `burst` connections at a time; the heartbeats."""
        frames = [setup_frames(number) for number in range(self._count)]
        beats = [beat for _, beat in frames]
        parsers = dict[int, FrameParser]()
        beaten_at = [0.0] * self._count
        for start in range(0, self._count, burst):
            numbers = range(start, min(start + burst, self._count))
            for _ in numbers:
                self._open()
            parsers |= {fd: FrameParser(MAX_FRAME_BYTES) for fd in self.order[start:]}
            for turn in range(3):
                setups = {self.order[number]: frames[number][0] for number in numbers}
                waiting = {fd: setup[turn] for fd, setup in setups.items() if turn < len(setup)}
                give_up = time.monotonic() + TIMEOUT_S
                while waiting:
                    if time.monotonic() > give_up:
                        raise TimeoutError(f"the controller does not lead; {len(waiting)} connections wait for it")
                    for fd, frame in waiting.items():
                        self.sockets[fd].send(frame)
                    waiting = self._await(waiting, parsers)
                    time.sleep(ASK_AGAIN_S if waiting else 0)
            now = time.monotonic()
            due = [number for number in range(numbers.stop) if now >= beaten_at[number] + BEAT_EVERY_S]
            for number in due:
                beaten_at[number] = now
            self._await({self.order[number]: beats[number] for number in due}, parsers, send=True)
        return beats

    def _await(
        self, sent: dict[int, bytes], parsers: dict[int, FrameParser], *, send: bool = False
    ) -> dict[int, bytes]:
        """Until all are answered; those that were told that the controller does not lead."""
        deadline = time.monotonic() + TIMEOUT_S
        waiting, again = set(sent), dict[int, bytes]()
        if send:
            for fd, frame in sent.items():
                self.sockets[fd].send(frame)
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(waiting)} connections got no answer while they registered")
            for fd, _ in self.poll.poll(1):
                for reply in parsers[fd].feed(self.sockets[fd].recv(65536)):
                    if reply.code == ResponseCode.CONTROLLER_NOT_LEADER:
                        self.not_leader_count += 1
                        again[fd] = sent[fd]
                    elif reply.code:
                        raise RuntimeError(f"refused with code {reply.code}: {reply.remark}")
                    waiting.discard(fd)
        return again

    def beat(self, beats: list[bytes], per_second: int, seconds: float) -> dict[str, object]:
        count, sent_at, taken = len(self.order), dict[int, float](), list[float]()
        sent = answered = late = 0
        began, cpu_s = time.monotonic(), time.process_time()
        end = began + seconds
        while (now := time.monotonic()) < end:
            due = int((now - began) * per_second)
            while sent < due:
                fd = self.order[sent % count]
                if fd in sent_at:
                    late += 1
                sent_at[fd] = time.monotonic()
                self.sockets[fd].send(beats[sent % count])
                sent += 1
            for fd, _ in self.poll.poll(TICK_S):
                data = self.sockets[fd].recv(65536)
                if not data:
                    raise ConnectionError("the controller closed a connection")
                began_at = sent_at.pop(fd, None)
                if began_at is not None:
                    taken.append((time.monotonic() - began_at) * 1000)
                at = 0
                while at + 4 <= len(data):
                    at += 4 + struct.unpack_from(">i", data, at)[0]
                    answered += 1
        elapsed = time.monotonic() - began
        return {
            "connections": count,
            "sent_per_second": sent / elapsed,
            "answered_per_second": answered / elapsed,
            "answer_ms": summary(taken),
            "unanswered_when_next_due": late,
            "load_core_percent": (time.process_time() - cpu_s) / elapsed * 100,
        }


def main() -> None:
    raise_file_limit()
    address, count, per_second, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    burst = int(sys.argv[5]) if len(sys.argv) > 5 else BURST
    load = Load(address, count)
    began = time.monotonic()
    beats = load.register(burst)
    registered = {"registered_s": time.monotonic() - began, "not_leader_count": load.not_leader_count}
    load.beat(beats, per_second, min(2.0, seconds))
    print("READY", flush=True)
    sys.stdin.readline()
    print(json.dumps(registered | load.beat(beats, per_second, seconds)), flush=True)


if __name__ == "__main__":
    main()
