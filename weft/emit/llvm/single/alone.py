"""Kernels of one node each: what the target emits for ops whose loops are not steps."""

from __future__ import annotations

from collections.abc import Callable

from weft.emit.llvm.single.cholesky import cholesky
from weft.emit.llvm.single.gather import dynamic_slice, dynamic_update_slice, gather
from weft.emit.llvm.single.random import rng_bit_generator
from weft.emit.llvm.single.rearrange import concatenate, pad, reverse
from weft.emit.llvm.single.reduce import reduce
from weft.emit.llvm.single.scatter import scatter
from weft.emit.llvm.single.select_scatter import select_and_scatter
from weft.emit.llvm.single.sort import sort
from weft.emit.llvm.single.top_k import top_k
from weft.emit.llvm.single.triangular import triangular_solve
from weft.emit.llvm.single.window import reduce_window
from weft.errors import Unsupported
from weft.ir.op import Op
from weft.kernels.alone import Alone
from weft.kernels.emitted import Emitted
from weft.ops.index import Gather, TorchIndexSelect
from weft.ops.linalg import Cholesky, TriangularSolve
from weft.ops.random import RngBitGenerator
from weft.ops.reduce import Reduce
from weft.ops.scatter import Scatter
from weft.ops.shape import Reverse
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad
from weft.ops.sort import Sort, TopK
from weft.ops.window import ReduceWindow, SelectAndScatter

EMIT: dict[type[Op], Callable[[Alone], Emitted]] = {
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
    Cholesky: cholesky,
    TriangularSolve: triangular_solve,
}


def emit_alone(kernel: Alone) -> Emitted:
    """The text of a kernel of one node; refuses what this target leaves to numpy."""
    made = EMIT.get(type(kernel.op))
    if made is None:
        raise Unsupported(
            f"{kernel.op.name} is no kernel of the llvm target",
            help="run the node as the runtime has it",
        )
    return made(kernel)
