"""Ops with computed indices: gathers, scatters, embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.capture.torch.aten.pointwise import floor_integers
from weft.capture.torch.aten.reduce import scan
from weft.capture.torch.build import (
    AtenLowering,
    Build,
    dim_of,
    dtype_of,
    shape_of,
    type_of,
)
from weft.capture.torch.dtypes import TorchOperand, computed_in
from weft.ir.module import Region, Value
from weft.ir.rule import Combine
from weft.ir.types import BOOL, I64, TensorType
from weft.ops.combiners import combiner
from weft.ops.elementwise.pointwise import Add, Divide, Maximum, Minimum, Multiply, Subtract
from weft.ops.index import Gather, GatherDims
from weft.ops.scatter import Scatter, ScatterDims
from weft.ops.slicing import DynamicUpdateSlice

_COMBINE: dict[str, tuple[Combine, int | None]] = {
    "sum": ("add", 0),
    "add": ("add", 0),
    "mean": ("add", 0),
    "prod": ("mul", 1),
    "multiply": ("mul", 1),
    "amax": ("max", None),
    "amin": ("min", None),
}


def wrapped(b: Build, index: Value, size: int) -> Value:
    """Indices with negative ones wrapped."""
    index = b.convert(index, I64) if dtype_of(index).kind != "int" else index
    behind = b.op(Add(), index, b.like(index, size))
    return b.select(b.compare("LT", index, b.like(index, 0)), behind, index)


# Whole tensors of indices: x[i, :, j]


def index(b: Build, x: Value, indices: Sequence[Value | None]) -> Value:
    """Advanced indexing: elements at index tensors, which are broadcast together."""
    named = _named(b, indices)
    if not named:
        return x
    vectors, shared = _vectors(b, x, indices, named)
    sizes = shape_of(x)
    if not b.out.size:
        return b.splat(0, b.out)
    offsets = _offsets(named, len(sizes), len(shared))
    dims = GatherDims(offsets, tuple(named), (), (), tuple(named), len(shared))
    slices = tuple([1 if d in named else s for d, s in enumerate(sizes)])
    return b.op(Gather(dims, slices), x, vectors)


def index_put(
    b: Build,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    """The tensor with elements at index tensors replaced, or added to."""
    masks = [i for i in indices if i is not None and dtype_of(i) is BOOL]
    if masks:
        return _masked_put(b, x, indices, values, accumulate)
    named = _named(b, indices)
    vectors, shared = _vectors(b, x, indices, named)
    sizes = shape_of(x)
    offsets = _offsets(named, len(sizes), len(shared))
    rest = [size for dim, size in enumerate(sizes) if dim not in named]
    window = dict(zip(offsets, rest, strict=True))
    rows = iter(shared)
    shape = [window[d] if d in window else next(rows) for d in range(len(offsets) + len(shared))]
    updates = b.broadcast(b.convert(values, dtype_of(x)), shape)
    dims = ScatterDims(offsets, tuple(named), (), (), tuple(named), len(shared))
    region = combiner("add", type_of(x)) if accumulate else _replace(type_of(x))
    return _scatter(b, dims, x, vectors, updates, region)


def _masked_put(
    b: Build, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    """Elements where a mask is true, replaced in order by the values along one dim."""
    named = [n for n, each in enumerate(indices) if each is not None]
    mask, first = indices[named[0]], named[0]
    if len(named) > 1 or mask is None:
        raise b.refuse(
            "a boolean mask beside other indices",
            "use torch.where(mask, values, x) with values of x's shape",
        )
    sizes, masked = shape_of(x), shape_of(mask)
    last = first + len(masked)
    values = b.convert(values, dtype_of(x))
    # The masked dims are one dim of the values, which has an element for each that is true.
    behind = len(sizes) - last
    given = (*(1,) * (first + 1 + behind - len(shape_of(values))), *shape_of(values))
    count, lead, rest = given[first], given[:first], given[first + 1 :]
    if count == 1:
        values = b.reshape(values, (*lead, *(1,) * len(masked), *rest))
    else:
        flat = b.convert(b.reshape(mask, (type_of(mask).size,)), I64)
        place = b.op(Subtract(), scan(b, flat, 0, Add(), 0), b.like(flat, 1))
        place = b.op(Minimum(), b.op(Maximum(), place, b.like(place, 0)), b.like(place, count - 1))
        values = _rows(b, b.reshape(values, given), first, b.reshape(place, masked))
    values = b.broadcast(values, sizes)
    chosen = b.spread(mask, sizes, range(first, last))
    return b.select(chosen, b.op(Add(), x, values) if accumulate else values, x)


def _named(b: Build, indices: Sequence[Value | None]) -> list[int]:
    """The indexed dims."""
    for each in indices:
        if each is not None and dtype_of(each) is BOOL:
            raise b.refuse(
                "a boolean mask gives a tensor whose size depends on data",
                "use torch.where(mask, x, other), which keeps the shape",
            )
    return [n for n, each in enumerate(indices) if each is not None]


def _vectors(
    b: Build, x: Value, indices: Sequence[Value | None], named: Sequence[int]
) -> tuple[Value, tuple[int, ...]]:
    """Index tensors broadcast to one shape and stacked along a last dim."""
    sizes = shape_of(x)
    found = [each for each in indices if each is not None]
    shared = np.broadcast_shapes(*map(shape_of, found))
    rows = []
    for dim, each in zip(named, found, strict=True):
        made = b.broadcast(b.convert(wrapped(b, each, sizes[dim]), I64), shared)
        rows.append(b.reshape(made, (*shared, 1)))
    return b.join(rows, len(shared)), shared


def _offsets(named: Sequence[int], rank: int, shared: int) -> tuple[int, ...]:
    """The positions of the dims without indices in the result.

    The dims of the index tensors replace the indexed dims if these are adjacent, else come first.
    """
    together = list(named) == list(range(named[0], named[0] + len(named)))
    front = named[0] if together else 0
    rest = rank - len(named)
    return (*range(front), *range(front + shared, shared + rest))


# One dim


def index_select(b: Build, x: Value, dim: int, index: Value) -> Value:
    """Slices of a dim at indices."""
    sizes = shape_of(x)
    if not sizes:
        return b.reshape(x, b.out.sizes)
    dim = dim_of(dim, len(sizes))
    flat = b.reshape(index, (type_of(index).size,))
    return _rows(b, x, dim, flat)


def _rows(b: Build, x: Value, dim: int, index: Value) -> Value:
    """Slices of a dim at indices, whose dims replace it."""
    sizes, count = shape_of(x), len(shape_of(index))
    if not type_of(x).size or not type_of(index).size:
        shape = (*sizes[:dim], *shape_of(index), *sizes[dim + 1 :])
        return b.splat(0, TensorType(shape, dtype_of(x)))
    index = wrapped(b, index, sizes[dim])
    offsets = (*range(dim), *range(dim + count, len(sizes) + count - 1))
    dims = GatherDims(offsets, (dim,), (), (), (dim,), count)
    return b.op(Gather(dims, (*sizes[:dim], 1, *sizes[dim + 1 :])), x, index)


def embedding(
    b: Build,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """Rows of a table."""
    return _rows(b, weight, 0, indices)


def embedding_backward(
    b: Build,
    gradient: Value,
    indices: Value,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    """Gradients summed by row; that of the padding row is zero."""
    width = b.out.sizes[-1]
    flat = b.reshape(indices, (type_of(indices).size,))
    rows = b.convert(b.reshape(gradient, (type_of(indices).size, width)), computed_in(b.out.dtype))
    # PyTorch has made a negative index one from the end by now; -1 stands for none.
    if padding_idx >= 0:
        padded = b.compare("EQ", flat, b.like(flat, padding_idx))
        rows = b.select(b.spread(padded, shape_of(rows), (0,)), b.like(rows, 0), rows)
    zeros = b.splat(0, b.out.with_dtype(dtype_of(rows)))
    made = _summed_rows(b, zeros, flat, rows)
    if scale_grad_by_freq:
        counts = _summed_rows(b, zeros, flat, b.like(rows, 1))
        made = b.op(Divide(), made, b.op(Maximum(), counts, b.like(counts, 1)))
    return b.convert(made, b.out.dtype)


def _summed_rows(b: Build, zeros: Value, places: Value, rows: Value) -> Value:
    """Rows added up by their places in a table."""
    dims = ScatterDims((1,), (0,), (), (), (0,), 1)
    return _scatter(b, dims, zeros, places, rows, combiner("add", type_of(zeros)))


# Along a dim: out[i][j] = x[index[i][j]][j]


def gather(b: Build, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """Elements along a dim at elementwise indices."""
    if not shape_of(x):
        return b.broadcast(x, b.out.sizes)
    if not shape_of(index):
        return b.reshape(gather(b, x, dim, b.reshape(index, (1,))), ())
    if not b.out.size:
        return b.splat(0, b.out)
    dim = dim_of(dim, len(shape_of(x)))
    cut = [s if d == dim else t for d, (s, t) in enumerate(_paired(x, index))]
    # Dims other than `dim` may be longer than those of the index: the rest of them is not read.
    x = b.crop(x, cut)
    rank = len(cut)
    others = tuple([d for d in range(rank) if d != dim])
    index = wrapped(b, index, cut[dim])
    dims = GatherDims((), (dim,), others, others, (dim,), rank)
    return b.op(Gather(dims, (1,) * rank), x, index)


def _paired(x: Value, index: Value) -> list[tuple[int, int]]:
    return list(zip(shape_of(x), shape_of(index), strict=True))


def scatter(b: Build, x: Value, dim: int, index: Value, source: TorchOperand) -> Value:
    """Elements along a dim replaced at elementwise indices."""
    return _along(b, x, dim, index, source, _replace(type_of(x)))


def scatter_add(b: Build, x: Value, dim: int, index: Value, source: Value) -> Value:
    """Elements along a dim added to at elementwise indices."""
    return _along(b, x, dim, index, source, combiner("add", type_of(x)))


def scatter_with(
    b: Build, x: Value, dim: int, index: Value, source: TorchOperand, *, reduce: str
) -> Value:
    """Elements along a dim combined at elementwise indices by a sum or product."""
    return _along(b, x, dim, index, source, combiner(_COMBINE[reduce][0], type_of(x)))


def scatter_reduce(
    b: Build,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """Elements reduced into those of the tensor, or replacing them if not `include_self`."""
    x_type = type_of(x)
    combine, neutral = _COMBINE[reduce]
    limit = x_type.dtype.limits[0 if reduce == "amax" else 1]
    start = limit if neutral is None else neutral
    region = combiner(combine, x_type)
    counts = None
    if reduce == "mean" or not include_self:
        ones = b.splat(1, TensorType(shape_of(index), I64))
        zeros = b.splat(0, x_type.with_dtype(I64))
        # In i64: counts in a narrow float would stop growing at its mantissa's width.
        counts = _along(b, zeros, dim, index, ones, combiner("add", type_of(zeros)))
    base = x
    if not include_self:
        assert counts is not None, "they were counted"
        touched = b.compare("NE", counts, b.like(counts, 0))
        # Elements that nothing is scattered to keep their value.
        base = b.select(touched, b.like(x, start), x)
    result = _along(b, base, dim, index, source, region)
    if reduce != "mean":
        return result
    assert counts is not None, "they were counted"
    if include_self:
        counts = b.op(Add(), counts, b.like(counts, 1))
    least = b.select(b.compare("EQ", counts, b.like(counts, 0)), b.like(counts, 1), counts)
    return _mean(b, result, b.convert(least, x_type.dtype))


def _mean(b: Build, x: Value, count: Value) -> Value:
    # PyTorch rounds means of integers down.
    return b.op(Divide(), x, count) if dtype_of(x).is_float else floor_integers(b, x, count)


def _along(
    b: Build, x: Value, dim: int, index: Value, source: TorchOperand, region: Region
) -> Value:
    """A scatter along one dim; other dims of the indices may be shorter than the tensor's."""
    sizes = shape_of(x)
    if not isinstance(source, Value):
        source = b.splat(source, TensorType(shape_of(index), dtype_of(x)))
    index, source = _with_dims(b, index), _with_dims(b, source)
    if not sizes:
        return b.reshape(_along(b, _with_dims(b, x), 0, index, source, region), ())
    if not type_of(index).size:
        return x
    dim, rank = dim_of(dim, len(sizes)), len(sizes)
    cut = [s if d == dim else t for d, (s, t) in enumerate(_paired(x, index))]
    others = tuple([d for d in range(rank) if d != dim])
    updates = b.convert(b.crop(source, shape_of(index)), dtype_of(x))
    dims = ScatterDims((), (dim,), others, others, (dim,), rank)
    result = _scatter(b, dims, b.crop(x, cut), wrapped(b, index, cut[dim]), updates, region)
    if tuple(cut) == sizes:
        return result
    starts = [b.constant(np.asarray(0))] * rank
    return b.op(DynamicUpdateSlice(), x, result, *starts)


def _with_dims(b: Build, x: Value) -> Value:
    """A rank-0 tensor as one of rank 1."""
    return x if shape_of(x) else b.reshape(x, (1,))


def index_add(
    b: Build, x: Value, dim: int, index: Value, source: Value, *, alpha: float = 1
) -> Value:
    """Slices added to those of a dim."""
    if alpha != 1:
        source = b.op(Multiply(), source, b.like(source, alpha))
    return _into_rows(b, x, dim, index, source, combiner("add", type_of(x)))


def index_copy(b: Build, x: Value, dim: int, index: Value, source: Value) -> Value:
    """Slices of a dim replaced."""
    return _into_rows(b, x, dim, index, source, _replace(type_of(x)))


def _into_rows(b: Build, x: Value, dim: int, index: Value, source: Value, region: Region) -> Value:
    sizes = shape_of(x)
    if not sizes:
        flat = b.reshape(source, (type_of(source).size,))
        return b.reshape(_into_rows(b, _with_dims(b, x), 0, index, flat, region), ())
    dim = dim_of(dim, len(sizes))
    flat = b.reshape(index, (type_of(index).size,))
    if not type_of(source).size:
        return x
    source = b.reshape(source, (*sizes[:dim], shape_of(flat)[0], *sizes[dim + 1 :]))
    window = tuple([d for d in range(len(sizes)) if d != dim])
    dims = ScatterDims(window, (dim,), (), (), (dim,), 1)
    return _scatter(b, dims, x, wrapped(b, flat, sizes[dim]), source, region)


def _scatter(
    b: Build, dims: ScatterDims, x: Value, index: Value, updates: Value, region: Region
) -> Value:
    given = type_of(x)
    if not given.size or not type_of(updates).size:
        return x
    return b.op(Scatter(dims, (given,)), x, index, updates, regions=(region,))


def _replace(type: TensorType) -> Region:
    """The scatter region that replaces the element."""
    scalar = type.with_shape(())
    args = (Value(scalar, None, 0), Value(scalar, None, 1))
    return Region(args, [], (args[1],))


LOWERINGS: dict[str, AtenLowering] = {
    "aten._unsafe_index.Tensor": index,
    "aten._unsafe_index_put.default": index_put,
    "aten.embedding.default": embedding,
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten.gather.default": gather,
    "aten.index.Tensor": index,
    "aten.index_add.default": index_add,
    "aten.index_copy.default": index_copy,
    "aten.index_put.default": index_put,
    "aten.index_select.default": index_select,
    "aten.scatter.reduce": scatter_with,
    "aten.scatter.src": scatter,
    "aten.scatter.value": scatter,
    "aten.scatter.value_reduce": scatter_with,
    "aten.scatter_add.default": scatter_add,
    "aten.scatter_reduce.two": scatter_reduce,
}
