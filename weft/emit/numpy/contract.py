"""Contractions on stacks: few and large matrix products for all devices.

A leading dim along which both operands vary is a batch dim; one along which only the left (right)
operand varies is merged into its rows (columns), so that the device dim costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from weft.executable.items import Site
from weft.ir.op import Op
from weft.ir.types import Array, DType, TensorType
from weft.kernels.host import HostKernel, Maker
from weft.ops.contract import Dot, DotDims, DotGeneral, narrow
from weft.ops.convolution import Convolution, windows
from weft.records import dataclass
from weft.varying.masks import bits

ProductFunction = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Form:
    """How the dims of two stacked operands map to a matrix product and back."""

    left: tuple[int, ...]  # left dims in order: dropped, batch, rows, summed
    right: tuple[int, ...]  # right dims in order: dropped, batch, summed, columns
    back: tuple[int, ...]  # permutation of the product's dims to the result's
    lead: int
    dropped: tuple[int, int]  # leading dims of size 1, dropped on each side
    batch: int
    rows: int
    columns: int
    summed: int

    def matrices(self, lhs: Array, rhs: Array) -> tuple[Array, Array, tuple[int, ...]]:
        """The operands as stacks of matrices, and the shape of their product."""
        a, b = lhs.transpose(self.left), rhs.transpose(self.right)
        left, right = a.shape[self.dropped[0] :], b.shape[self.dropped[1] :]
        batch, rows = left[: self.batch], left[self.batch : self.batch + self.rows]
        inner = left[self.batch + self.rows :]
        columns = right[self.batch + self.summed :]
        depth = math.prod(inner)
        return (
            a.reshape((*batch, math.prod(rows), depth)),
            b.reshape((*batch, depth, math.prod(columns))),
            (*batch, *rows, *columns),
        )

    def run(self, lhs: Array, rhs: Array) -> Array:
        """The product."""
        a, b, shape = self.matrices(lhs, rhs)
        return self.restore_dims(self._multiply(a, b).reshape(shape))

    @property
    def _multiply(self) -> Callable[..., Array]:
        """The matrix product; over an empty sum, elementwise, so that zeros keep their signs."""
        return np.matmul if self.summed else np.multiply

    def restore_dims(self, product: Array) -> Array:
        """A product with its dims permuted to the result's, dropped leading dims restored."""
        missing = len(self.back) - product.ndim
        return product.reshape(product.shape + (1,) * missing).transpose(self.back)

    def into(self, lhs: Array, rhs: Array, out: Array) -> None:
        """Write the product into an array, directly if its strides match."""
        a, b, shape = self.matrices(lhs, rhs)
        target = out.transpose(np.argsort(self.back)).reshape((*a.shape[:-1], b.shape[-1]))
        if np.may_share_memory(target, out):
            self._multiply(a, b, out=target)
        else:
            np.copyto(out, self.restore_dims(self._multiply(a, b).reshape(shape)))


def form(
    lead: int, masks: tuple[int, int], ranks: tuple[int, int], dims: DotDims, summed: int = 0
) -> Form:
    """The matrix form of a stacked dot; `summed` leading dims are reduced as well."""
    left, right = masks
    both, one, other = left & right & ~summed, left & ~right, right & ~left
    dropped = [d for d in range(lead) if not left >> d & 1]
    missing = [d for d in range(lead) if not right >> d & 1]
    free_left, free_right = dims.lhs_free(ranks[0]), dims.rhs_free(ranks[1])
    shift = [lead + d for d in dims.lhs_batching_dimensions]
    shift_right = [lead + d for d in dims.rhs_batching_dimensions]
    inner = bits(left & right & summed)
    lhs = [*dropped, *bits(both), *shift, *bits(one), *(lead + d for d in free_left)]
    lhs += [*inner, *(lead + d for d in dims.lhs_contracting_dimensions)]
    rhs = [*missing, *bits(both), *shift_right, *inner]
    rhs += [lead + d for d in dims.rhs_contracting_dimensions]
    rhs += [*bits(other), *(lead + d for d in free_right)]
    # The product's dims by their position in the result.
    batch = len(dims.lhs_batching_dimensions)
    names = [*bits(both), *(lead + n for n in range(batch)), *bits(one)]
    names += [lead + batch + n for n in range(len(free_left))] + [*bits(other)]
    names += [lead + batch + len(free_left) + n for n in range(len(free_right))]
    total = lead + batch + len(free_left) + len(free_right)
    names += [n for n in range(total) if n not in names]
    return Form(
        tuple(lhs),
        tuple(rhs),
        tuple(names.index(n) for n in range(total)),
        lead,
        (len(dropped), len(missing)),
        len(bits(both)) + batch,
        len(bits(one)) + len(free_left),
        len(bits(other)) + len(free_right),
        len(inner) + len(dims.lhs_contracting_dimensions),
    )


def computed_in(lhs: DType, rhs: DType, out: DType) -> np.dtype[np.generic]:
    """The accumulation type: BLAS has f32, f64 and complex."""
    kinds = {lhs.kind, rhs.kind, out.kind}
    if "complex" in kinds:
        wide = max(d.bits for d in (lhs, rhs, out) if d.is_complex)
        return np.dtype(np.complex64 if wide == 64 else np.complex128)
    if "float" in kinds:
        wide = any(d.name == "f64" for d in (lhs, rhs, out))
        return np.dtype(np.float64 if wide else np.float32)
    # BLAS has no integers. Products of 16 bits are below 2^32: f64 sums up to 2^21 exactly.
    return np.dtype(np.float64 if max(lhs.bits, rhs.bits) <= 16 else np.int64)


def typed(product: ProductFunction, lhs: DType, rhs: DType, out: DType) -> ProductFunction:
    """A product with conversions of operands and result."""
    held = computed_in(lhs, rhs, out)
    if lhs.numpy == rhs.numpy == out.numpy == held:
        return product
    if out.is_integer or out.kind == "bool":

        def whole(a: Array, b: Array) -> Array:
            sums = product(a.astype(held, copy=False), b.astype(held, copy=False))
            return narrow(sums.astype(np.int64, copy=False), out)

        return whole

    def run(a: Array, b: Array) -> Array:
        sums = product(a.astype(held, copy=False), b.astype(held, copy=False))
        return narrow(sums, out)

    return run


def dot_dims(site: Site) -> DotDims:
    """The dims of a product, as in dot_general."""
    op = site.op
    if isinstance(op, Dot):
        return op.dims(site.operand(0).rank)
    assert isinstance(op, DotGeneral)
    return op.dot_dimension_numbers


def dot(site: Site) -> HostKernel:
    """A matrix product, also summed over devices where an all_reduce follows."""
    lhs, rhs, out = site.operand(0), site.operand(1), site.result()
    summed = site.summed_here()
    shape = form(
        site.lead, (site.mask(0), site.mask(1)), (lhs.rank, rhs.rank), dot_dims(site), summed
    )
    run = typed(shape.run, lhs.dtype, rhs.dtype, out.dtype)
    return HostKernel(run, shape.into if run == shape.run else None)


def convolution(site: Site) -> HostKernel:
    """im2col: the windows at every position, times the kernel, as one product."""
    op, lead = site.op, site.lead
    assert isinstance(op, Convolution)
    lhs, rhs = site.operand(0), site.operand(1)
    dims, window = op.dimension_numbers, op.window(TensorType(rhs.shape, rhs.dtype))
    groups, count = op.feature_group_count * op.batch_group_count, len(window.sizes)
    over = DotDims((0,), (1,), (2, *range(3 + count, 3 + 2 * count)), (0, *range(3, 3 + count)))
    masks = (site.mask(0), site.mask(1))
    shape = form(lead, masks, (3 + 2 * count, 3 + count), over)
    product = typed(shape.run, lhs.dtype, rhs.dtype, op.out.dtype)
    back = [int(d) for d in np.argsort((dims.output[0], *dims.output[2:], dims.output[1]))]
    reversal = tuple(lead + n + 2 for n, b in enumerate(op.window_reversal or ()) if b)

    def run(x: Array, y: Array) -> Array:
        head = x.shape[:lead]
        moved = x.transpose(_after(lead, dims.input))
        batch = math.prod(moved.shape[: lead + 1])
        seen = windows(moved.reshape(batch, *moved.shape[lead + 1 :]), window)
        sizes = (moved.shape[lead], *seen.shape[1:])
        seen = _grouped(seen.reshape(*head, *sizes), lead, groups, op.batch_group_count > 1)
        kernel = np.flip(y.transpose(_after(lead, dims.kernel)), reversal)
        depth, features = kernel.shape[lead : lead + 2]
        opened = (depth, groups, features // groups, *kernel.shape[lead + 2 :])
        sums = product(seen, kernel.reshape(*y.shape[:lead], *opened))
        sums = np.moveaxis(sums, lead, -2)
        return sums.reshape(*sums.shape[:-2], features).transpose(_after(lead, back))

    return HostKernel(run)


def _after(lead: int, dims: Sequence[int]) -> tuple[int, ...]:
    return (*range(lead), *(lead + d for d in dims))


def _grouped(seen: Array, lead: int, groups: int, by_batch: bool) -> Array:
    """Windows with a group dim before the batch dim."""
    head, (batch, features, *rest) = seen.shape[:lead], seen.shape[lead:]
    if by_batch:
        return seen.reshape(*head, groups, batch // groups, features, *rest)
    opened = seen.reshape(*head, batch, groups, features // groups, *rest)
    return np.moveaxis(opened, lead + 1, lead)


KERNELS: dict[type[Op], Maker] = {DotGeneral: dot, Dot: dot, Convolution: convolution}
