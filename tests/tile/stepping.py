"""Run groups one after another: kernels by their interpreter, nodes by reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import weft
from weft.emit.llvm.target import LLVM
from weft.evaluate import evaluate
from weft.ir.module import Module, Value
from weft.kernels.group import Group
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Kernel
from weft.kernels.stacked_node import StackedNode
from weft.tile.fusion.fuse import fuse


class Plain(LLVM):
    """A target of loops alone."""

    def unsupported_op(self, op, given, made):
        return None

    def unsupported_kernel(self, kernel):
        return None if isinstance(kernel, Kernel) else "no loops"


def groups_of(module: Module) -> list[Group]:
    """The groups of a program for one device."""
    body = module.function("main").body
    placed = [
        StackedNode(node, (0,) * len(node.operands), (0,) * len(node.results))
        for node in body.nodes
    ]
    return fuse(placed, (), body.results, Plain())


def run(module: Module, groups: Sequence[Group], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a program, computed group by group."""
    body = module.function("main").body
    held: dict[Value, np.ndarray] = dict(zip(body.args, arrays, strict=True))
    for group in groups:
        given = [held[v] for v in group.inputs]
        if isinstance(group.kernel, Kernel):
            made = interpret(group.kernel, given)
        else:
            (node,) = group.nodes
            found = node.op.reference(*given)
            made = found if isinstance(found, tuple) else (found,)
        held.update(zip(group.outputs, made, strict=True))
    return [held[v] for v in body.results]


def check(fn, *arrays: np.ndarray, rtol: float = 1e-4) -> list[Group]:
    """The groups of a JAX function, which give what the reference gives."""
    module = weft.compile(fn, *arrays).program.module
    flat = [np.asarray(a) for a in arrays]
    groups = groups_of(module)
    wanted = evaluate(module, *flat)
    for got, want in zip(run(module, groups, flat), wanted, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        wide = want.astype(np.float64)
        largest = np.abs(wide, where=np.isfinite(wide), out=np.ones_like(wide)).max(initial=1)
        np.testing.assert_allclose(got.astype(np.float64), wide, rtol=rtol, atol=rtol * largest)
    return groups
