"""Apache's mqadmin with one JVM for all commands of a laboratory (tests/interop/java/Admin.java)."""

from __future__ import annotations

from base64 import b64decode, b64encode
from pathlib import Path

from tests.interop.lab.java import Java
from tests.interop.lab.processes import Process, until


class MqAdmin:
    """`run` is one command; the first starts the JVM, the end of `process` ends it."""

    def __init__(self, java: Java, directory: Path) -> None:
        # what a client's threads log at the end of a command is no answer; updateStaticTopic leaves files
        properties = {"interop.level": "OFF", "java.io.tmpdir": str(directory)}
        command = java.command("Admin", heap="192m", properties=properties)
        self.process = Process("mqadmin", command, directory, takes_input=True)
        self._run_count = 0

    def run(self, *arguments: str, timeout_s: float) -> tuple[str, str]:
        """(standard output, standard error)."""
        self.process.write(" ".join(b64encode(word.encode()).decode() for word in arguments) + "\n")
        self._run_count += 1
        what = f"mqadmin {' '.join(arguments)} ends"
        until(what, lambda: len(self._done()) == self._run_count, timeout_s, self.process)
        _, said, complained = self._done()[-1].split()
        return _unpacked(said), _unpacked(complained)

    def _done(self) -> list[str]:
        return [line for line in self.process.lines() if line.startswith("DONE ")]


def _unpacked(text: str) -> str:
    return "" if text == "-" else b64decode(text).decode()
