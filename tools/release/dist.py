"""Make wheels: the plain one, and one with the native kernel for each library of it.

    python -m tools.release.dist dist [LIBRARY...]

LIBRARY: a librmqha_kernel.so, perhaps of another machine (`cargo build --release --target aarch64-unknown-linux-gnu`,
with that machine's linker); by default the one that `make native` has built. The wheel's tag says what the library
needs: the machine of its ELF header, and the newest glibc whose symbols it names. pip takes such a wheel before the
plain one, on any Python from 3.11 on. Needs hatchling and wheel, which the environment has.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path("rmqha") / "kernel" / "librmqha_kernel.so"
MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine of ELF."""
_MACHINE_AT = 18
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)")
_OLDEST = 17
"""Minor number of the glibc that tags begin with: older ones are taken for it."""


class NoLibraryError(Exception):
    """The file is no shared library of a machine that wheels are made for; one sentence."""


def platform_tag(library: Path) -> str:
    """The tag of a wheel that holds this library. Raises NoLibraryError."""
    data = library.read_bytes() if library.is_file() else b""
    machine = MACHINES.get(int.from_bytes(data[_MACHINE_AT : _MACHINE_AT + 2], "little"))
    if not data.startswith(b"\x7fELF") or machine is None:
        raise NoLibraryError(f"{library} is no library for {' or '.join(MACHINES.values())}: make native builds one")
    newest = max([_OLDEST, *(int(found) for found in _GLIBC.findall(data))])
    return f"manylinux_2_{newest}_{machine}"


def run(*command: str) -> None:
    subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def native_wheel(plain: Path, library: Path, directory: Path) -> Path:
    """A wheel of what `plain` holds and the library."""
    tag = platform_tag(library)
    with tempfile.TemporaryDirectory() as scratch:
        run("wheel", "unpack", "--dest", scratch, str(plain))
        (tree,) = Path(scratch).iterdir()
        (tree / LIBRARY).write_bytes(library.read_bytes())
        (described,) = tree.glob("*.dist-info/WHEEL")
        text = described.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        described.write_text(re.sub(r"Tag: .*", f"Tag: py3-none-{tag}", text))
        run("wheel", "pack", "--dest-dir", str(directory), str(tree))
    (made,) = directory.glob(f"*-py3-none-{tag}.whl")
    return made


def main(words: list[str]) -> int:
    directory, *libraries = map(Path, words)
    try:
        for library in libraries:
            platform_tag(library)  # before anything is made
        run("hatchling", "build", "--target", "wheel", "--directory", str(directory.absolute()))
        plain = max(directory.glob("*-py3-none-any.whl"), key=lambda path: path.stat().st_mtime)
        made = [plain]
        for library in libraries or [item for item in [ROOT / LIBRARY] if item.exists()]:
            made.append(native_wheel(plain.absolute(), library, directory.absolute()))
    except NoLibraryError as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(path)
    if len(made) == 1:
        print("dist: there is no native kernel to put into a wheel: make native builds it, with cargo", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
