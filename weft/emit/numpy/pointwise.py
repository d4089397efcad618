"""Elementwise kernels: numpy's functions, which broadcast along the leading dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.emit.numpy.ufuncs import (
    BOOLEANS,
    FLOATS,
    INTEGERS,
    INTO,
    NumpyUfunc,
    is_native,
    ufunc_of,
)
from weft.executable.items import Site
from weft.ir.op import Op
from weft.ir.types import Array, DType, TensorType
from weft.kernels.host import HostKernel, Maker
from weft.ops import OPS
from weft.ops.elementwise.broadcasting import Broadcasting
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Compare, IsFinite, Select
from weft.ops.elementwise.special import ChloConstant
from weft.ops.numerics.arithmetic import ORDERS
from weft.ops.shape import Constant


def in_single(ufunc: NumpyUfunc, dtype: DType) -> Callable[..., Array]:
    """A function of narrow floats: computed in f32, and rounded once."""
    held = dtype.numpy

    def run(*arrays: Array) -> Array:
        made: Array = ufunc(*[a.astype(np.float32) for a in arrays])
        return made.astype(held)

    return run


def aligned(run: Callable[..., Any], site: Site) -> Callable[..., Any]:
    """The function with scalar operands broadcast to the rank of the others."""
    types = [v.type for v in site.node.operands]
    ranks = [t.rank for t in types if isinstance(t, TensorType)]
    rank = max(ranks, default=0)
    if all(r == rank for r in ranks):
        return run
    tails = [(1,) * (rank - r) for r in ranks]

    def spread(*arrays: Array) -> Any:
        return run(*[a.reshape(a.shape + t) for a, t in zip(arrays, tails, strict=True)])

    return spread


def pointwise(site: Site) -> HostKernel:
    """A numpy function if there is one, else the op's reference on the whole stack."""
    op, dtype = site.op, site.operand(0).dtype
    ufunc = ufunc_of(type(op), dtype)
    if ufunc is None:
        return reference(site)
    if not is_native(dtype):
        return HostKernel(in_single(ufunc, dtype))
    return HostKernel(ufunc, INTO.get(ufunc, ufunc), in_place=(0, 1))


def reference(site: Site) -> HostKernel:
    """The op's reference, which is elementwise."""
    op = site.op

    def run(*arrays: Array) -> Array:
        return np.asarray(op.reference(*arrays))

    return HostKernel(aligned(run, site), shares=True)


def broadcasting(site: Site) -> HostKernel:
    """The op with the broadcast of its operands folded in; numpy stretches them."""
    op, lead = site.op, site.lead
    assert isinstance(op, Broadcasting)
    types = [site.operand(n) for n in range(len(site.given))]
    rank, tails = site.result().rank, []
    for given, place in zip(types, op.places([t.rank for t in types]), strict=True):
        sizes = [1] * rank
        for size, dim in zip(given.sizes, place, strict=True):
            sizes[dim] = size
        tails.append(tuple(sizes))
    applied, dtype = op.applied(), types[0].dtype
    ufunc = ufunc_of(type(applied), dtype) if is_native(dtype) else None

    def run(*arrays: Array) -> Array:
        placed = [a.reshape(a.shape[:lead] + t) for a, t in zip(arrays, tails, strict=True)]
        if ufunc is not None:
            made: Array = ufunc(*placed)
            return made
        return np.asarray(applied.reference(*np.broadcast_arrays(*placed)))

    return HostKernel(run)


def compare(site: Site) -> HostKernel:
    """A comparison, unless the order is total or numpy has none for the elements."""
    op, dtype = site.op, site.operand(0).dtype
    assert isinstance(op, Compare)
    if op.compare_type == "TOTALORDER" or dtype.is_complex or not is_native(dtype):
        return reference(site)
    ufunc = ORDERS[op.comparison_direction]
    return HostKernel(ufunc, ufunc)


def is_finite(site: Site) -> HostKernel:
    """numpy's test, for elements it supports."""
    if not is_native(site.operand(0).dtype):
        return reference(site)
    return HostKernel(np.isfinite, np.isfinite)


def select(site: Site) -> HostKernel:
    """np.where; with an output array, two masked copies."""

    def into(condition: Array, yes: Array, no: Array, out: Array) -> None:
        np.copyto(out, no)
        np.copyto(out, yes, where=condition)

    return HostKernel(aligned(np.where, site), aligned_into(into, site))


def aligned_into(into: Callable[..., None], site: Site) -> Callable[..., None]:
    """`aligned` for functions with an output array."""
    if site.operand(0).rank == site.operand(1).rank:
        return into
    tail = (1,) * site.operand(1).rank

    def spread(condition: Array, yes: Array, no: Array, out: Array) -> None:
        into(condition.reshape(condition.shape + tail), yes, no, out)

    return spread


def convert(site: Site) -> HostKernel:
    """A numpy cast, where it rounds and wraps like the reference."""
    op, source = site.op, site.operand(0).dtype
    assert isinstance(op, Convert)
    target, held = op.out.dtype, op.out.dtype.numpy
    if not _casts_alike(source, target):
        return reference(site)

    def run(array: Array) -> Array:
        return array.astype(held, copy=False)

    def into(array: Array, out: Array) -> None:
        np.copyto(out, array, casting="unsafe")

    return HostKernel(run, into, shares=source is target)


def _casts_alike(source: DType, target: DType) -> bool:
    if source is target:
        return True
    if source.is_float and target.is_float:
        return is_native(target) or source.bits <= 32  # f64 would round twice
    exact = source.kind in ("bool", "int", "uint") and is_native(source)
    return exact and target.kind in ("int", "uint", "float") and is_native(target)


def constant(site: Site) -> HostKernel:
    """The constant, once for all devices."""
    value = site.op.reference()
    made = np.asarray(value).reshape((1,) * site.lead + value.shape)
    return HostKernel(lambda: made, shares=True)


KERNELS: dict[type[Op], Maker] = {
    **{op: reference for op in OPS if op.elementwise},
    **{op: broadcasting for op in OPS if issubclass(op, Broadcasting)},
    **{op: pointwise for op in OPS if op in FLOATS or op in INTEGERS or op in BOOLEANS},
    Compare: compare,
    IsFinite: is_finite,
    Select: select,
    Convert: convert,
    Constant: constant,
    ChloConstant: constant,
}
