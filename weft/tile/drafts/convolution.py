"""Convolution as a contraction: output positions by (window, input features), by output features.

Padding is a failed guard of a load. Groups are a factor of both sides. With base dilation L (the
backward pass of a strided convolution), every L-th element of the window meets an element of the
input: the output is split into L phases, each with its own part of the window. Strides together
with base dilation are not supported here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace

from weft.ir.types import F32, DType, TensorType, tensor
from weft.kernels.kernel import (
    Affine,
    Apply,
    Contract,
    Factor,
    Guard,
    Kernel,
    Load,
    Operand,
    Reduce,
    Step,
    Store,
    held_in,
)
from weft.kernels.stacked_node import StackedNode
from weft.ops.contract import allows_tf32
from weft.ops.convolution import Convolution
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Multiply
from weft.ops.window import WindowDims
from weft.records import dataclass
from weft.target import Target

FactorTerms = dict[int, int]  # an affine index: coefficients by factor; that of -1 is the offset


@dataclass
class _Loops:
    """The factors of the kernel, as they are added."""

    factors: list[Factor] = field(default_factory=list)

    def add(self, name: str, size: int, *, summed: bool = False, device: bool = False) -> int:
        """Add a factor; returns its number."""
        self.factors.append(Factor(name, size, "reduction" if summed else "parallel", device))
        return len(self.factors) - 1

    def affine(self, terms: FactorTerms) -> Affine:
        """The affine index, with a stride for every factor."""
        strides = tuple([terms.get(n, 0) for n in range(len(self.factors))])
        return Affine(strides, terms.get(-1, 0))


@dataclass(frozen=True, slots=True)
class _Spatial:
    """One spatial dim: its index in the input, the kernel and the output, and its guards."""

    input: FactorTerms
    kernel: FactorTerms
    output: FactorTerms
    limits: tuple[int, int, int]  # sizes; an index outside of one is guarded


def convolution_kernel(stacked: StackedNode, sizes: Sequence[int], target: Target) -> Kernel | None:
    """The kernel of a convolution on stacks, or None if its loops are not affine."""
    node = stacked.node
    op, types = node.op, (*node.operand_types, *node.types)
    assert isinstance(op, Convolution)
    if not all(isinstance(t, TensorType) and t.is_static and t.size for t in types):
        return None
    lhs, rhs, out = (t for t in types if isinstance(t, TensorType))
    window = op.window(rhs)
    steps = zip(window.strides, window.base_dilations, window.window_dilations, strict=True)
    if any(base > 1 and (stride > 1 or spread > 1) for stride, base, spread in steps):
        return None
    if lhs.dtype.is_complex or lhs.dtype.kind == "bool" or lhs.dtype is not rhs.dtype:
        return None
    made = _Maker(stacked, sizes, op, (lhs, rhs, out), window).kernel()
    return replace(made, schedule=target.schedule(made))


class _Maker:
    """Builds one kernel."""

    def __init__(
        self,
        stacked: StackedNode,
        sizes: Sequence[int],
        op: Convolution,
        types: tuple[TensorType, TensorType, TensorType],
        window: WindowDims,
    ) -> None:
        self.op, self.types, self.window = op, types, window
        masks = (*stacked.given, *stacked.made)
        heads = [[n if m >> d & 1 else 1 for d, n in enumerate(sizes)] for m in masks]
        self.lead = len(sizes)
        self.operands = tuple(
            [
                Operand(t.dtype, (*head, *t.sizes), output=n == 2)
                for n, (t, head) in enumerate(zip(types, heads, strict=True))
            ]
        )
        self.loops = _Loops()
        # per operand, the index along each of its dims, leading ones first
        self.at: list[list[FactorTerms]] = [[{} for _ in o.shape] for o in self.operands]
        self.guards: list[list[tuple[FactorTerms, int]]] = [[], [], []]

    def kernel(self) -> Kernel:
        """The whole kernel."""
        self._devices()
        self._features()
        dims = self.op.dimension_numbers
        for n, (a, b, c) in enumerate(
            zip(dims.input[2:], dims.kernel[2:], dims.output[2:], strict=True)
        ):
            spatial = self._spatial(n, a, b, c)
            indices = (spatial.input, spatial.kernel, spatial.output)
            for operand, (dim, index) in enumerate(zip((a, b, c), indices, strict=True)):
                self.at[operand][self.lead + dim] = index
                self._guard(operand, index, spatial.limits[operand])
        return self._finished()

    def _devices(self) -> None:
        """A factor for each leading dim that the output varies along."""
        for dim, size in enumerate(self.operands[2].shape[: self.lead]):
            if size > 1:
                number = self.loops.add(f"d{dim}", size, device=True)
                for operand, at in zip(self.operands, self.at, strict=True):
                    if operand.shape[dim] > 1:
                        at[dim] = {number: 1}

    def _features(self) -> None:
        """The factors of groups, batch, and features of both sides."""
        op, lead, (_, rhs, out) = self.op, self.lead, self.types
        dims = op.dimension_numbers
        groups = op.feature_group_count * op.batch_group_count
        batch = out.sizes[dims.output_batch_dimension]
        depth = rhs.sizes[dims.kernel_input_feature_dimension]
        features = rhs.sizes[dims.kernel_output_feature_dimension] // groups
        group = self.loops.add("g", groups)
        b = self.loops.add("b", batch)
        o = self.loops.add("o", features)
        i = self.loops.add("i", depth, summed=True)
        left, right, result = self.at
        left[lead + dims.input_batch_dimension] = {b: 1}
        left[lead + dims.input_feature_dimension] = {i: 1}
        # A group is a run of the batch or of the features: its number is their major part.
        if op.batch_group_count > 1:
            left[lead + dims.input_batch_dimension] = {b: 1, group: batch}
        elif groups > 1:
            left[lead + dims.input_feature_dimension] = {i: 1, group: depth}
        right[lead + dims.kernel_input_feature_dimension] = {i: 1}
        right[lead + dims.kernel_output_feature_dimension] = {o: 1, group: features}
        result[lead + dims.output_batch_dimension] = {b: 1}
        result[lead + dims.output_feature_dimension] = {o: 1, group: features}

    def _spatial(self, n: int, a: int, b: int, c: int) -> _Spatial:
        """The factors of one spatial dim, and its indices."""
        window = self.window
        sizes = (self.types[0].sizes[a], self.types[1].sizes[b], self.types[2].sizes[c])
        base, low, length = window.base_dilations[n], window.padding[n][0], sizes[1]
        if base == 1:
            x = self.loops.add(f"x{n}", sizes[2])
            w = self.loops.add(f"w{n}", length, summed=True)
            index = {x: window.strides[n], w: window.window_dilations[n], -1: -low}
            return _Spatial(index, self._turned(n, {w: 1}, length), {x: 1}, sizes)
        # Position base * y + low - phase covers, with element base * v + phase, the input's y + v.
        # The range of y that meets every position; positions beyond the output fail a guard.
        first = -(low // base)
        last = (sizes[2] - 1 + base - 1 - low) // base
        y = self.loops.add(f"y{n}", last - first + 1)
        phase = self.loops.add(f"p{n}", base)
        v = self.loops.add(f"v{n}", -(-length // base), summed=True)
        inside = {v: base, phase: 1}
        out = {y: base, phase: -1, -1: first * base + low}
        self._guard(1, inside, length)
        return _Spatial({y: 1, v: 1, -1: first}, self._turned(n, inside, length), out, sizes)

    def _turned(self, n: int, index: FactorTerms, length: int) -> FactorTerms:
        """The index into the kernel, which may be reversed."""
        if not (self.op.window_reversal or (False,) * (n + 1))[n]:
            return index
        return {**{f: -c for f, c in index.items()}, -1: length - 1}

    def _guard(self, operand: int, index: FactorTerms, size: int) -> None:
        """Add a guard that an index lies in 0..size, where it might not."""
        low = high = index.get(-1, 0)
        for factor, by in index.items():
            if factor >= 0:
                reach = by * (self.loops.factors[factor].size - 1)
                low, high = low + min(reach, 0), high + max(reach, 0)
        if low < 0 or high >= size:
            self.guards[operand].append((index, size))

    def _place(self, operand: int) -> FactorTerms:
        """The row-major index."""
        total: FactorTerms = {}
        for index, size in zip(self.at[operand], self.operands[operand].shape, strict=True):
            total = {f: c * size for f, c in total.items()}
            for factor, by in index.items():
                total[factor] = total.get(factor, 0) + by
        return total

    def _finished(self) -> Kernel:
        affine = self.loops.affine
        guards = [
            tuple([Guard(affine(index), 0, size) for index, size in found]) for found in self.guards
        ]
        places = [affine(self._place(n)) for n in range(3)]
        lhs, rhs, out = self.types
        summed = tuple([n for n, f in enumerate(self.loops.factors) if f.role == "reduction"])
        loads = Load(0, places[0], lhs.dtype, guards[0]), Load(1, places[1], rhs.dtype, guards[1])
        steps: tuple[Step, ...]
        if self._is_thin():
            steps = _summed_products(loads, summed, out.dtype)
        else:
            tf32 = out.dtype is F32 and allows_tf32(self.op)
            steps = (*loads, Contract(0, 1, summed, out.dtype, held_in(out.dtype), tf32))
        steps = (*steps, Store(2, places[2], len(steps) - 1, guards[2]))
        shape = "x".join(str(n) for n in (*rhs.sizes, math.prod(out.sizes)))
        name = f"convolution_{shape}"
        return Kernel(name, tuple(self.loops.factors), self.operands, steps)

    def _is_thin(self) -> bool:
        """Whether groups are so small that a contraction has no reuse."""
        rhs, dims = self.types[1], self.op.dimension_numbers
        groups = self.op.feature_group_count * self.op.batch_group_count
        depth = rhs.sizes[dims.kernel_input_feature_dimension]
        # Depthwise: an element is loaded for each multiply-add, and packing would only add a copy.
        made = rhs.sizes[dims.kernel_output_feature_dimension] // groups
        return groups > 1 and (depth == 1 or made == 1) and rhs.dtype is self.types[2].dtype


def _summed_products(
    loads: tuple[Load, Load], summed: tuple[int, ...], dtype: DType
) -> tuple[Step, ...]:
    """The sum of products of two loads, in a wide enough accumulator."""
    held = held_in(dtype)
    if held is dtype:
        product: tuple[Step, ...] = (*loads, Apply(Multiply(), (0, 1), dtype))
        return (*product, Reduce("add", 2, None, summed, dtype))
    wide = [Apply(Convert(tensor(dtype=held)), (n,), held) for n in (0, 1)]
    total = Reduce("add", 4, None, summed, held)
    made = Apply(Convert(tensor(dtype=dtype)), (5,), dtype)
    return (*loads, *wide, Apply(Multiply(), (2, 3), held), total, made)
