"""Dispatch of single-node kernels: ops whose loops steps cannot express."""

from __future__ import annotations

from collections.abc import Callable

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.fft.emit import fft
from weft.emit.llvm.fft.plan import refuses_fft
from weft.emit.llvm.jit.processor import Processor, host
from weft.emit.llvm.lapack import factors
from weft.emit.llvm.lapack import spectral as by_lapack
from weft.emit.llvm.lapack.matrices import refuses_lapack
from weft.emit.llvm.product.complex import complex_product, refuses_complex_product
from weft.emit.llvm.ragged.capable import refuses_ragged_dot
from weft.emit.llvm.ragged.emit import ragged_dot
from weft.emit.llvm.single import factorize
from weft.emit.llvm.single.cholesky import cholesky, refuses_cholesky
from weft.emit.llvm.single.gather import dynamic_slice, dynamic_update_slice, gather
from weft.emit.llvm.single.random import rng_bit_generator
from weft.emit.llvm.single.rearrange import concatenate, pad, reverse
from weft.emit.llvm.single.reduce import reduce
from weft.emit.llvm.single.region import refuses_region
from weft.emit.llvm.single.scatter import refuses_scatter, scatter
from weft.emit.llvm.single.select_scatter import (
    refuses_select_and_scatter,
    select_and_scatter,
)
from weft.emit.llvm.single.sort import sort
from weft.emit.llvm.single.top_k import top_k
from weft.emit.llvm.single.triangular import triangular_solve
from weft.emit.llvm.single.tridiagonal import refuses_tridiagonal, tridiagonal_solve
from weft.emit.llvm.single.window import reduce_window
from weft.emit.llvm.spectral.eigh import eigh, refuses_eigh
from weft.emit.llvm.spectral.svd import refuses_svd, svd
from weft.errors import Unsupported
from weft.ir.op import Op
from weft.kernels.single_node import SingleNode
from weft.ops.contract import Dot, DotGeneral
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.index import Gather, TorchIndexSelect
from weft.ops.linalg import Cholesky, Fft, TriangularSolve
from weft.ops.ragged import RaggedDot
from weft.ops.random import RngBitGenerator
from weft.ops.reduce import Reduce
from weft.ops.scatter import Scatter
from weft.ops.shape import Reverse
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad
from weft.ops.sort import Sort, TopK
from weft.ops.window import ReduceWindow, SelectAndScatter

_Emit = Callable[[SingleNode], Emitted]
_Refusal = Callable[[SingleNode], str | None]
_Way = tuple[_Emit, _Refusal]  # the emitter, and why it does not take a kernel

# Custom calls that have kernels, by name: the first way that takes a kernel is used.
_CALLS: dict[str, tuple[_Way, ...]] = {
    "weft.eigh": ((eigh, refuses_eigh), (by_lapack.eigh, refuses_lapack)),
    "weft.svd": ((svd, refuses_svd), (by_lapack.svd, refuses_lapack)),
    "weft.eig": ((by_lapack.eig, refuses_lapack),),
    "weft.schur": ((by_lapack.schur, refuses_lapack),),
    "weft.pivoted_qr": ((factors.pivoted_qr, refuses_lapack),),
    "weft.hessenberg": ((factors.hessenberg, refuses_lapack),),
    "weft.tridiagonal": ((factors.tridiagonal, refuses_lapack),),
    "weft.tridiagonal_solve": ((tridiagonal_solve, refuses_tridiagonal),),
}
_FACTORS: dict[str, _Way] = {
    "weft.lu": (factors.lu, refuses_lapack),
    **dict.fromkeys(("weft.qr", "Qr"), (factors.qr, refuses_lapack)),
    **dict.fromkeys(
        ("weft.householder_product", "ProductOfElementaryHouseholderReflectors"),
        (factors.householder_product, factors.refuses_product),
    ),
}
_CALLS |= {
    name: ((factorize.factorize, factorize.refuses_factors), _FACTORS[name])
    for name in factorize.CALLS
}
_CHOLESKY: tuple[_Way, ...] = ((cholesky, refuses_cholesky), (factors.cholesky, refuses_lapack))


def _ways(kernel: SingleNode) -> tuple[_Way, ...]:
    if isinstance(kernel.op, Cholesky):
        return _CHOLESKY
    assert isinstance(kernel.op, CustomCall)
    return _CALLS.get(kernel.op.call_target_name, ())


def _refuses_ways(kernel: SingleNode) -> str | None:
    """Why no way takes a kernel."""
    reasons = [refuses(kernel) for _, refuses in _ways(kernel)]
    if None in reasons:
        return None
    return reasons[-1] if reasons else "it is a call of something else"


def _first_way(kernel: SingleNode) -> Emitted:
    """The kernel by the first way that takes it."""
    return next(emit for emit, refuses in _ways(kernel) if refuses(kernel) is None)(kernel)


EMIT: dict[type[Op], Callable[[SingleNode], Emitted]] = {
    Gather: gather,
    TorchIndexSelect: gather,
    DynamicSlice: dynamic_slice,
    DynamicUpdateSlice: dynamic_update_slice,
    Scatter: scatter,
    Concatenate: concatenate,
    Pad: pad,
    Reverse: reverse,
    Sort: sort,
    TopK: top_k,
    Reduce: reduce,
    ReduceWindow: reduce_window,
    SelectAndScatter: select_and_scatter,
    RngBitGenerator: rng_bit_generator,
    Cholesky: _first_way,
    TriangularSolve: triangular_solve,
    Fft: fft,
    CustomCall: _first_way,
    **dict.fromkeys((DotGeneral, Dot), complex_product),
}
# Kernels whose blocks depend on the processor.
FITTED: dict[type[Op], Callable[[SingleNode, Processor], Emitted]] = {RaggedDot: ragged_dot}


# Restrictions of emitters, besides those on regions.
REFUSES: dict[type[Op], Callable[[SingleNode], str | None]] = {
    Scatter: refuses_scatter,
    SelectAndScatter: refuses_select_and_scatter,
    Cholesky: _refuses_ways,
    Fft: refuses_fft,
    CustomCall: _refuses_ways,
    RaggedDot: refuses_ragged_dot,
    **dict.fromkeys((DotGeneral, Dot), refuses_complex_product),
}


def refuses_single_node(kernel: SingleNode) -> str | None:
    """Why a node's kernel is unsupported, or None if it is supported."""
    if type(kernel.op) not in EMIT and type(kernel.op) not in FITTED:
        return "it has no single-node kernel"
    own = REFUSES.get(type(kernel.op))
    if own is not None and (reason := own(kernel)):
        return reason
    if not kernel.outputs[0].size:  # no results
        return None
    reasons = (refuses_region(region) for region in kernel.regions)
    return next((reason for reason in reasons if reason), None)


def emit_single_node(kernel: SingleNode, processor: Processor | None = None) -> Emitted:
    """Emit a single-node kernel; raises for those that are left to numpy."""
    if reason := refuses_single_node(kernel):
        raise Unsupported(
            f"{kernel.op.name} has no kernel in the llvm target: {reason}",
            help="run the node on the host",
        )
    fitted = FITTED.get(type(kernel.op))
    return EMIT[type(kernel.op)](kernel) if fitted is None else fitted(kernel, processor or host())
