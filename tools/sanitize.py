"""Run the native kernel's tests under AddressSanitizer. Standard library only.

    python3 tools/sanitize.py [CASES]

A copy of the sources gets a kernel that checks its reads and writes of memory, its sums and its debug assertions;
CASES damaged sends go through it beside the kernel in Python. First a call that names more bytes than there are must
be found, or the lane proves nothing. Without cargo there is no native kernel to check: this says so and succeeds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATE = ROOT / "native"
COPY = CRATE / "target" / "sanitized"
TARGET = "x86_64-unknown-linux-gnu" if os.uname().machine == "x86_64" else "aarch64-unknown-linux-gnu"
FLAGS = "-Zsanitizer=address -Cdebug-assertions=on -Coverflow-checks=on"
TESTS = ("tests/kernel", "tests/scan/test_native_columns.py")
LEFT_OUT = ("tests/kernel/test_crate.py", "tests/kernel/test_dist.py")
"""They are about how the library is built."""

OVERREAD = """
import ctypes, sys
from rmqha.store.log.record import MAGIC_V1
library = ctypes.PyDLL(sys.argv[1])
head = (4096).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big", signed=MAGIC_V1 < 0)
memory = ctypes.create_string_buffer(head, 24)
newest = ctypes.c_int64()
address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
library.rmqha_skip_sound.argtypes = address, size, size, number, address
library.rmqha_skip_sound(ctypes.addressof(memory), 4096, 0, 0, ctypes.addressof(newest))
"""


def build(cargo: str) -> Path:
    """A library with the sanitizer's checks; ends the program with cargo's words if that fails."""
    environment = dict(
        os.environ,
        RUSTC_BOOTSTRAP="1",  # sanitizers are not stable in rustc
        RUSTFLAGS=FLAGS,
        CARGO_PROFILE_RELEASE_LTO="off",
        CARGO_PROFILE_RELEASE_STRIP="none",
    )
    place = CRATE / "target" / "asan"
    command = [
        cargo,
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--lib",
        "--target",
        TARGET,
        "--target-dir",
        str(place),
    ]
    if subprocess.run(command, cwd=CRATE, env=environment, check=False).returncode:
        sys.exit("sanitize: cargo cannot build the kernel with AddressSanitizer")
    return place / TARGET / "release" / "librmqha_kernel.so"


def runtime() -> str:
    """Path of the sanitizer's runtime, which a Python that was built without it loads first."""
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        sys.exit("sanitize: there is no libasan.so; Debian's package gcc brings it")
    return path


def copied(library: Path) -> None:
    """The sources in COPY, with the library in place of the ordinary one."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)
    shutil.copy2(library, COPY / "rmqha" / "kernel" / library.name)


def main() -> None:
    cases = sys.argv[1] if len(sys.argv) > 1 else "20000"
    cargo = shutil.which("cargo", path=os.environ.get("PATH", "") + os.pathsep + str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        print("sanitize: there is no cargo, so there is no native kernel to check")
        return
    library = build(cargo)
    copied(library)
    environment = dict(
        os.environ,
        LD_PRELOAD=runtime(),
        ASAN_OPTIONS="detect_leaks=0",  # Python itself leaves memory at its end
        PYTHONMALLOC="malloc",  # else the border of a bytes object is not seen
        PYTHONPATH=str(COPY),
        RMQHA_KERNEL="native",
        RMQHA_KERNEL_CASES=cases,
    )
    placed = COPY / "rmqha" / "kernel" / library.name
    probe = [sys.executable, "-c", OVERREAD, str(placed)]
    found = subprocess.run(probe, cwd=COPY, env=environment, capture_output=True, text=True, check=False)
    if "AddressSanitizer: heap-buffer-overflow" not in found.stderr:
        sys.exit(f"sanitize: a read behind the end of memory was not found\n{found.stderr}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    command += [f"--ignore={path}" for path in LEFT_OUT]
    sys.exit(subprocess.run(command, cwd=COPY, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
