"""Products by cuBLASLt, one of the algorithms that it proposes: the tuner measures several.

PyTorch takes the first proposal. The library is the one that PyTorch has loaded, called through
ctypes; matrices are column-major there, so that it computes the transposed product.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from weft.emit.triton.library.absorbed import Absorbed
from weft.emit.triton.library.places import Matrices
from weft.emit.triton.library.product import ALGORITHMS, LibraryProduct
from weft.records import dataclass

WORKSPACE = 32 << 20  # bytes
_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}  # cudaDataType
_COMPUTE, _COMPUTE_TF32, _COMPUTE_F64 = 68, 77, 70  # cublasComputeType_t
_TRANSA, _TRANSB, _BATCH_COUNT, _BATCH_STRIDE, _MOST_WORKSPACE = 3, 4, 5, 6, 1
_EPILOGUE, _BIAS_POINTER = 7, 8
_PLAIN, _RELU, _BIAS = 1, 2, 4  # cublasLtEpilogue_t; relu and bias are 6
_ALIGNED = 256  # bytes, of the made-up address of a bias


class _Proposal(ctypes.Structure):
    """A result of the heuristic: an opaque algorithm, and the workspace it needs."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """A column-major matrix: its sizes, leading dim, and whether it is read transposed."""

    rows: int
    columns: int
    leading: int
    transposed: bool


def _side(matrices: Matrices) -> _Side:
    """A row-major view, or a column-major one, as the transposed matrix in column-major order."""
    (m, n), (outer, inner) = matrices.sizes[-2:], matrices.strides[-2:]
    if inner == 1 or n == 1:
        # A leading dim below the rows is refused, even where there is only one column and no stride
        # counts.
        return _Side(n, m, max(outer, n), transposed=False)
    return _Side(m, n, max(inner, m), transposed=True)


class LtProduct:
    """One product with its proposals, on matrices of these sizes and strides."""

    def __init__(self, product: LibraryProduct) -> None:
        self.library, self.handle = _library(), _handle()
        self.product = product
        kind = _TYPES[product.dtype.name]
        self.scalar: Any = ctypes.c_double if product.dtype.name == "f64" else ctypes.c_float
        compute = _COMPUTE_TF32 if product.tf32 else _COMPUTE
        compute = _COMPUTE_F64 if product.dtype.name == "f64" else compute
        scale = _TYPES["f64" if product.dtype.name == "f64" else "f32"]
        self.description = self._new("cublasLtMatmulDescCreate", compute, scale)
        # In column-major order: out^T = rhs^T lhs^T.
        sides = [_side(product.rhs), _side(product.lhs)]
        for attribute, side in zip((_TRANSA, _TRANSB), sides, strict=True):
            self._set("cublasLtMatmulDescSetAttribute", self.description, attribute,
                      ctypes.c_int32(side.transposed))  # fmt: skip
        self.lock = threading.Lock()  # of the description, which has the address of the bias
        if not product.absorbed.is_nothing:
            self._set_epilogue(product.absorbed)
        pairs = zip((product.rhs, product.lhs, product.out), (*sides, _side(product.out)),
                    strict=True)  # fmt: skip
        self.layouts = [self._layout(kind, side, of) for of, side in pairs]
        self.proposals = self._proposals()
        self.points = [*itertools.product(*map(range, product.lhs.sizes[:-3]))]

    def _set_epilogue(self, epilogue: Absorbed) -> None:
        kind = (_BIAS if epilogue.bias is not None else 0) | (_RELU if epilogue.relu else 0)
        setter = "cublasLtMatmulDescSetAttribute"
        self._set(setter, self.description, _EPILOGUE, ctypes.c_uint32(kind or _PLAIN))
        if epilogue.bias is not None:  # proposals need to know that there is one
            self._set(setter, self.description, _BIAS_POINTER, ctypes.c_uint64(_ALIGNED))

    def _new(self, function: str, *arguments: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        _checked(getattr(self.library, function)(ctypes.byref(made), *arguments), function)
        return made

    def _set(self, function: str, of: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        code = getattr(self.library, function)(of, attribute, ctypes.byref(value), size)
        _checked(code, function)

    def _layout(self, kind: int, side: _Side, of: Matrices) -> ctypes.c_void_p:
        layout = self._new(
            "cublasLtMatrixLayoutCreate",
            kind,
            ctypes.c_uint64(side.rows),  # type: ignore[arg-type]
            ctypes.c_uint64(side.columns),  # type: ignore[arg-type]
            ctypes.c_int64(side.leading),  # type: ignore[arg-type]
        )
        if of.sizes[-3] > 1:
            setter = "cublasLtMatrixLayoutSetAttribute"
            self._set(setter, layout, _BATCH_COUNT, ctypes.c_int32(of.sizes[-3]))
            self._set(setter, layout, _BATCH_STRIDE, ctypes.c_int64(of.strides[-3]))
        return layout

    def _proposals(self) -> list[_Proposal]:
        preference = self._new("cublasLtMatmulPreferenceCreate")
        self._set("cublasLtMatmulPreferenceSetAttribute", preference, _MOST_WORKSPACE,
                  ctypes.c_uint64(WORKSPACE))  # fmt: skip
        proposals, count = (_Proposal * ALGORITHMS)(), ctypes.c_int()
        code = self.library.cublasLtMatmulAlgoGetHeuristic(
            self.handle, self.description, *self.layouts, self.layouts[-1], preference,
            ALGORITHMS, proposals, ctypes.byref(count),
        )  # fmt: skip
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        # A product that it does not take has no proposals.
        return [one for one in proposals[: count.value] if one.state == 0] if code == 0 else []

    def __call__(self, algorithm: int, places: Sequence[int], stream: int) -> None:
        """Enqueue it at addresses of lhs, rhs, out, operands of the epilogue, and workspace."""
        product, epilogue = self.product, self.product.absorbed
        proposal = self.proposals[algorithm]
        # alpha A B + beta C: beta is 1 where C is added, which is else the output and not read.
        one, scale = self.scalar(1), self.scalar(epilogue.added is not None)
        size = product.dtype.bits // 8
        sides = (product.lhs, product.rhs, product.out)
        rest = [*places[3:-1]]
        with self.lock:
            if epilogue.bias is not None:
                at = ctypes.c_uint64(rest.pop(0) + size * epilogue.bias.at.offset)
                setter = "cublasLtMatmulDescSetAttribute"
                self._set(setter, self.description, _BIAS_POINTER, at)
            for point in self.points:
                lhs, rhs, out = (
                    ctypes.c_void_p(place + size * (of.offset + _along(of, point)))
                    for of, place in zip(sides, places[:3], strict=True)
                )
                added = out
                if epilogue.added is not None:
                    start = epilogue.added.at.offset + _along(product.out, point)
                    added = ctypes.c_void_p(rest[0] + size * start)
                code = self.library.cublasLtMatmul(
                    self.handle, self.description, ctypes.byref(one), rhs, self.layouts[0],
                    lhs, self.layouts[1], ctypes.byref(scale), added, self.layouts[2], out,
                    self.layouts[2], ctypes.byref(proposal), ctypes.c_void_p(places[-1]),
                    ctypes.c_size_t(WORKSPACE), ctypes.c_void_p(stream),
                )  # fmt: skip
                _checked(code, "cublasLtMatmul")

    def __del__(self) -> None:
        library = getattr(self, "library", None)
        if library is not None:
            # `__init__` may have raised before any of these were there.
            for layout in getattr(self, "layouts", ()):
                library.cublasLtMatrixLayoutDestroy(layout)
            if hasattr(self, "description"):
                library.cublasLtMatmulDescDestroy(self.description)


def _along(of: Matrices, point: tuple[int, ...]) -> int:
    """The offset of a point of the outer dims, in elements."""
    return sum(n * stride for n, stride in zip(point, of.strides, strict=False))


def algorithm_count(product: LibraryProduct) -> int:
    """How many algorithms the library proposes; 0 where it is not there."""
    return len(lt_product(product).proposals) if has_cublaslt() else 0


@cache
def lt_product(product: LibraryProduct) -> LtProduct:
    """The product, with proposals for the current device."""
    return LtProduct(product)


def _checked(code: int, function: str) -> None:
    if code:
        raise RuntimeError(f"{function}: cuBLASLt's status {code}")


@cache
def has_cublaslt() -> bool:
    """Whether PyTorch has loaded cuBLASLt for a GPU that is here."""
    import torch

    if torch.version.hip is not None or not torch.cuda.is_available():
        return False
    try:
        return _library() is not None
    except OSError:
        return False


def version() -> int:
    """The library's version; 0 if it is not there."""
    return int(_library().cublasLtGetVersion()) if has_cublaslt() else 0


@cache
def _library() -> Any:
    import torch

    torch.cuda.init()
    major = str(torch.version.cuda).partition(".")[0]
    library = ctypes.CDLL(f"libcublasLt.so.{major}")  # by its name, as PyTorch has loaded it
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return library


@cache
def _handle() -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _checked(_library().cublasLtCreate(ctypes.byref(made)), "cublasLtCreate")
    return made
