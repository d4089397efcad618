"""Single nodes by PyTorch, on tensors of their operands' memory: a table by op.

Each function takes the kernel and one device's operands, and returns its results, or writes to its
result; none waits for the device. A function of `refuses` says which nodes are left to numpy, on
copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from weft.emit.triton.library import elementwise
from weft.emit.triton.library.pooling import refuses_selection, select_and_scatter
from weft.emit.triton.library.regions import update_of
from weft.ir.module import Node, Region, Value
from weft.ir.op import Op
from weft.kernels.single_node import SingleNode
from weft.ops.elementwise.pointwise import Compare
from weft.ops.index import Gather, Windows, gather_windows
from weft.ops.linalg import Cholesky, Fft, TriangularSolve
from weft.ops.scatter import Scatter
from weft.ops.slicing import Concatenate, DynamicUpdateSlice
from weft.ops.sort import Sort, TopK
from weft.ops.window import ReduceWindow, SelectAndScatter

NodeResults: TypeAlias = Sequence[Any]


# Indices


def _starts(windows: Windows, rank: int, indices: Any) -> list[Any]:
    """The start of every window along each dim of the operand; 0 where there is none."""
    import torch

    vector = windows.vector
    moved = indices.unsqueeze(-1) if vector == indices.ndim else indices.movedim(vector, -1)
    starts: list[Any] = [torch.zeros((), dtype=torch.int64, device=indices.device)] * rank
    for n, dim in enumerate(windows.start_map):
        starts[dim] = moved[..., n].to(torch.int64)
    counted = moved.shape[:-1]
    for dim, batching in zip(windows.operand_batching, windows.indices_batching, strict=True):
        at = batching - (batching > vector)
        shape = [-1 if d == at else 1 for d in range(len(counted))]
        starts[dim] = torch.arange(counted[at], device=indices.device).reshape(shape)
    return starts


def _positions(
    windows: Windows, shape: Sequence[int], starts: Sequence[Any], slices: Sequence[int]
) -> list[Any]:
    """The index along each dim of the operand at every element of `slices`."""
    import torch

    rank = len(slices)
    batch = [d for d in range(rank) if d not in windows.window]
    inside = dict(zip(windows.operand_dims(len(shape)), windows.window, strict=True))
    positions = []
    for dim, start in enumerate(starts):
        sizes = [1] * rank
        for d, size in zip(batch[-start.ndim :] if start.ndim else (), start.shape, strict=True):
            sizes[d] = size
        place = start.reshape(sizes)
        if dim in inside:
            along = [-1 if d == inside[dim] else 1 for d in range(rank)]
            count = slices[inside[dim]]
            place = place + torch.arange(count, device=start.device).reshape(along)
        positions.append(place)
    return positions


def _gather(kernel: SingleNode, operand: Any, indices: Any) -> NodeResults:
    op = kernel.op
    assert isinstance(op, Gather)
    windows = gather_windows(op.dimension_numbers)
    starts = _starts(windows, operand.ndim, indices)
    for dim, size in enumerate(op.slice_sizes):
        # Gathers clamp, scatters drop: StableHLO's rules for indices out of bounds.
        starts[dim] = starts[dim].clamp(0, operand.shape[dim] - size)
    shape = kernel.outputs[0].shape[kernel.lead :]
    made = _signed(operand)[tuple(_positions(windows, operand.shape, starts, shape))]
    return [made.view(operand.dtype).expand(shape)]


def _scatter(kernel: SingleNode, out: Any, operand: Any, indices: Any, updates: Any) -> None:
    import torch

    op = kernel.op
    assert isinstance(op, Scatter)
    windows, how = op.windows, update_of(kernel.regions[0])
    starts = _starts(windows, operand.ndim, indices)
    places = _positions(windows, operand.shape, starts, updates.shape)
    flat = torch.zeros((), dtype=torch.int64, device=operand.device)
    inside = torch.ones((), dtype=torch.bool, device=operand.device)
    for place, size in zip(places, operand.shape, strict=True):
        inside = inside & (place >= 0) & (place < size)
        flat = flat * size + place
    narrow = operand.dtype in (torch.bfloat16, torch.float16)
    if how == "add" and not narrow and operand.numel():
        copied(operand, out)
        # Updates out of bounds add -0.0 to some element, which changes none.
        nothing = torch.full((), -0.0, device=out.device).to(out.dtype)
        added = torch.where(inside, updates, nothing).reshape(-1)
        target = torch.where(inside, flat, 0).expand(updates.shape).reshape(-1)
        out.view(-1).index_add_(0, target, added)
        return
    count = operand.numel()
    # Updates out of bounds go to one more element, which is dropped.
    target = torch.where(inside, flat, count).expand(updates.shape).reshape(-1)
    room = torch.empty(count + 1, dtype=operand.dtype, device=operand.device)
    room[:count] = operand.reshape(-1)
    out.view(-1).copy_(_combined(how, room, target, updates.reshape(-1))[:count])


def _signed(tensor: Any) -> Any:
    """The same bits as signed integers: PyTorch indexes no unsigned ones of more than a byte."""
    import torch

    kinds = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    return tensor.view(kinds.get(tensor.dtype, tensor.dtype))


def copied(operand: Any, out: Any) -> None:
    """Start a result from an operand, which may be in the same memory."""
    if operand.data_ptr() != out.data_ptr():
        out.copy_(operand)


def _combined(how: str | None, room: Any, target: Any, updates: Any) -> Any:
    """Elements combined with their updates; sums of narrow floats are rounded once."""
    import torch

    if how == "replace":
        _signed(room).index_put_((target,), _signed(updates))
        return room
    if how == "add":
        # index_add_ of narrow floats rounds after each update, in an order that varies between
        # runs.
        wide = torch.zeros(room.shape, dtype=torch.float32, device=room.device)
        return (room + wide.index_add_(0, target, updates.float())).to(room.dtype)
    names = {"max": "amax", "min": "amin", "mul": "prod"}
    return room.scatter_reduce_(0, target, updates, names[str(how)], include_self=True)


def _refuses_scatter(kernel: SingleNode) -> str | None:
    how = update_of(kernel.regions[0])
    if how is None:
        return "its region is not a plain sum, maximum or select"
    dtype = kernel.operands[0].dtype
    if dtype is not kernel.outputs[0].dtype or (dtype.kind == "bool" and how != "replace"):
        return "its element types differ"
    return _refuses_unsigned(kernel) if how != "replace" else None


def _dynamic_update_slice(
    kernel: SingleNode, out: Any, operand: Any, update: Any, *starts: Any
) -> None:
    import torch

    if not starts:
        out.copy_(update)
        return

    places = []
    for dim, start in enumerate(starts):
        size, count = operand.shape[dim], update.shape[dim]
        along = [-1 if d == dim else 1 for d in range(operand.ndim)]
        first = start.to(torch.int64).clamp(0, size - count)
        places.append((first + torch.arange(count, device=operand.device)).reshape(along))
    copied(operand, out)
    _signed(out).index_put_(tuple(places), _signed(update))


def _concatenate(kernel: SingleNode, out: Any, *operands: Any) -> None:
    import torch

    assert isinstance(kernel.op, Concatenate)
    torch.cat(operands, kernel.op.dimension, out=out)


# Order


def _comparison(region: Region) -> tuple[int, bool] | None:
    """The input that a comparator compares, and whether the largest comes first; or None."""
    node = region.results[0].node
    if node is None or not isinstance(node.op, Compare):
        return None
    direction = node.op.comparison_direction
    sides = [_argument(region, value) for value in node.operands]
    first, second = sides
    if first is None or second is None or direction not in ("LT", "GT"):
        return None
    if first // 2 != second // 2 or first == second:
        return None
    return first // 2, (direction == "GT") != (first > second)


def _argument(region: Region, value: Value) -> int | None:
    """The argument that a value is, made comparable as JAX does: of zeros and of NaN."""
    for n, arg in enumerate(region.args):
        if value is arg:
            return n
    node = value.node
    if isinstance(node, Node) and node.op.name == "stablehlo.select":
        found = {_argument(region, v) for v in node.operands[1:]} - {None}
        return found.pop() if len(found) == 1 else None
    return None


def _sort(kernel: SingleNode, *operands: Any) -> NodeResults:
    import torch

    op = kernel.op
    assert isinstance(op, Sort)
    found = _comparison(kernel.regions[0])
    assert found is not None, "refused"
    key, descending = found
    dim = op.dimension % max(1, operands[0].ndim)
    keys = operands[key]
    if descending and keys.is_floating_point():  # PyTorch has NaN as the largest, the order last
        keys = torch.where(keys.isnan(), -math.inf, keys)
    order = torch.sort(keys, dim=dim, descending=descending, stable=True).indices
    made = [torch.take_along_dim(_signed(operand), order, dim) for operand in operands]
    return [one.view(operand.dtype) for one, operand in zip(made, operands, strict=True)]


def _refuses_sort(kernel: SingleNode) -> str | None:
    if _comparison(kernel.regions[0]) is None:
        return "its comparator compares more than one key"
    return "of unsigned integers" if kernel.operands[0].dtype.kind == "uint" else None


def _top_k(kernel: SingleNode, operand: Any) -> NodeResults:
    import torch

    assert isinstance(kernel.op, TopK)
    made = torch.sort(operand, dim=-1, descending=True, stable=True)
    k = kernel.op.k
    return [made.values[..., :k], made.indices[..., :k].to(torch.int32)]


# Linear algebra


def _cholesky(kernel: SingleNode, a: Any) -> NodeResults:
    import torch

    assert isinstance(kernel.op, Cholesky)
    made, info = torch.linalg.cholesky_ex(_widened(a), upper=not kernel.op.lower)
    wrong = (info != 0)[..., None, None]
    nan = torch.full_like(made, math.nan)
    return [torch.where(wrong, nan.tril() if kernel.op.lower else nan.triu(), made).to(a.dtype)]


def _widened(a: Any) -> Any:
    """Narrow floats as f32: PyTorch has no linear algebra of them."""
    import torch

    return a.float() if a.dtype in (torch.float16, torch.bfloat16) else a


def _triangular_solve(kernel: SingleNode, a: Any, b: Any) -> NodeResults:
    import torch

    op = kernel.op
    assert isinstance(op, TriangularSolve)
    upper, matrix = not op.lower, _widened(a)
    if op.transpose_a != "NO_TRANSPOSE":
        matrix, upper = matrix.mT, not upper
        matrix = matrix.conj() if op.transpose_a == "ADJOINT" else matrix
    options = {"upper": upper, "left": op.left_side, "unitriangular": op.unit_diagonal}
    return [torch.linalg.solve_triangular(matrix, _widened(b), **options).to(b.dtype)]


def _fft(kernel: SingleNode, operand: Any) -> NodeResults:
    import torch

    op = kernel.op
    assert isinstance(op, Fft)
    dims = tuple(range(-len(op.fft_length), 0))
    names = {"FFT": "fftn", "IFFT": "ifftn", "RFFT": "rfftn", "IRFFT": "irfftn"}
    transform = getattr(torch.fft, names[op.fft_type])
    return [transform(operand, s=op.fft_length, dim=dims)]


# Windows


def _reduce_window(kernel: SingleNode, operand: Any, init: Any) -> NodeResults:
    op = kernel.op
    assert isinstance(op, ReduceWindow)
    how = update_of(kernel.regions[0])
    window = op.window
    padded = _padded(operand, init, window.padding)
    sizes, strides = [], []
    for dim, places in enumerate(kernel.outputs[0].shape[kernel.lead :]):
        sizes.append(places)
        strides.append(padded.stride(dim) * window.strides[dim])
    for dim, size in enumerate(window.sizes):
        sizes.append(size)
        strides.append(padded.stride(dim) * window.window_dilations[dim])
    # Windows overlap in one memory: a view, not copies of all of them.
    views = padded.as_strided(sizes, strides)
    dims = tuple(range(operand.ndim, 2 * operand.ndim))
    if how == "add":
        return [(views.sum(dims) + init).to(operand.dtype)]
    reduced = views.amax(dims) if how == "max" else views.amin(dims)
    return [reduced]


def _padded(operand: Any, init: Any, padding: Any) -> Any:
    """The operand with its edges padded by the initial value."""
    shape = [size + low + high for size, (low, high) in zip(operand.shape, padding, strict=True)]
    padded = init.expand(shape).contiguous().clone()
    inside = tuple(
        slice(low, low + size) for size, (low, _) in zip(operand.shape, padding, strict=True)
    )
    padded[inside] = operand
    return padded


def _refuses_window(kernel: SingleNode) -> str | None:
    op = kernel.op
    assert isinstance(op, ReduceWindow)
    if len(kernel.outputs) != 1 or update_of(kernel.regions[0]) not in ("add", "max", "min"):
        return "its region is not a plain sum or maximum"
    if any(n != 1 for n in op.window.base_dilations):
        return "its operand is dilated"
    if any(n < 0 for pair in op.window.padding for n in pair):
        return "its padding is negative"
    how = update_of(kernel.regions[0])
    if how == "add" and kernel.known[1:] != (0.0,) and kernel.known[1:] != (0,):
        return "its sum starts from another number than 0"
    return _refuses_unsigned(kernel)


def _refuses_unsigned(kernel: SingleNode) -> str | None:
    """PyTorch has neither sums nor extrema of unsigned integers of more than a byte."""
    dtype = kernel.operands[0].dtype
    return f"of {dtype}" if dtype.kind == "uint" and dtype.bits > 8 else None


# Functions that write to their result, which may be in the memory of the first operand.
WRITES: dict[type[Op], Callable[..., None]] = {
    Scatter: _scatter,
    DynamicUpdateSlice: _dynamic_update_slice,
    Concatenate: _concatenate,
}
CALLS: dict[type[Op], Callable[..., NodeResults]] = {
    **elementwise.CALLS,
    Gather: _gather,
    Sort: _sort,
    TopK: _top_k,
    Cholesky: _cholesky,
    TriangularSolve: _triangular_solve,
    Fft: _fft,
    ReduceWindow: _reduce_window,
    SelectAndScatter: select_and_scatter,
}
_REFUSES: dict[type[Op], Callable[[SingleNode], str | None]] = {
    **dict.fromkeys(elementwise.CALLS, elementwise.refuses),
    Scatter: _refuses_scatter,
    Sort: _refuses_sort,
    ReduceWindow: _refuses_window,
    SelectAndScatter: refuses_selection,
}
_NARROW = {"i2", "ui2", "i4", "ui4"}


def refuses_node(kernel: SingleNode) -> str | None:
    """Why PyTorch does not compute a node, or None if it does."""
    if type(kernel.op) not in CALLS.keys() | WRITES.keys():
        return "no function of PyTorch's computes it"
    if isinstance(kernel.op, Scatter) and len(kernel.outputs) != 1:
        return "it has several results"
    for operand in kernel.operands:
        small = operand.dtype.is_float and operand.dtype.bits < 16
        if operand.dtype.name in _NARROW or small:
            return f"of {operand.dtype}"
    own = _REFUSES.get(type(kernel.op))
    return None if own is None else own(kernel)
