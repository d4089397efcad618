"""LAPACK in this process: the routines of the BLAS library that numpy comes with, for kernels."""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

from weft.emit.llvm.jit.blas import (
    SPELLINGS,
    address_in,
    described_library,
    opened,
    thread_use,
)
from weft.emit.llvm.jit.processor import binding
from weft.errors import WeftError
from weft.records import dataclass

_PROBE = "zheevd"  # a library that has it has all others
_SYMBOL = re.compile(rb"weft\.lapack(32|64)\.(\w+)")


@dataclass(frozen=True, slots=True)
class Lapack:
    """A LAPACK library whose number of threads can be set."""

    library: ctypes.CDLL
    name: str
    bits: int  # of its integers
    spelling: tuple[str, str]  # what stands before and behind the name of a routine
    threads: tuple[int, int]  # addresses of the getter and setter of its thread count

    def symbol(self, routine: str) -> str:
        """The symbol by which kernels call a routine."""
        return f"weft.lapack{self.bits}.{routine}"

    def address(self, routine: str) -> int:
        """The address of a routine, or of what `use`, `get` and `set` stand for."""
        match routine:
            case "use":
                return ctypes.addressof(thread_use(self.name))
            case "get" | "set":
                return self.threads[routine == "set"]
        before, after = self.spelling
        return address_in(self.library, f"{before}{routine}_{after}")


@functools.cache
def lapack() -> Lapack | None:
    """The first usable library, numpy's if it has one."""
    for library, path in opened():
        described = described_library(library, Path(path).name)
        if described is None or described.threads is None:
            continue
        for before, after, _ in SPELLINGS:
            if hasattr(library, f"{before}{_PROBE}_{after}"):
                found = (before, after)
                return Lapack(library, described.name, described.bits, found, described.threads)
    return None


def define_routines(code: bytes) -> None:
    """Register the routines that an object calls with LLVM; code from the cache calls them, too."""
    for bits, name in {*_SYMBOL.findall(code)}:
        library, routine = lapack(), name.decode()
        if library is None or library.bits != int(bits):
            raise WeftError(
                f"a kernel calls LAPACK's {routine} with integers of {bits.decode()} bits, which "
                "numpy's library here does not have",
                help="compile the program on this machine, or install numpy's package from PyPI",
            )
        binding().add_symbol(library.symbol(routine), library.address(routine))
