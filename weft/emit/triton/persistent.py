"""Contractions by persistent programs: bulk copies of tiles by tensor descriptors.

One program for each multiprocessor computes tile after tile; Hopper's copy engine brings the sides'
tiles to shared memory, zero beyond their ends, while the steps that follow a tile are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.triton import dtypes
from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.loops import finished
from weft.emit.triton.product import TileProduct, contract_of, function_of, refuses_matrix_units
from weft.kernels.kernel import Contract, Kernel, Load
from weft.kernels.roles import roles_of
from weft.records import dataclass

PROGRAMS = 132  # multiprocessors
_ALIGNED = 16  # bytes of an address or a stride
_TYPES = {"bf16", "f16"}


@dataclass(frozen=True, slots=True)
class DescribedSide:
    """A side as a matrix in memory: outer and inner sizes, the outer stride, and the order."""

    load: Load
    is_left: bool
    stride: int  # of the outer dim, in elements
    is_transposed: bool  # the depth is the outer dim of a left side, the inner one of a right side

    @property
    def is_depth_inner(self) -> bool:
        """Whether the depth is the inner dim."""
        return self.is_left != self.is_transposed


def described_sides(kernel: Kernel) -> tuple[DescribedSide, DescribedSide] | None:
    """Both sides of a contraction of collapsed loops, if tensor descriptors can describe them."""
    if refuses_matrix_units(kernel, _TYPES) is not None:
        return None
    contract = kernel.steps[contract_of(kernel)]
    assert isinstance(contract, Contract)
    roles, sides = roles_of(kernel), list[DescribedSide]()
    for number, free, is_left in (
        (contract.lhs, roles.rows, True),
        (contract.rhs, roles.columns, False),
    ):
        load = kernel.steps[number]
        if not isinstance(load, Load) or load.guards or load.shifts:
            return None
        across, along = (_stride(kernel, load, factors) for factors in (free, roles.depth))
        if across is None or along is None or 1 not in (across, along):
            return None
        # Of a left side the inner dim is the depth, of a right side the columns.
        is_transposed = (along != 1) if is_left else (across != 1)
        stride = max(across, along) if min(across, along) == 1 else 0
        steps = (stride, load.at.offset, *[load.at.strides[f] for f in roles.batch])
        size = load.dtype.bits // 8
        if stride <= 1 or any(step < 0 or step * size % _ALIGNED for step in steps):
            return None
        sides.append(DescribedSide(load, is_left, stride, is_transposed))
    return sides[0], sides[1]


def _stride(kernel: Kernel, load: Load, factors: Sequence[int]) -> int | None:
    """The stride of factors that an access runs through as through one; None if it does not."""
    wanted: int | None = None
    for f in reversed(factors):
        stride = load.at.strides[f]
        if wanted is not None and stride != wanted:
            return None
        wanted = stride * kernel.factors[f].size
    return load.at.strides[factors[-1]] if factors else None


def by_persistent_programs(kernel: Kernel) -> GridLaunch:
    """A contraction, of collapsed loops, whose sides can be described."""
    sides = described_sides(kernel)
    assert sides is not None, "its sides can be described"
    product = TileProduct(kernel)
    tiles, m, n, k = product.tiles, product.m, product.n, product.k
    batch = ""
    if product.b.factors:
        batch = tiles.let("tl.program_id(1).to(tl.int64)", "b")
    names = [
        _descriptor(product, side, axis_size, batch)
        for side, axis_size in zip(sides, ((m.size, m.block), (n.size, n.block)), strict=True)
    ]
    total = m.blocks * n.blocks
    programs = min(total, max(1, PROGRAMS // product.b.size) if product.b.factors else PROGRAMS)
    kind = dtypes.computed(product.contract.held)
    head = f"for program in tl.range(tl.program_id(0), {total}, {programs}, flatten=True):"
    with tiles.loop(head):
        *_, result = product.place()
        tiles.line(f"total = tl.full([{m.block}, {n.block}], 0, {kind})")
        with tiles.loop(f"for start in range(0, {k.size}, {k.block}):"):
            parts = []
            places = (f"m0 * {m.block}", f"n0 * {n.block}")
            for name, side, at in zip(names, sides, places, strict=True):
                order = (at, "start") if side.is_depth_inner else ("start", at)
                text = f"{name}.load([{order[0]}, {order[1]}])"
                parts.append(tiles.let(f"{text}.T" if side.is_transposed else text))
            tiles.line(f"total = {function_of(product.contract)}({parts[0]}, {parts[1]}, total)")
        product.finish(result)
    grid = (programs, product.b.size, 1)
    return finished(tiles, kernel.name, grid, product.blocks.warps, product.blocks.stages)


def _descriptor(
    product: TileProduct, side: DescribedSide, free: tuple[int, int], batch: str
) -> str:
    """The descriptor of a side: outer dim first."""
    tiles, k = product.tiles, product.k
    start = f"in{side.load.operand} + {side.load.at.offset}"
    if batch:
        # The index of each batch factor, of the flat one.
        rest = batch
        for f in reversed(product.b.factors):
            size = product.kernel.factors[f].size
            if stride := side.load.at.strides[f]:
                start += f" + ({rest} % {size}) * {stride}"
            rest = f"({rest} // {size})"
    sizes = (free, (k.size, k.block))
    outer, inner = sizes if side.is_depth_inner else sizes[::-1]
    shape, block = (f"[{outer[n]}, {inner[n]}]" for n in (0, 1))
    return tiles.let(f"tl.make_tensor_descriptor({start}, {shape}, [{side.stride}, 1], {block})")
