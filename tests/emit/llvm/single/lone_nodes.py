"""Nodes that are kernels by themselves, run on stacks, beside what the reference says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.single.emit import emit_single_node
from weft.evaluate import evaluate
from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import Array, DType, TensorType, type_of
from weft.kernels.single_node import SingleNode, single_node_kernel
from weft.kernels.stacked_node import StackedNode
from weft.ops.shape import Constant

Build = Callable[..., Sequence[Node]]
Compare = Callable[[Array, Array], None]


def scalar_region(build: Build, *dtypes: DType) -> Region:
    """A region of scalars; `build` gives its nodes, the last of which gives the results."""
    args = tuple(Value(TensorType((), d), None, n) for n, d in enumerate(dtypes))
    nodes = list(build(*args))
    return Region(args, nodes, nodes[-1].results)


def combiner(op: Op, dtype: DType) -> Region:
    """A region that is one op of two scalars."""
    return scalar_region(lambda a, b: [apply(op, a, b)], dtype, dtype)


def node_of(
    op: Op, *arrays: Array, regions: tuple[Region, ...] = (), known: Sequence[int] = ()
) -> Node:
    """A node on operands of the types that arrays have; some of them are known to it."""
    values = [
        constant(a).results[0] if n in known else Value(type_of(a), None, n)
        for n, a in enumerate(arrays)
    ]
    return apply(op, *values, regions=regions)


def constant(array: Array) -> Node:
    """A constant that is a scalar."""
    return apply(Constant(Dense(np.asarray(array).reshape(1), type_of(array))))


def module_of(node: Node) -> Module:
    """A module of that node only."""
    body = Region(node.operands, [node], node.results)
    return Module({"main": Function("main", body)})


def compiled(kernel: SingleNode) -> Callable[..., list[Array]]:
    """A function that runs a kernel on stacks."""
    (loaded,) = load([emit_single_node(kernel)])

    def run(*stacks: Array) -> list[Array]:
        made = [np.full(o.shape, 1, o.dtype.numpy) for o in kernel.outputs]
        given = [np.ascontiguousarray(a) for a in stacks]
        commands = CommandList()
        commands.kernel(loaded, [a.ctypes.data for a in (*given, *made)])
        commands.run()
        return made

    return run


def lone_kernel(
    node: Node, sizes: Sequence[int] = (), masks: Sequence[int] | None = None
) -> SingleNode:
    """The kernel of a node whose operands vary along these leading dims."""
    given = tuple(masks) if masks is not None else (0,) * len(node.operands)
    union = 0
    for mask in given:
        union |= mask
    kernel = single_node_kernel(StackedNode(node, given, (union,) * len(node.results)), sizes)
    assert kernel is not None, f"{node} stands not alone"
    return kernel


def stacked(array: Array, mask: int, sizes: Sequence[int]) -> Array:
    """An array for each device, rolled on differently, of size 1 along what it does not vary."""
    lead = tuple(n if mask >> d & 1 else 1 for d, n in enumerate(sizes))
    pieces = [
        np.roll(array.reshape(-1), 3 * n).reshape(array.shape)
        for n in range(np.prod(lead, dtype=int))
    ]
    return np.stack(pieces).reshape(*lead, *array.shape) if sizes else array


def same_bits(actual: Array, expected: Array) -> None:
    """Fail unless two arrays are equal bit by bit."""
    assert actual.dtype == expected.dtype
    kind = f"u{actual.dtype.itemsize}" if actual.dtype.itemsize <= 8 else "u8"
    views = [np.ascontiguousarray(a).reshape(-1).view(kind) for a in (actual, expected)]
    np.testing.assert_array_equal(*views)


def check_alone(
    op: Op,
    *arrays: Array,
    regions: tuple[Region, ...] = (),
    sizes: Sequence[int] = (),
    masks: Sequence[int] | None = None,
    known: Sequence[int] = (),
    compare: Compare = same_bits,
) -> None:
    """Run a node as a kernel and by the reference, device by device, and compare."""
    node = node_of(op, *arrays, regions=regions, known=known)
    masks = tuple(masks) if masks is not None else (0,) * len(arrays)
    kernel = lone_kernel(node, sizes, masks)
    stacks = [stacked(a, m, sizes) for a, m in zip(arrays, masks, strict=True)]
    made = compiled(kernel)(*stacks)
    module, lead = module_of(node), kernel.devices
    for place in np.ndindex(*lead):
        own = [s[tuple(np.minimum(place, np.array(s.shape[: len(lead)]) - 1))] for s in stacks]
        for found, expected in zip(made, evaluate(module, *own), strict=True):
            compare(found[place], np.asarray(expected))
