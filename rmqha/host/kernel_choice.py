"""The choice of the batch kernel: RMQHA_KERNEL=python or native; by default native if its library is there."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

from rmqha.kernel import native_kernel
from rmqha.kernel.batch_kernel import BatchKernel
from rmqha.kernel.native_columns import NativeColumns
from rmqha.kernel.native_kernel import NativeKernel
from rmqha.model.error import ConfigError

VARIABLE = "RMQHA_KERNEL"
LIBRARY = Path(native_kernel.__file__).with_name("librmqha_kernel.so")
_NAMES = ("native", "python")


class KernelChoice(NamedTuple):
    """The chosen kernel. `fallback_reason`: why it is not the native one, "" if it is or if Python was asked for."""

    name: str
    kernel: BatchKernel
    fallback_reason: str = ""

    @property
    def description(self) -> str:
        """Name of the kernel, and the reason of a fallback."""
        return f"{self.name}: {self.fallback_reason}" if self.fallback_reason else self.name


def choose_kernel() -> KernelChoice:
    """Choose the kernel by RMQHA_KERNEL. Raises ConfigError if its value is neither name, or if the native library
    cannot be loaded although it is asked for."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", *_NAMES):
        raise ConfigError(f"{VARIABLE}: {wanted!r} is no kernel; it is one of {', '.join(_NAMES)}, or unset")
    if wanted != "python":
        try:
            return KernelChoice("native", load_kernel())
        except OSError as error:
            if wanted:
                raise ConfigError(f"{VARIABLE}=native: {error}") from None
            return KernelChoice("python", _python_kernel(), str(error))
    return KernelChoice("python", _python_kernel())


def _python_kernel() -> BatchKernel:
    from rmqha.kernel.python_kernel import PythonKernel  # imported only here: its patterns take memory

    return PythonKernel()


def native_columns() -> NativeColumns | None:
    """Native decoder of columns; None if there is no library or RMQHA_KERNEL asks for Python."""
    if os.environ.get(VARIABLE, "") == "python":
        return None
    try:
        load_kernel(LIBRARY)  # raises OSError if the library has another version
        return NativeColumns(ctypes.CDLL(str(LIBRARY)))
    except OSError:
        return None


def load_kernel(library: Path = LIBRARY) -> NativeKernel:
    """Load the native kernel. Raises OSError with one sentence if it is missing or unusable."""
    if not library.exists():
        raise OSError(f"there is no {library}: make native builds it, with cargo")
    try:
        return NativeKernel(ctypes.PyDLL(str(library)))
    except (OSError, AttributeError, ValueError) as error:
        trouble = _trouble(library) or f"cannot be used ({error}): make native builds it anew"
        raise OSError(f"{library} {trouble}") from None


def _trouble(library: Path) -> str:
    """The reason why no program can load this library, with what to do; "" if none is known. The system's own words
    mislead: its linker calls a file of another processor missing."""
    if os.statvfs(library).f_flag & os.ST_NOEXEC:
        return "lies on a file system that is mounted noexec: install rmqha on another one"
    known, own = _processor(library), _processor(Path("/proc/self/exe"))
    if known and own and known != own:
        return "was built for another processor: make native builds one for this"
    return ""


def _processor(program: Path) -> bytes:
    """Class, byte order and machine of an ELF file; b"" if it is none, or cannot be read as where /proc is hidden."""
    try:
        with program.open("rb") as file:
            head = file.read(20)
    except OSError:
        return b""
    return head[4:6] + head[18:20] if head.startswith(b"\x7fELF") else b""
