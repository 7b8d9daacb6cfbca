"""A client process that sends to one broker only and writes each answer down: ADDRESS FILE, until it is ended.

A line of FILE is `wall stamp, answer, UNIQ_KEY`. A drill starts it on the far side of a cut network.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from rmqha.drill.traffic import DirectSender


def main(address: str, path: Path) -> None:
    with path.open("a", buffering=1) as file:

        def heard(at_ms: int, answer: str, msg_id: str) -> None:
            file.write(f"{at_ms} {answer} {msg_id}\n")

        trio.run(DirectSender(address, heard).run, 2_000)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
