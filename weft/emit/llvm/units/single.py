"""The work of single-node kernels: comparisons, windows, index rows, and elements one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.emit.llvm.loops.cost import REGISTER_LANES
from weft.emit.llvm.single.radix import FEW
from weft.emit.llvm.single.window import is_scan
from weft.kernels.single_node import SingleNode
from weft.kernels.work import product_flops, work_of
from weft.ops.index import Gather
from weft.ops.scatter import Scatter
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad
from weft.ops.sort import Sort, TopK
from weft.ops.window import ReduceWindow, SelectAndScatter, WindowDims

_MOVES = (Concatenate, DynamicSlice, DynamicUpdateSlice, Pad)


def single_units(kernel: SingleNode) -> Mapping[str, float]:
    """The units of a kernel of one op on the stacks of all devices."""
    op = kernel.op
    if isinstance(op, Sort | TopK):
        return _sorting(kernel, op)
    if isinstance(op, Scatter | Gather):
        return _indexed(kernel, op)
    if isinstance(op, SelectAndScatter):
        return _windows(kernel, op.window, kernel.inputs[1].shape, 2.5)
    if isinstance(op, ReduceWindow):
        if is_scan(kernel):
            elements = sum(o.size for o in kernel.outputs)
            return {"element": elements}
        return _windows(kernel, op.window, kernel.outputs[0].shape, 1.0)
    if isinstance(op, _MOVES):
        return _moves(kernel)
    work = work_of(kernel)
    products = product_flops(kernel)
    flops = work.flops - sum(products.values()) + work.transcendentals
    return {"scalar": flops, "multiplied": sum(products.values())}


def _sorting(kernel: SingleNode, op: Sort | TopK) -> Mapping[str, float]:
    """Rows and their elements; the best of long rows are found by one scan of each."""
    sizes = kernel.outputs[0].shape if isinstance(op, Sort) else kernel.inputs[0].shape
    dim = op.dimension % (len(sizes) - kernel.lead) if isinstance(op, Sort) else -1
    length, elements = sizes[kernel.lead :][dim], math.prod(sizes)
    rows = elements / max(1, length)
    if isinstance(op, TopK) and length > FEW:
        return {"records": rows, "element": elements, "sorted": rows * op.k}
    return {"records": rows, "sorted": elements}


def _windows(
    kernel: SingleNode, window: WindowDims, places: tuple[int, ...], steps: float
) -> Mapping[str, float]:
    """Registers of the last dim at every point of every window."""
    last = places[-1]
    registers = -(-last // REGISTER_LANES) * math.prod(places[:-1])
    return {"window": steps * registers * math.prod(window.sizes)}


def _indexed(kernel: SingleNode, op: Scatter | Gather) -> Mapping[str, float]:
    """Index rows, one after another, and the registers of their windows."""
    if isinstance(op, Scatter):
        count = len(kernel.outputs)
        updates, axes = kernel.inputs[count + 1], op.scatter_dimension_numbers.update_window_dims
    else:
        updates, axes = kernel.outputs[0], op.dimension_numbers.offset_dims
    sizes = updates.shape[kernel.lead :]
    window = math.prod([sizes[axis] for axis in axes])
    rows = math.prod(kernel.devices) * math.prod(sizes) / max(1, window)
    last = sizes[-1] if axes else 1
    return {"row": rows, "register": rows * window / max(1, last) * -(-last // REGISTER_LANES)}


def _moves(kernel: SingleNode) -> Mapping[str, float]:
    """Lines of the last dim that are copied."""
    outputs = kernel.outputs[0]
    if isinstance(kernel.op, DynamicUpdateSlice):
        outputs = kernel.inputs[1]
    sizes = outputs.shape[kernel.lead :]
    lines = math.prod(kernel.devices) * math.prod(sizes[:-1])
    last = sizes[-1] if sizes else 1
    return {"line": lines, "register": 2 * lines * -(-last // REGISTER_LANES)}
