"""Reductions on stacks: by numpy, else by the reference on all devices at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.emit.numpy.one_by_one import one_by_one, plain_region
from weft.emit.numpy.stack_reduction import NAMED
from weft.emit.numpy.ufuncs import is_native, ufunc_of
from weft.executable.items import Site
from weft.ir.module import Value, is_elementwise
from weft.ir.op import Op
from weft.ir.types import Array, DType, TensorType
from weft.ir.uses import free_variables
from weft.kernels.host import HostKernel, Maker, single_result_convention
from weft.ops.reduce import Reduce, fold
from weft.ops.shape import Constant
from weft.ops.sort import Sort, TopK
from weft.ops.window import ReduceWindow, SelectAndScatter


def reduce(site: Site) -> HostKernel:
    """One numpy reduction for each operand, if each region is a plain op."""
    op = site.op
    assert isinstance(op, Reduce)
    count = len(site.node.results)
    names = site.node.regions[0].body.combiners
    sizes = site.operand(0).sizes
    # numpy has no maximum of nothing.
    if any(sizes[d] == 0 for d in op.dimensions) or len(site.node.regions[0].nodes) != count:
        return by_reference(site)
    runs: list[Callable[[Array, Array], Array]] = []
    for n, name in enumerate(names):
        ufunc = ufunc_of(NAMED.get(name or "", Op), site.result(n).dtype)
        if ufunc is None or site.operand(n).dtype is not site.result(n).dtype:
            return by_reference(site)
        runs.append(_folded(site, n, ufunc, op.dimensions))
    if count == 1:
        return HostKernel(runs[0], _written(site, op.dimensions))

    def run(*arrays: Array) -> tuple[Array, ...]:
        pairs = zip(runs, arrays[:count], arrays[count:], strict=True)
        # Each is reduced by itself, but all have the union of the masks.
        return tuple(spread(tuple([one(a, init) for one, a, init in pairs]), site.lead))

    return HostKernel(run)


def _folded(
    site: Site, index: int, ufunc: Any, dims: tuple[int, ...]
) -> Callable[[Array, Array], Array]:
    dtype, tail = site.result(index).dtype, (1,) * site.result(index).rank
    axes = tuple(site.lead + d for d in dims)
    init_value = site.node.operands[len(site.node.results) + index]
    if not is_native(dtype):
        return _narrow(ufunc, dtype, axes, tail)
    if is_identity(init_value, ufunc, dtype):
        return lambda x, init: ufunc.reduce(x, axis=axes, dtype=x.dtype)

    def run(x: Array, init: Array) -> Array:
        folded = ufunc.reduce(x, axis=axes, dtype=x.dtype)
        made: Array = ufunc(init.reshape(init.shape + tail), folded)
        return made

    return run


def _written(site: Site, dims: tuple[int, ...]) -> Callable[..., object] | None:
    """The same reduction with an output array, if it needs no initial value."""
    dtype = site.result().dtype
    ufunc = ufunc_of(NAMED.get(site.node.regions[0].body.combiners[0] or "", Op), dtype)
    known = is_native(dtype) and is_identity(site.node.operands[1], ufunc, dtype)
    if ufunc is None or not known:
        return None
    fold, axes = ufunc.reduce, tuple(site.lead + d for d in dims)
    return lambda x, init, out: fold(x, axes, x.dtype, out)


def _narrow(
    ufunc: Any, dtype: DType, axes: tuple[int, ...], tail: tuple[int, ...]
) -> Callable[[Array, Array], Array]:
    """A reduction of narrow floats, in f32."""

    def run(x: Array, init: Array) -> Array:
        folded = ufunc.reduce(x.astype(np.float32), axis=axes)
        made = ufunc(init.reshape(init.shape + tail).astype(np.float32), folded)
        return np.asarray(made.astype(dtype.numpy))

    return run


def is_identity(value: Value, ufunc: Any, dtype: DType) -> bool:
    """Whether this initial value is the identity element of the reduction."""
    node = value.node
    if node is None or not isinstance(node.op, Constant) or not node.op.value.is_splat:
        return False
    start = node.op.value.array.reshape(-1)[0]
    if ufunc in (np.add, np.logical_or, np.bitwise_or, np.bitwise_xor):
        return bool(start == 0)
    if ufunc in (np.multiply, np.logical_and):
        return bool(start == 1)
    if ufunc in (np.maximum, np.minimum):
        return bool(start == dtype.limits[ufunc is np.minimum])
    return False


def by_reference(site: Site) -> HostKernel:
    """The reference's reduction on whole stacks, if the region is elementwise."""
    op, lead, count = site.op, site.lead, len(site.node.results)
    assert isinstance(op, Reduce)
    if free_variables(site.node) or not is_elementwise(site.node.regions[0]):
        return one_by_one(site)
    body = plain_region(site)
    types = [site.result(n) for n in range(count)]
    kept_dims = [d for d in range(site.operand(0).rank) if d not in op.dimensions]
    order = (*range(lead), *(lead + d for d in (*kept_dims, *op.folded)))
    tail = (1,) * len(kept_dims)

    def run(*arrays: Array) -> tuple[Array, ...]:
        head = np.broadcast_shapes(*[a.shape[:lead] for a in arrays])
        operands = [
            a.astype(t.dtype.numpy, copy=False) for a, t in zip(arrays, types * 2, strict=True)
        ]
        inits = tuple(
            [np.broadcast_to(i.reshape(i.shape + tail), head + tail) for i in operands[count:]]
        )
        if 0 in operands[0].shape:
            shapes = [head + t.sizes for t in types]
            return tuple([np.broadcast_to(i, s).copy() for i, s in zip(inits, shapes, strict=True)])
        rows = [
            x.transpose(order).reshape(*x.shape[:lead], *_rows(x, lead, kept_dims), -1)
            for x in operands[:count]
        ]
        spread = tuple([np.broadcast_to(r, head + r.shape[lead:]) for r in rows])
        return fold(body, inits, spread)

    return HostKernel(single_result_convention(run, count))


def _rows(x: Array, lead: int, kept_dims: list[int]) -> list[int]:
    return [x.shape[lead + d] for d in kept_dims]


# Whole stacks as one operand: the op with more dims


def spread(arrays: tuple[Array, ...], lead: int) -> list[Array]:
    """Arrays broadcast along all leading dims of any of them."""
    head = np.broadcast_shapes(*[a.shape[:lead] for a in arrays])
    return [np.broadcast_to(a, head + a.shape[lead:]) for a in arrays]


def sort(site: Site) -> HostKernel:
    """The reference sorts all rows at once."""
    op, lead = site.op, site.lead
    assert isinstance(op, Sort)
    if free_variables(site.node) or not is_elementwise(site.node.regions[0]):
        return one_by_one(site)
    body, rank = plain_region(site), site.operand(0).rank
    stacked = Sort(lead + op.dimension % rank, op.is_stable)

    def run(*arrays: Array) -> tuple[Array, ...]:
        return stacked.reference(*spread(arrays, lead), regions=(body,))

    return HostKernel(single_result_convention(run, len(site.node.results)))


def top_k(site: Site) -> HostKernel:
    """The reference acts on the last dim only."""
    return HostKernel(site.op.reference)


def reduce_window(site: Site) -> HostKernel:
    """The reference with windows of size 1 over the leading dims."""
    op, lead, count = site.op, site.lead, len(site.node.results)
    assert isinstance(op, ReduceWindow)
    inits = site.given[count:]
    if free_variables(site.node) or not is_elementwise(site.node.regions[0]) or any(inits):
        return one_by_one(site)
    body, window = plain_region(site), op.window
    ones = (1,) * lead

    def run(*arrays: Array) -> tuple[Array, ...]:
        operands = spread(arrays[:count], lead)
        head = operands[0].shape[:lead]
        outs = tuple([site.result(n).with_shape(head + site.result(n).sizes) for n in range(count)])
        stacked = ReduceWindow(
            ones + window.sizes,
            outs,
            ones + window.strides,
            ones + window.base_dilations,
            ones + window.window_dilations,
            ((0, 0),) * lead + window.padding,
        )
        starts = [a.reshape(()) for a in arrays[count:]]
        return stacked.reference(*operands, *starts, regions=(body,))

    return HostKernel(single_result_convention(run, count))


def select_and_scatter(site: Site) -> HostKernel:
    """The reference with windows of size 1 over the leading dims."""
    op, lead = site.op, site.lead
    assert isinstance(op, SelectAndScatter)
    plain = all(is_elementwise(r) for r in site.node.regions)
    if free_variables(site.node) or not plain or site.mask(2):
        return one_by_one(site)
    bodies, window = (plain_region(site, 0), plain_region(site, 1)), op.window
    ones = (1,) * lead

    def run(operand: Array, source: Array, init: Array) -> Array:
        first, second = spread((operand, source), lead)
        out: TensorType = op.out.with_shape(first.shape)
        padding = ((0, 0),) * lead + window.padding
        stacked = SelectAndScatter(ones + window.sizes, out, ones + window.strides, padding)
        made: Array = stacked.reference(first, second, init.reshape(()), regions=bodies)
        return made

    return HostKernel(run)


KERNELS: dict[type[Op], Maker] = {
    Reduce: reduce,
    Sort: sort,
    TopK: top_k,
    ReduceWindow: reduce_window,
    SelectAndScatter: select_and_scatter,
}
