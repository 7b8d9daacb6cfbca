"""Build the native kernel (native/) beside rmqha/kernel, if this machine can. Standard library only.

    python3 tools/native.py

Cargo compiles it only if its sources have changed. Where there is no cargo, or it fails, this says so in a sentence and
succeeds: brokers then run the kernel in Python. A library that is there already stays, unless it is of other sources.
This file is read by whatever `python3` is, so it keeps to what Python 3.6 understands.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATE = ROOT / "native"
LIBRARY = ROOT / "rmqha" / "kernel" / "librmqha_kernel.so"
SOURCES = CRATE / "target" / "sources"
"""Hash of the sources that LIBRARY was made of."""
LIMIT_S = 60


def say(text):
    print(f"native: {text}", file=sys.stderr, flush=True)


def sources_hash(crate):
    """One hash of all files that the library is made of."""
    digest = hashlib.sha256()
    for path in [crate / "Cargo.toml", crate / "Cargo.lock", *sorted((crate / "src").glob("*.rs"))]:
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def build(cargo):
    """Build with cargo; "" or why not, in words."""
    command = [cargo, "build", "--release", "--locked", "--quiet", "--lib"]
    process = subprocess.Popen(command, cwd=str(CRATE), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"cargo takes longer than {LIMIT_S} s"
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        return f"cargo fails ({lines[0] if lines else process.returncode})"
    made = CRATE / "target" / "release" / LIBRARY.name
    temporary = LIBRARY.with_suffix(".new")
    shutil.copyfile(str(made), str(temporary))
    temporary.rename(LIBRARY)  # a broker that runs keeps the file that it has loaded
    return ""


def main():
    wanted = sources_hash(CRATE)
    if LIBRARY.exists() and SOURCES.exists() and SOURCES.read_text() == wanted:
        return
    cargo = shutil.which("cargo", path=os.environ.get("PATH", "") + os.pathsep + str(Path.home() / ".cargo" / "bin"))
    why = build(cargo) if cargo else "there is no cargo"
    if not why:
        SOURCES.write_text(wanted)
        say(f"built {LIBRARY.relative_to(ROOT)}")
    elif LIBRARY.exists() and not SOURCES.exists():
        say(f"{why}, {LIBRARY.relative_to(ROOT)} stays as it was brought here")
    else:
        if LIBRARY.exists():
            LIBRARY.unlink()
        say(f"{why}: brokers run their kernel in Python, which is slower and does the same; make native tries again")


if __name__ == "__main__":
    main()
