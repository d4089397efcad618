"""A target without a compiler: runs of elementwise nodes are kernels, which are interpreted."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.module import Node, Value
from weft.ir.reading import reads
from weft.ir.types import TensorType
from weft.kernels.group import Group
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Affine, Apply, Factor, Kernel, Load, Operand, Schedule, Store
from weft.kernels.placed import Placed


class ToyCommands:
    """Kernels that are interpreted one after another on the memory at their operands' addresses."""

    def __init__(self) -> None:
        self.listed: list[tuple[Kernel, int]] = []
        self.addresses: list[int] = []
        self.made: Any = None

    def kernel(self, loaded: Kernel, operands: Sequence[int]) -> int:
        start = len(self.addresses)
        self.listed.append((loaded, start))
        self.addresses += operands
        return start

    @property
    def pointers(self) -> Any:
        if self.made is None:
            self.made = np.array(self.addresses, np.uint64)
        return self.made

    def run(self) -> None:
        for kernel, start in self.listed:
            arrays = [
                _at(int(self.pointers[start + n]), operand)
                for n, operand in enumerate(kernel.operands)
            ]
            pairs = [*zip(kernel.operands, arrays, strict=True)]
            made = interpret(kernel, [a for o, a in pairs if not o.output])
            for out, result in zip([a for o, a in pairs if o.output], made, strict=True):
                out[...] = result

    def repeat(self, work: ToyCommands, verdict: int, moves: int, limit: int) -> int:
        for count in range(limit):
            self.run()
            if not ctypes.c_uint8.from_address(verdict).value:
                return count
            work.run()
            place = moves + 8
            for _ in range(ctypes.c_int64.from_address(moves).value):
                place = _moved(place)
        return limit


def _moved(place: int) -> int:
    """Let a value that is carried change places; where what is said of the next one begins."""
    word = ctypes.c_int64
    levels, buffers, number = (word * 3).from_address(place)
    now = (word * levels).from_address(place + 24)
    rooms = (word * buffers).from_address(place + 24 + 8 * levels)
    counts = (word * (levels + 1)).from_address(place + 24 + 8 * (levels + buffers))
    place_ = place + 24 + 8 * (2 * levels + buffers + 1)
    now[:] = [rooms[number], *now[:-1]]
    following = (number + 1) % buffers
    word.from_address(place + 16).value = following
    for address, count in zip([*now, rooms[following]], counts, strict=True):
        for operand in (word * count).from_address(place_):
            word.from_address(operand).value = address
        place_ += 8 * count
    return place_


def _at(address: int, operand: Operand) -> Any:
    if not operand.nbytes:
        return np.empty(operand.shape, operand.dtype.numpy)
    assert address, "an operand has no address"
    raw = (ctypes.c_uint8 * operand.nbytes).from_address(address)
    return np.ndarray(operand.shape, operand.dtype.numpy, raw)


class ToyTarget:
    """Groups runs of elementwise nodes whose results have one shape and vary alike."""

    def __init__(self, most: int = 3) -> None:
        self.most = most  # nodes of a group

    def group(
        self, placed: Sequence[Placed], sizes: tuple[int, ...], results: Sequence[Value]
    ) -> list[Group]:
        groups: list[Group] = []
        waiting: list[Placed] = []
        for position, one in enumerate(placed):
            if waiting and (not _joins(waiting[-1], one) or len(waiting) == self.most):
                groups.append(_kernel(waiting, sizes, _wanted(placed[position:], results)))
                waiting = []
            if _is_kernel(one):
                waiting.append(one)
            else:
                groups.append(Group((one.node,), None, (), ()))
        if waiting:
            groups.append(_kernel(waiting, sizes, set(results)))
        return groups

    def load(self, kernels: Sequence[Kernel]) -> Sequence[Kernel]:
        return kernels

    def commands(self) -> ToyCommands:
        return ToyCommands()


def _is_kernel(one: Placed) -> bool:
    node = one.node
    if not node.op.elementwise or node.regions or len(node.results) != 1 or not node.operands:
        return False
    types = [v.type for v in (*node.operands, *node.results)]
    if not all(isinstance(t, TensorType) for t in types):
        return False
    shapes = {t.shape for t in types if isinstance(t, TensorType)}
    if 0 in next(iter(shapes)):
        return False
    return len(shapes) == 1 and not any(m & ~one.made[0] for m in one.given)


def _joins(before: Placed, one: Placed) -> bool:
    shapes = [getattr(p.node.results[0].type, "shape", None) for p in (before, one)]
    return _is_kernel(one) and before.made == one.made and shapes[0] == shapes[1]


def _wanted(rest: Sequence[Placed], results: Sequence[Value]) -> set[Value]:
    return {*results, *(v for p in rest for v in reads(p.node))}


def _kernel(placed: Sequence[Placed], sizes: tuple[int, ...], wanted: set[Value]) -> Group:
    type = placed[0].node.results[0].type
    assert isinstance(type, TensorType)
    lead = [s if placed[0].made[0] >> n & 1 else 1 for n, s in enumerate(sizes)]
    shape = (*lead, *type.sizes)
    full = _affine(shape, shape)
    operands: list[Operand] = []
    steps: list[Any] = []
    known: dict[Value, int] = {}
    inputs: list[Value] = []
    for one in placed:
        for value, mask in zip(one.node.operands, one.given, strict=True):
            if value not in known:
                dtype = value.type.dtype  # type: ignore[attr-defined]
                held = [s if mask >> n & 1 else 1 for n, s in enumerate(sizes)]
                operand = Operand(dtype, (*held, *type.sizes))
                operands.append(operand)
                inputs.append(value)
                known[value] = len(steps)
                steps.append(Load(len(operands) - 1, _affine(operand.shape, shape), dtype))
        known[one.node.results[0]] = len(steps)
        dtype = one.node.results[0].type.dtype  # type: ignore[union-attr]
        steps.append(Apply(one.node.op, tuple(known[v] for v in one.node.operands), dtype))
    outputs = [p.node.results[0] for p in placed if p.node.results[0] in wanted]
    for value in outputs:
        operands.append(Operand(value.type.dtype, shape, output=True))  # type: ignore[union-attr]
        steps.append(Store(len(operands) - 1, full, known[value]))
    factors = tuple(Factor(f"f{n}", size) for n, size in enumerate(shape))
    schedule = Schedule("rows", tuple(range(len(shape))))
    kernel = Kernel("toy", factors, tuple(operands), tuple(steps), schedule)
    nodes: tuple[Node, ...] = tuple(p.node for p in placed)
    return Group(nodes, kernel, tuple(inputs), tuple(outputs))


def _affine(held: tuple[int, ...], shape: tuple[int, ...]) -> Affine:
    strides = [math.prod(held[n + 1 :]) if held[n] > 1 else 0 for n in range(len(shape))]
    return Affine(tuple(strides))
