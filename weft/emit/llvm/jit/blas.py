"""BLAS libraries on this machine: numpy's own and the system's, callable by kernels."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from weft.emit.llvm.jit.processor import binding
from weft.ir.types import Array
from weft.records import dataclass

ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE = 101, 111, 112  # CBLAS enums
_LETTERS = {"float": "s", "double": "d"}
_DTYPES = {"float": np.float32, "double": np.float64}
_MAPS = Path("/proc/self/maps")
_SYSTEMS = ("libmkl_rt.so.2", "libmkl_rt.so", "libopenblas.so.0", "libcblas.so.3")
# Symbol prefixes and suffixes, and the integer width they imply, if any.
SPELLINGS = (("scipy_", "64_", 64), ("", "64_", 64), ("scipy_", "", 32), ("", "", 32))


@dataclass(frozen=True, slots=True)
class Blas:
    """A BLAS library: name, version, integer width, and function addresses."""

    name: str
    bits: int
    products: tuple[tuple[str, int], ...]  # gemm address by LLVM element type
    threads: tuple[int, int] | None = None  # addresses of the getter and setter of its thread count

    @property
    def kinds(self) -> tuple[str, ...]:
        """The LLVM element types that it multiplies."""
        return tuple([kind for kind, _ in self.products])

    def symbols(self) -> dict[str, str]:
        """The symbols by which kernels call it; registers them with LLVM."""
        addresses = dict(self.products)
        if self.threads is not None:
            addresses |= dict(zip(("get", "set"), self.threads, strict=True))
            addresses["use"] = ctypes.addressof(thread_use(self.name))
        stem = re.sub(r"\W", "_", self.name)
        for what, address in addresses.items():
            binding().add_symbol(f"weft.blas.{stem}.{what}", address)
        return {what: f"weft.blas.{stem}.{what}" for what in addresses}


@functools.cache
def thread_use(name: str) -> ctypes.Array[ctypes.c_int64]:
    """The state of a library's thread count: a lock, the runs that need one thread, the count."""
    return (ctypes.c_int64 * 3)()


@functools.cache
def libraries() -> tuple[Blas, ...]:
    """All usable libraries, numpy's first; those that lose NaNs are excluded."""
    usable: dict[str, Blas] = {}
    for library, path in opened():
        described = described_library(library, Path(path).name)
        if described is not None and described.name not in usable and _keeps_nan(described):
            usable[described.name] = described
    return tuple(usable.values())


def opened() -> Iterator[tuple[ctypes.CDLL, str]]:
    """The libraries that can be opened, numpy's first, and their paths."""
    for path in _paths():
        with suppress(OSError):
            yield ctypes.CDLL(path), path


def _paths() -> Iterator[str]:
    """The path of numpy's library, then well-known system names."""
    folders = Path(np.__file__).parent
    mapped = _MAPS.read_text().split() if _MAPS.exists() else []
    beside = [folders.parent / "numpy.libs", folders / ".dylibs"]
    listed = [str(path) for folder in beside for path in sorted(folder.glob("*openblas*"))]
    for path in dict.fromkeys([*listed, *mapped]):
        if re.search(r"/lib[^/]*(openblas|mkl_rt|cblas)[^/]*$", path):
            yield path
    yield from _SYSTEMS


def described_library(library: ctypes.CDLL, file: str) -> Blas | None:
    """The properties of a library; None if it is not a CBLAS."""
    for before, after, bits in SPELLINGS:
        named = {kind: f"{before}cblas_{letter}gemm{after}" for kind, letter in _LETTERS.items()}
        if not all(hasattr(library, name) for name in named.values()):
            continue
        config = getattr(library, f"{before}openblas_get_config{after}", None)
        name = file
        if config is not None:
            config.restype = ctypes.c_char_p
            config_text = config().decode()
            name = " ".join(config_text.split()[:2])
            bits = 64 if "USE64BITINT" in config_text else bits
        products = tuple([(kind, address_in(library, name)) for kind, name in named.items()])
        return Blas(name, bits, products, _threads(library, before, after))
    return None


def _threads(library: ctypes.CDLL, before: str, after: str) -> tuple[int, int] | None:
    own = [f"{before}openblas_{what}_num_threads{after}" for what in ("get", "set")]
    for names in (own, ["MKL_Get_Max_Threads", "MKL_Set_Num_Threads"]):
        if all(hasattr(library, name) for name in names):
            get, change = (address_in(library, name) for name in names)
            return get, change
    return None


def address_in(library: ctypes.CDLL, name: str) -> int:
    """The address of a function of a library."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _keeps_nan(blas: Blas) -> bool:
    """Whether 0 * NaN is NaN: some libraries skip zero factors."""
    for kind in blas.kinds:
        zeros, lost = np.zeros((2, 2), _DTYPES[kind]), np.full((2, 2), np.nan, _DTYPES[kind])
        for lhs, rhs in ((zeros, lost), (lost, zeros)):
            made = np.zeros((2, 2), _DTYPES[kind])
            multiply(blas, lhs, rhs, made)
            if not np.isnan(made).all():
                return False
    return True


def multiply(blas: Blas, lhs: Array, rhs: Array, out: Array) -> None:
    """out = lhs @ rhs for row-major matrices of one type."""
    kind = next(kind for kind, dtype in _DTYPES.items() if out.dtype == dtype)
    real = ctypes.c_float if kind == "float" else ctypes.c_double
    whole = ctypes.c_int64 if blas.bits == 64 else ctypes.c_int32
    (rows, k), columns = lhs.shape, rhs.shape[1]
    matrix = (ctypes.c_void_p, whole)
    types = (*[ctypes.c_int] * 3, *[whole] * 3, real, *matrix, *matrix, real, *matrix)
    call = ctypes.CFUNCTYPE(None, *types)(dict(blas.products)[kind])
    a, b, c = (array.ctypes.data for array in (lhs, rhs, out))
    ways = (ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE)
    call(*ways, rows, columns, k, 1.0, a, k, b, columns, 0.0, c, columns)
