"""In-place updates of callers' arrays by results of a program."""

from __future__ import annotations

from collections.abc import Sequence

from weft.array.array import Array
from weft.array.host import copied
from weft.array.stacked import Stacked, split_plan
from weft.ir.types import Array as Numpy
from weft.mesh import Mesh
from weft.native.cpython import address_of


def update(targets: Sequence[Numpy], results: Sequence[Array]) -> None:
    """Write global values into arrays, piece by piece, except results that are in place already.

    A result that does not own its memory may alias another target: all such results are copied
    before the first target is written.
    """
    whole = _gathered(results)  # a tensor has the whole value, on every worker
    pairs = [_pieces(target, array) for target, array in zip(targets, whole, strict=True)]
    left = [(into, held.data if held.owned else copied(held.data))
            for into, held in pairs if not _is_same(into, held.data)]  # fmt: skip
    for into, data in left:
        into[...] = data


def _gathered(arrays: Sequence[Array]) -> Sequence[Array]:
    """The arrays, replicated where other workers hold some: all arrays of a mesh by one program."""
    apart: dict[Mesh, list[int]] = {}
    for n, array in enumerate(arrays):
        if not array.is_readable:
            apart.setdefault(array.mesh, []).append(n)
    gathered = [*arrays]
    for places in apart.values():
        members = tuple([arrays[n] for n in places])
        for n, replicated in zip(places, members[0].compute("gather", members, {}), strict=True):
            gathered[n] = replicated
    return gathered


def _pieces(target: Numpy, array: Array) -> tuple[Numpy, Stacked]:
    """The target as a stack of pieces, a view, and the pieces to be written."""
    held = array.stacked
    plan = split_plan(array.shape, array.sharding, array.mesh, held.sub_axes)
    uneven = plan is None or plan.room != array.shape or bool(array.sharding.unreduced)
    if plan is None or uneven or not held.is_on_host or not array.is_fully_addressable:
        return target, Stacked(array.numpy(), held.sub_axes)
    into = plan.split(target, held.sub_axes).data
    whole = held.data[tuple([slice(size) for size in into.shape])]
    return into, Stacked(whole, held.sub_axes, held.owned)


def _is_same(one: Numpy, other: Numpy) -> bool:
    """Whether two arrays of one shape are the same elements of one memory."""
    if address_of(one) != address_of(other):
        return False
    strides = zip(one.shape, one.strides, other.strides, strict=True)
    return all(size == 1 or left == right for size, left, right in strides)
