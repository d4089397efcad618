"""In which ways nodes may be split, and the bytes that they are expected to send, in a table.

A plan that is chosen by a wrong price gives the same numbers, and sends more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.emit.llvm.single.lone_nodes import combiner, node_of
from tests.emit.llvm.test_tasks import lone_nodes
from weft.cli.commands.installation.op_examples import example, texts
from weft.ir.module import Node
from weft.ir.types import F32, Array, TensorType
from weft.mesh import Axis, Mesh
from weft.ops.elementwise.pointwise import Add
from weft.ops.shape import Reshape, Reverse
from weft.ops.slicing import Concatenate, Pad, Slice
from weft.ops.window import ReduceWindow
from weft.partition.node_strategies import free_factors, own_rules, sent_bytes
from weft.partition.piece import replicated

GOLDEN = Path(__file__).parents[2] / "golden" / "partition"
MESH = Mesh((("x", 2), ("y", 4)))
SIZES = (" 64x40", " 64x40x40", " 1000x3x5", " 1000x60", " of 5000x90", " 5000x90")
AXES = {"x": (Axis("x"),), "y": (Axis("y"),), "xy": (Axis("x"), Axis("y"))}


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def windows() -> Iterator[tuple[str, Node]]:
    """Ops that look at neighbours, on sizes that devices divide."""
    zero, add = np.float32(0), (combiner(Add(), F32),)
    for about, window, padding, strides, out in (
        ("running sum", (16, 1), (15, 0), 1, 16),
        ("running sum from the end", (16, 1), (0, 15), 1, 16),
        ("window of 3", (3, 1), (1, 1), 1, 16),
        ("window of 3 by 2", (3, 1), (0, 1), 2, 8),
        ("window of 2 by 2", (2, 1), (0, 0), 2, 8),
        ("window of 9", (9, 1), (4, 4), 1, 16),
    ):
        made = ReduceWindow(
            window,
            (TensorType((out, 8), F32),),
            window_strides=(strides, 1),
            padding=(padding, (0, 0)),
        )
        yield about, node_of(made, zeros(16, 8), zero, regions=add, known=(1,))
    yield "slice", node_of(Slice((3, 0), (11, 8), (1, 1)), zeros(16, 8))
    yield "slice by 2", node_of(Slice((0, 0), (16, 8), (2, 1)), zeros(16, 8))
    yield "pad", node_of(Pad((1, 0), (7, 0), (0, 0)), zeros(8, 8), zero)
    yield "pad inside", node_of(Pad((0, 0), (1, 0), (1, 0)), zeros(8, 8), zero)
    yield "reverse", node_of(Reverse((0,)), zeros(16, 8))
    yield "concatenate", node_of(Concatenate(0), zeros(8, 8), zeros(16, 8), zeros(8, 8))
    for sizes in ((128,), (4, 4, 8), (32, 4), (8, 16)):
        yield f"reshape to {sizes}", node_of(Reshape(TensorType(sizes, F32)), zeros(16, 8))


def lines() -> Iterator[str]:
    examples = [(name, example(name)) for name in texts()]
    alone = [(name, node) for name, node in lone_nodes() if name.endswith(SIZES)]
    for name, node in [*examples, *windows(), *alone]:
        if not isinstance(node, Node) or not all(
            isinstance(t, TensorType) and t.is_static for t in (*node.operand_types, *node.types)
        ):
            continue
        whole = tuple([replicated(t.rank) for t in node.operand_types])
        for rule in own_rules(node, whole):
            free, price = free_factors(node, rule), sent_bytes(node, rule, MESH)
            for number in sorted(free):
                factor, sent = rule.factors[number], ""
                for axes, split in AXES.items():
                    if price is not None and factor.size % (2 ** (len(axes) + ("y" in axes))) == 0:
                        by_factor = [split if n == number else () for n in range(len(rule.factors))]
                        sent += f", {price(tuple(by_factor)):g} by {axes}"
                yield f"{name}: {factor.role} {number} of {factor.size}{sent}"


def test_strategies(golden: Callable[[Path, str], None]):
    golden(GOLDEN / "strategies.txt", "\n".join(lines()) + "\n")
