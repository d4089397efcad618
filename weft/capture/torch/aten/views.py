"""Views and copies: reshapes, slices, concatenations."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from weft.capture.torch.aten.indexing import index_copy, index_select
from weft.capture.torch.build import AtenLowering, Build, LoweredResults, dim_of, shape_of, type_of
from weft.ir.module import Value
from weft.ir.types import Array
from weft.ops.index import Gather, GatherDims
from weft.ops.shape import Reverse
from weft.ops.slicing import DynamicUpdateSlice


def view(b: Build, x: Value, size: Sequence[int]) -> Value:
    """The same elements in another shape."""
    return b.reshape(x, b.out.sizes)


def permute(b: Build, x: Value, dims: Sequence[int]) -> Value:
    """The dims in another order."""
    return b.transpose(x, [dim_of(d, len(dims)) for d in dims])


def squeeze(b: Build, x: Value, dim: object = None) -> Value:
    """Dims of size 1 removed or added."""
    return b.reshape(x, b.out.sizes)


def expand(b: Build, x: Value, size: Sequence[int], *, implicit: bool = False) -> Value:
    """Dims of size 1 broadcast."""
    return b.broadcast(x, b.out.sizes)


def copy(b: Build, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """Another tensor's elements in the shape and type of this one."""
    return b.broadcast(b.convert(source, b.out.dtype), b.out.sizes)


def repeat(b: Build, x: Value, repeats: Sequence[int]) -> Value:
    """The tensor tiled along its dims; new leading dims may be added."""
    given = (1,) * (len(repeats) - len(shape_of(x))) + shape_of(x)
    # [repeats 0, size 0, repeats 1, size 1, ...], of which a reshape merges each pair.
    paired = [n for pair in zip(repeats, given, strict=True) for n in pair]
    spread = b.spread(b.reshape(x, given), paired, range(1, 2 * len(given), 2))
    return b.reshape(spread, b.out.sizes)


def select(b: Build, x: Value, dim: int, index: int | Value) -> Value:
    """One slice of a dim, which is removed; its index may be an element of a tensor."""
    if isinstance(index, Value):
        return b.reshape(index_select(b, x, dim, index), b.out.sizes)
    dim = dim_of(dim, len(shape_of(x)))
    index = index % max(1, shape_of(x)[dim])
    return b.reshape(b.slice(x, dim, index, index + 1), b.out.sizes)


def bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The bounds of a slice in a dim, with Python's rules."""
    first, last, _ = slice(start, None if end == sys.maxsize else end).indices(size)
    return first, max(first, last)


def slice_(
    b: Build,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """A slice of a dim, with Python's rules."""
    dim = dim_of(dim, len(shape_of(x)))
    first, last = bounds(shape_of(x)[dim], start, end)
    return b.slice(x, dim, first, last, step)


def slice_scatter(
    b: Build,
    x: Value,
    source: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """The tensor with a slice replaced."""
    dim = dim_of(dim, len(shape_of(x)))
    size = shape_of(x)[dim]
    first, last = bounds(size, start, end)
    source = b.convert(source, b.out.dtype)
    if step == 1:
        return _updated(b, x, source, dim, first)
    rank = len(shape_of(x))
    inner, low, high = [0] * rank, [0] * rank, [0] * rank
    taken = shape_of(source)[dim]
    inner[dim], low[dim] = step - 1, first
    high[dim] = size - first - (max(0, taken - 1) * step + min(taken, 1))
    # At its places by interior padding; what lies between comes from x.
    spread = b.pad(source, low, high, 0, inner)
    index = np.arange(size)
    chosen = (index >= first) & (index < last) & ((index - first) % step == 0)
    return b.select(b.spread(b.constant(chosen), shape_of(x), (dim,)), spread, x)


def select_scatter(b: Build, x: Value, source: Value, dim: int, index: int | Value) -> Value:
    """The tensor with one slice of a dim replaced; its index may be an element of a tensor."""
    if isinstance(index, Value):
        return index_copy(b, x, dim, index, b.convert(source, b.out.dtype))
    sizes = shape_of(x)
    dim = dim_of(dim, len(sizes))
    source = b.convert(source, b.out.dtype)
    source = b.reshape(source, (*sizes[:dim], 1, *sizes[dim + 1 :]))
    return _updated(b, x, source, dim, index % max(1, sizes[dim]))


def slice_backward(
    b: Build, grad: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    """The gradient of a sliced tensor: zeros, but for the slice."""
    rank = len(sizes)
    dim = dim_of(dim, rank)
    first, _ = bounds(sizes[dim], start, end)
    taken = shape_of(grad)[dim]
    inner, low, high = [0] * rank, [0] * rank, [0] * rank
    inner[dim], low[dim] = step - 1, first
    high[dim] = sizes[dim] - first - (max(0, taken - 1) * step + min(taken, 1))
    return b.pad(grad, low, high, 0, inner)


def select_backward(b: Build, grad: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    """The gradient of a tensor of which one slice of a dim was taken."""
    dim = dim_of(dim, len(sizes))
    index %= max(1, sizes[dim])
    grad = b.reshape(grad, (*sizes[:dim], 1, *sizes[dim + 1 :]))
    return slice_backward(b, grad, sizes, dim, index, index + 1, 1)


def _updated(b: Build, x: Value, source: Value, dim: int, start: int) -> Value:
    if shape_of(x) == shape_of(source):
        return source
    if not type_of(source).size:
        return x
    starts = [b.constant(np.asarray(start if d == dim else 0)) for d in range(len(shape_of(x)))]
    return b.op(DynamicUpdateSlice(), x, source, *starts)


def split_with_sizes(b: Build, x: Value, sizes: Sequence[int], dim: int = 0) -> LoweredResults:
    """A dim split into parts of these sizes."""
    dim = dim_of(dim, len(shape_of(x)))
    ends = [int(n) for n in np.cumsum(sizes)]
    return tuple([b.slice(x, dim, e - s, e) for s, e in zip(sizes, ends, strict=True)])


def unbind(b: Build, x: Value, dim: int = 0) -> LoweredResults:
    """All slices of a dim, which is removed."""
    dim = dim_of(dim, len(shape_of(x)))
    sizes = shape_of(x)
    rest = (*sizes[:dim], *sizes[dim + 1 :])
    return tuple([b.reshape(b.slice(x, dim, n, n + 1), rest) for n in range(sizes[dim])])


def concatenate(b: Build, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Concatenation; tensors of shape [0] are skipped, as in PyTorch."""
    rank = b.out.rank
    kept = [b.convert(t, b.out.dtype) for t in tensors if len(shape_of(t)) == rank]
    kept = [t for t in kept if rank != 1 or shape_of(t) != (0,)] or kept[:1]
    return b.join(kept, dim_of(dim, rank))


def flip(b: Build, x: Value, dims: Sequence[int]) -> Value:
    """Dims reversed."""
    rank = len(shape_of(x))
    listed = tuple(sorted(dim_of(d, rank) for d in dims)) if rank else ()
    return b.op(Reverse(listed), x) if listed else x


def constant_pad(b: Build, x: Value, pad: Sequence[int], value: float = 0) -> Value:
    """Padding, listed from the last dim to the first."""
    rank = len(shape_of(x))
    low, high = [0] * rank, [0] * rank
    for n in range(len(pad) // 2):
        low[rank - 1 - n], high[rank - 1 - n] = pad[2 * n], pad[2 * n + 1]
    return b.pad(x, low, high, value)


def diagonal(b: Build, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """A diagonal of two dims, as the last dim."""
    rank = len(shape_of(x))
    first, second = dim_of(dim1, rank), dim_of(dim2, rank)
    rest = [d for d in range(rank) if d not in (first, second)]
    x = b.transpose(x, [*rest, first, second])
    length, outer = b.out.sizes[-1], shape_of(x)[:-2]
    if not b.out.size:
        return b.splat(0, b.out)
    index = np.arange(length)
    places = np.stack([index + max(0, -offset), index + max(0, offset)], -1)
    count = len(outer)
    dims = GatherDims(tuple(range(count)), (count, count + 1), (), (), (count, count + 1), 1)
    return b.op(Gather(dims, (*outer, 1, 1)), x, b.constant(places))


def unfold(b: Build, x: Value, dimension: int, size: int, step: int) -> Value:
    """Sliding windows along a dim; their elements are the last dim."""
    sizes = shape_of(x)
    if not sizes:
        return b.reshape(x, b.out.sizes)
    dim = dim_of(dimension, len(sizes))
    count = b.out.sizes[dim]
    rows = [b.slice(x, dim, n, n + (count - 1) * step + 1, step) for n in range(size)]
    if not rows:
        return b.splat(0, b.out)
    return b.join([b.reshape(row, (*shape_of(row), 1)) for row in rows], len(sizes))


def as_strided(
    b: Build,
    x: Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Value:
    """A strided view of a tensor in row-major order."""
    places = _places(size, stride, storage_offset)
    if not places.size:
        return b.splat(0, b.out)
    return _elements_at(b, b.reshape(x, (type_of(x).size,)), places)


def as_strided_scatter(
    b: Build,
    x: Value,
    source: Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Value:
    """The tensor with a strided view of it replaced."""
    places = _places(size, stride, storage_offset).reshape(-1)
    if not places.size:
        return x
    count = type_of(x).size
    sources, written = np.zeros(count, np.int64), np.zeros(count, bool)
    sources[places], written[places] = np.arange(places.size), True
    flat = b.reshape(b.convert(source, b.out.dtype), (places.size,))
    taken = _elements_at(b, flat, sources)
    made = b.select(b.constant(written), taken, b.reshape(x, (count,)))
    return b.reshape(made, b.out.sizes)


def _places(size: Sequence[int], stride: Sequence[int], offset: int | None) -> Array:
    """The index of each element of a strided view."""
    places = np.asarray(offset or 0)
    for extent, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(extent) * step
    return places


def _elements_at(b: Build, flat: Value, places: Array) -> Value:
    """The elements of a vector at constant indices."""
    dims = GatherDims((), (0,), (), (), (0,), places.ndim)
    return b.op(Gather(dims, (1,)), flat, b.constant(places))


LOWERINGS: dict[str, AtenLowering] = {
    "aten._unsafe_view.default": view,
    "aten.as_strided.default": as_strided,
    "aten.as_strided_scatter.default": as_strided_scatter,
    "aten.cat.default": concatenate,
    "aten.constant_pad_nd.default": constant_pad,
    "aten.copy.default": copy,
    "aten.diagonal.default": diagonal,
    "aten.expand.default": expand,
    "aten.flip.default": flip,
    "aten.permute.default": permute,
    "aten.repeat.default": repeat,
    "aten.select.int": select,
    "aten.select_backward.default": select_backward,
    "aten.select_scatter.default": select_scatter,
    "aten.slice.Tensor": slice_,
    "aten.slice_backward.default": slice_backward,
    "aten.slice_scatter.default": slice_scatter,
    "aten.split_with_sizes.default": split_with_sizes,
    "aten.squeeze.default": squeeze,
    "aten.squeeze.dim": squeeze,
    "aten.squeeze.dims": squeeze,
    "aten.squeeze_.dim": squeeze,  # in decompositions, which use its result
    "aten.unbind.int": unbind,
    "aten.unfold.default": unfold,
    "aten.unsqueeze.default": squeeze,
    "aten.view.default": view,
}
