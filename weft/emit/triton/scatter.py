"""Scatters and dynamic_update_slice as Triton kernels: one point for each element of the updates.

The result starts as a copy of the operand, unless it is in the operand's memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.emit.triton import dtypes
from weft.emit.triton.emitted import EmittedParts, GridLaunch, LibraryCall
from weft.emit.triton.library.nodes import copied
from weft.emit.triton.library.regions import update_of
from weft.ir.types import F32
from weft.kernels.kernel import Operand
from weft.kernels.single_node import SingleNode
from weft.ops.scatter import Scatter
from weft.ops.slicing import DynamicUpdateSlice

POINTS = 512  # elements of a program
_ADDED = {"f32", "f64", "i32", "i64"}  # types with atomic sums
_HALF = {"bf16", "f16"}  # added up in f32, and rounded once


def scatter_parts(kernel: SingleNode) -> EmittedParts | None:
    """The copy and the launch of a node, or None if it is the library's."""
    if not isinstance(kernel.op, Scatter | DynamicUpdateSlice) or len(kernel.outputs) != 1:
        return None
    if dtypes.refuses(*[o.dtype for o in kernel.operands]) is not None:
        return None
    how = update_of(kernel.regions[0]) if isinstance(kernel.op, Scatter) else "replace"
    dtype = kernel.operands[0].dtype
    if how != "replace" and not (how == "add" and dtype.name in _ADDED | _HALF):
        return None
    if any(o.size == 0 or o.size >= 1 << 31 for o in kernel.operands):
        return None
    out = len(kernel.operands) - 1
    is_half = how == "add" and dtype.name in _HALF
    copy = _copied(kernel, "a copy of its operand", 0, out + 1 if is_half else out)
    updates = _Updates(kernel, how == "add", is_half).launch()
    if not is_half:
        return EmittedParts((copy, updates))
    wide = Operand(F32, kernel.operands[out].shape, True)
    return EmittedParts(
        (copy, updates, _copied(kernel, "its sums, rounded", out + 1, out)), (wide,)
    )


def _copied(kernel: SingleNode, what: str, source: int, target: int) -> LibraryCall:
    """A copy of a buffer to another, in its type."""
    return LibraryCall(f"{kernel.name}_copy", f"# {kernel.name}: {what}\n", (source, target), _copy)


def _copy(operand: Any, out: Any) -> None:
    copied(operand if operand.numel() == out.numel() else operand.expand_as(out), out)


class _Updates:
    """The launch that writes or adds the updates."""

    def __init__(self, kernel: SingleNode, adds: bool, is_half: bool = False) -> None:
        self.kernel, self.adds, self.is_half = kernel, adds, is_half
        self.lead, self.out = kernel.lead, kernel.operands[-1]
        is_scatter = isinstance(kernel.op, Scatter)
        self.updates = kernel.operands[2 if is_scatter else 1]
        self.number = 2 if is_scatter else 1
        self.sizes = self.updates.shape[self.lead :]
        self.lines: list[str] = []
        self.tests: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    def launch(self) -> GridLaunch:
        """The launch."""
        kernel, names = self.kernel, [f"in{n}" for n in range(len(self.kernel.operands))]
        every = (*self.out.shape[: self.lead], *self.sizes)
        count = math.prod(every)
        self.line(f"x = tl.program_id(0) * {POINTS} + tl.arange(0, {POINTS})")
        self.line(f"inside = x < {count}")
        self.line("rest = x")
        dims = [f"l{n}" for n in range(self.lead)] + [f"u{n}" for n in range(len(self.sizes))]
        for name, size in reversed([*zip(dims, every, strict=True)]):
            self.line(f"{name} = rest % {size}")
            self.line(f"rest = rest // {size}")
        own = [f"u{n}" for n in range(len(self.sizes))]
        wide = ".to(tl.float32)" if self.is_half else ""
        self.line(f"v = tl.load({self._at(self.number, own)}, mask=inside, other=0){wide}")
        places = self._scattered() if isinstance(kernel.op, Scatter) else self._sliced()
        where = self._at(len(names) - 1, places)
        mask = " & ".join(["inside", *self.tests])
        how = "atomic_add" if self.adds else "store"
        self.line(f"tl.{how}({where}, v, mask={mask})")
        text = "\n".join([f"@triton.jit\ndef {kernel.name}({', '.join(names)}):", *self.lines])
        types = [o.dtype for o in kernel.operands]
        numbers = [*range(len(names))]
        if self.is_half:  # the last operand is the wide sum
            types[-1], numbers[-1] = F32, len(names)
        signature = tuple([dtypes.pointer(dtype) for dtype in types])
        grid = (-(-count // POINTS), 1, 1)
        return GridLaunch(kernel.name, text + "\n", signature, tuple(numbers), grid)

    def _at(self, number: int, own: Sequence[str]) -> str:
        """A pointer expression of an operand: device dims, then its own."""
        operand: Operand = self.kernel.operands[number]
        names, terms, stride = [*[f"l{n}" for n in range(self.lead)], *own], [f"in{number}"], 1
        for name, size in reversed([*zip(names, operand.shape, strict=True)]):
            if size > 1:
                terms.append(f"({name}) * {stride}")
            stride *= size
        if all(name.isdecimal() or size == 1
               for name, size in zip(names, operand.shape, strict=True)):  # fmt: skip
            # A mask needs pointers of its own shape, also to a single element.
            terms.append("x * 0")
        return " + ".join(terms)

    def _scattered(self) -> list[str]:
        """The indices of each update's element, and the tests that they are in bounds."""
        op = self.kernel.op
        assert isinstance(op, Scatter)
        windows, shape = op.windows, self.out.shape[self.lead :]
        indices = self.kernel.operands[1].shape[self.lead :]
        counted = iter(windows.batch(len(self.sizes)))
        along = {d: f"u{next(counted)}" for d in range(len(indices)) if d != windows.vector}
        places: list[list[str]] = [[] for _ in shape]
        for n, dim in enumerate(windows.start_map):
            own = [str(n) if d == windows.vector else along[d] for d in range(len(indices))]
            self.line(f"i{dim} = tl.load({self._at(1, own)}, mask=inside, other=0).to(tl.int64)")
            places[dim].append(f"i{dim}")
        for dim, d in zip(windows.operand_batching, windows.indices_batching, strict=True):
            places[dim].append(along[d])
        for dim, d in zip(windows.operand_dims(len(shape)), windows.window, strict=True):
            places[dim].append(f"u{d}")
        found = [" + ".join(terms) or "0" for terms in places]
        for dim in windows.start_map:
            self.tests.append(f"({found[dim]} >= 0) & ({found[dim]} < {shape[dim]})")
        return found

    def _sliced(self) -> list[str]:
        """The indices of a slice's elements: its start is moved into bounds."""
        shape, indices = self.out.shape[self.lead :], []
        for dim, (size, count) in enumerate(zip(shape, self.sizes, strict=True)):
            start = f"tl.load({self._at(2 + dim, [])}).to(tl.int64)"
            self.line(f"i{dim} = tl.minimum(tl.maximum({start}, 0), {size - count})")
            indices.append(f"i{dim} + u{dim}")
        return indices
