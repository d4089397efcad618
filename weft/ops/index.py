"""Ops that read elements at indices held by other tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from weft.errors import WeftError
from weft.ir.attrs import struct
from weft.ir.check import dims_in_range, one_of, require, tensor_type
from weft.ir.op import Op, op
from weft.ir.rule import Role, Rule, RuleBuilder
from weft.ir.types import Array, Dim, TensorType, Type, Types, type_of
from weft.ir.work import Work, moved
from weft.ops.slicing import check_inside, one_per_dim
from weft.records import dataclass

DimList = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GatherDims:
    """The dimension numbers of a gather."""

    offset_dims: DimList = ()
    collapsed_slice_dims: DimList = ()
    operand_batching_dims: DimList = ()
    start_indices_batching_dims: DimList = ()
    start_index_map: DimList = ()
    index_vector_dim: int = 0


@dataclass(frozen=True, slots=True)
class Windows:
    """The common form of gather and scatter: windows of one tensor at indices.

    `slices` is the tensor that holds the windows: a gather's result, a scatter's updates.
    """

    window: DimList  # the dims of `slices` inside a window; the others count the windows
    inserted: DimList  # dims of the operand of window size 1, collapsed in `slices`
    operand_batching: DimList
    indices_batching: DimList
    start_map: DimList  # the operand's dim of each element of an index vector
    vector: int  # the dim of the indices that holds index vectors

    @property
    def absent(self) -> DimList:
        """The dims of the operand that `slices` has no window dim for."""
        return (*self.inserted, *self.operand_batching)

    def rank(self, indices: TensorType) -> int:
        """The number of dims of `slices`, given the indices."""
        return len(self.window) + indices.rank - (self.vector < indices.rank)

    def operand_dims(self, rank: int) -> list[int]:
        """The dims of an operand of that rank that the window dims run over, in order."""
        return [d for d in range(rank) if d not in self.absent]

    def batch(self, rank: int) -> list[int]:
        """The dims of `slices` of that rank that count the windows, in order."""
        return [d for d in range(rank) if d not in self.window]


GATHER_DIMS = struct("stablehlo.gather")(GatherDims)


@op("stablehlo.gather")
class Gather(Op):
    """Windows of the operand, each at the start in one index vector."""

    dimension_numbers: Annotated[GatherDims, GATHER_DIMS]
    slice_sizes: DimList
    indices_are_sorted: bool = False  # a promise; the reference does not use it

    def infer(self, operand: Type, indices: Type) -> Type:
        operand_type, places = (
            tensor_type(self.name, 0, operand),
            one_of(self.name, 1, indices, "int uint"),
        )
        windows = gather_windows(self.dimension_numbers)
        one_per_dim(self.name, "slice_sizes", self.slice_sizes, operand_type)
        check_inside(self.name, "slice_sizes", self.slice_sizes, operand_type)
        for dim in windows.absent:
            require(
                0 <= dim < operand_type.rank and self.slice_sizes[dim] <= 1,
                f"{self.name}: dim {dim} is collapsed or batching, but slice_sizes = "
                f"{self.slice_sizes}",
                "a dim that the result lacks must have a slice size of 1",
            )
        check_windows(self.name, windows, operand_type, places, windows.rank(places))
        return operand_type.with_shape(gathered_shape(windows, places, self.slice_sizes))

    def rule(self, operand: TensorType, indices: TensorType) -> Rule:
        windows = gather_windows(self.dimension_numbers)
        out = operand.with_shape(gathered_shape(windows, indices, self.slice_sizes))
        builder = RuleBuilder((operand, indices), (out,))
        for f in window_factors(windows, operand, indices, out):
            builder.factor(
                [f.operand, f.row],
                [f.slices],
                f.size,
                f.role,
                blocked=f.blocked,
                needs_offset=f.needs_offset,
            )
        return builder.build()

    def reference(self, operand: Array, indices: Array) -> Array:
        return gather(gather_windows(self.dimension_numbers), self.slice_sizes, operand, indices)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        # Only the windows are read, not the whole operand.
        return Work(bytes=moved(operands[1]) + 2 * moved(*results))

    def local(self, operands: Types, results: Types) -> Op:
        source, out = operands[0], results[0]
        assert isinstance(source, TensorType) and isinstance(out, TensorType)
        windows = gather_windows(self.dimension_numbers)
        sizes = list(self.slice_sizes)
        for dim, offset in zip(windows.operand_dims(source.rank), windows.window, strict=True):
            sizes[dim] = out.sizes[offset]
        return self.replace(slice_sizes=tuple(sizes))


def gather_windows(dims: GatherDims) -> Windows:
    """A gather's dimension numbers in the common form."""
    return Windows(
        dims.offset_dims,
        dims.collapsed_slice_dims,
        dims.operand_batching_dims,
        dims.start_indices_batching_dims,
        dims.start_index_map,
        dims.index_vector_dim,
    )


def check_windows(
    name: str, windows: Windows, operand: TensorType, indices: TensorType, rank: int
) -> None:
    """Refuse dims that do not describe windows of the operand, in `slices` of that rank."""
    require(
        operand.rank == len(windows.window) + len(windows.absent),
        f"{name}: the operand has {operand.rank} dims, but {len(windows.window)} window dims "
        f"and {len(windows.absent)} collapsed, inserted or batching ones are named",
        "each dim of the operand is one or the other",
    )
    require(
        0 <= windows.vector <= indices.rank,
        f"{name}: index_vector_dim is {windows.vector}, but the indices have {indices.rank} dims",
        f"use 0 to {indices.rank}; {indices.rank} if every index is one number",
    )
    length: Dim = indices.shape[windows.vector] if windows.vector < indices.rank else 1
    require(
        len(windows.start_map) == length,
        f"{name}: an index vector has {length} elements, but {len(windows.start_map)} dims of the "
        "operand are named for them",
        "name one dim of the operand for each element of an index vector",
    )
    dims_in_range(name, "the window dims", windows.window, rank)
    dims_in_range(name, "the dims without a window", windows.absent, operand.rank)
    dims_in_range(
        name,
        "the dims that indices are for",
        (*windows.start_map, *windows.operand_batching),
        operand.rank,
    )
    for dims in (windows.window, windows.inserted, windows.operand_batching):
        require(
            list(dims) == sorted(dims),
            f"{name}: the dims {dims} are not in ascending order",
            "sort the window, collapsed, inserted and batching dims",
        )
    _check_batching(name, windows, operand, indices)


def _check_batching(name: str, windows: Windows, operand: TensorType, indices: TensorType) -> None:
    dims_in_range(name, "the indices' batching dims", windows.indices_batching, indices.rank)
    require(
        windows.vector not in windows.indices_batching,
        f"{name}: dim {windows.vector} of the indices holds index vectors and is a batching dim",
        "a dim of the indices is one or the other",
    )
    require(
        len(windows.operand_batching) == len(windows.indices_batching),
        f"{name}: the operand has {len(windows.operand_batching)} batching dims, the indices "
        f"{len(windows.indices_batching)}",
        "they belong together one by one",
    )
    pairs = zip(windows.operand_batching, windows.indices_batching, strict=True)
    for source, index in pairs:
        require(
            operand.shape[source] == indices.shape[index],
            f"{name}: sizes differ: operand dim {source} is {operand.shape[source]}, "
            f"indices dim {index} is {indices.shape[index]}",
            "batching dims have one size",
        )


def gathered_shape(windows: Windows, indices: TensorType, sizes: DimList) -> tuple[Dim, ...]:
    """The dims that count the windows and those inside them, each at its place."""
    counts = iter([n for d, n in enumerate(indices.shape) if d != windows.vector])
    inside = iter([n for d, n in enumerate(sizes) if d not in windows.absent])
    dims = range(windows.rank(indices))
    return tuple([next(inside if d in windows.window else counts) for d in dims])


@dataclass(frozen=True, slots=True)
class WindowFactor:
    """One factor of a gather or scatter: its dims in the operand, the indices and the slices."""

    operand: int | None
    row: int | None  # of the indices
    slices: int | None
    size: int
    role: Role = "pass"
    blocked: bool = False
    needs_offset: bool = False  # an indexed dim: a shard must know its offset


def window_factors(
    windows: Windows,
    operand: TensorType,
    indices: TensorType,
    slices: TensorType,
    rows: Role | None = None,
) -> Iterator[WindowFactor]:
    """The factors of a gather; of a scatter, if `rows` is the role of the dims that count updates.

    An indexed dim may stay split: in a gather each shard contributes the elements that it has, and
    the contributions are summed; in a scatter each shard applies the updates that hit it.
    """
    index_dims = iter([d for d in range(indices.rank) if d != windows.vector])
    window_dims = iter(windows.operand_dims(operand.rank))
    batching = dict(zip(windows.indices_batching, windows.operand_batching, strict=True))
    for dim, size in enumerate(slices.bounds):
        if dim not in windows.window:
            row = next(index_dims)
            source = batching.get(row)
            yield WindowFactor(source, row, dim, size, rows or "pass" if source is None else "pass")
            continue
        source = next(window_dims)
        room = operand.bounds[source]
        if size == room:
            # A gather clamps the start of a window over the whole dim to 0; a scatter does not, and
            # drops what a start beyond 0 moves outside.
            pointed = rows is not None and source in windows.start_map
            yield WindowFactor(source, None, dim, size, needs_offset=pointed)
        elif rows is None and size != 1:
            # Windows of a part of the dim cross the borders of shards.
            yield WindowFactor(source, None, dim, room, "whole", blocked=True)
        else:
            role: Role = "reduction" if rows is None else "whole"
            yield WindowFactor(source, None, None, room, role, needs_offset=True)
            yield WindowFactor(None, None, dim, size, "whole")
    for source in windows.inserted:
        room = operand.bounds[source]
        role = "pass" if rows is not None else "reduction" if room != 1 else "whole"
        yield WindowFactor(source, None, None, room, role, needs_offset=True)
    if windows.vector < indices.rank:
        yield WindowFactor(None, windows.vector, None, indices.bounds[windows.vector], "whole")


def window_starts(windows: Windows, operand_rank: int, indices: Array) -> Array:
    """For every window, in the order of the indices, its start in each dim of the operand."""
    if indices.dtype == np.uint64:  # indices beyond int64 are out of bounds anyway
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    vectors = indices[..., None] if windows.vector == indices.ndim else indices
    vectors = np.moveaxis(vectors, windows.vector, -1).astype(np.int64)
    starts = np.zeros((*vectors.shape[:-1], operand_rank), np.int64)
    starts[..., list(windows.start_map)] = vectors
    pairs = zip(windows.operand_batching, windows.indices_batching, strict=True)
    for source, row in pairs:
        # The vector dim was moved to the end: the dims behind it are one lower.
        row -= row > windows.vector
        count = np.arange(vectors.shape[row])
        starts[..., source] = np.expand_dims(
            count, [d for d in range(vectors.ndim - 1) if d != row]
        )
    return starts


def gather(windows: Windows, sizes: DimList, operand: Array, indices: Array) -> Array:
    """Each window, with starts clamped to the operand, and dims in result order."""
    starts = window_starts(windows, operand.ndim, indices)
    count = starts.ndim - 1
    places = []
    for dim, room in enumerate(operand.shape):
        size = 1 if dim in windows.absent else sizes[dim]
        offsets = np.arange(size).reshape([size if d == dim else 1 for d in range(operand.ndim)])
        first = np.clip(starts[..., dim], 0, max(room - size, 0))
        places.append(first.reshape(*first.shape, *[1] * operand.ndim) + offsets)
    full = np.broadcast_shapes(*[p.shape for p in places], starts.shape[:-1] + (1,) * operand.ndim)
    if 0 in operand.shape and 0 not in full:
        raise WeftError(
            "stablehlo.gather: reads from an operand without elements",
            help="gather from an operand whose dims are at least 1 long",
        )
    slices = operand[tuple(places)] if 0 not in full else np.empty(full, operand.dtype)
    slices = np.broadcast_to(slices, full).reshape(
        (*full[:count], *[full[count + d] for d in windows.operand_dims(operand.ndim)])
    )
    # The dims that count windows come first here; in the result they may lie anywhere.
    batch = windows.batch(slices.ndim)
    return np.moveaxis(slices, range(slices.ndim), [*batch, *windows.window])


@op("stablehlo.torch_index_select")
class TorchIndexSelect(Op):
    """out[b.., i.., j.., k..] = operand[b.., i.., index[b.., j..], k..], as torch.index_select."""

    dim: int
    batch_dims: int

    def infer(self, operand: Type, index: Type) -> Type:
        operand_type, places = (
            tensor_type(self.name, 0, operand),
            one_of(self.name, 1, index, "int uint"),
        )
        dim, batch = self._dims(operand_type, places)
        for what, value, room in (("dim", dim, operand_type.rank), ("batch_dims", batch, dim + 1)):
            require(
                0 <= value < room,
                f"{self.name}: {what} is {value} for {operand_type} and {places}",
                f"use 0 to {room - 1}",
            )
        require(
            batch <= places.rank and operand_type.shape[:batch] == places.shape[:batch],
            f"{self.name}: the first {batch} dims of {operand_type} and {places} differ",
            "batch dims have one size",
        )
        return operand_type.with_shape(self._shape(operand_type, places))

    def _dims(self, operand: TensorType, index: TensorType) -> tuple[int, int]:
        """`dim` and `batch_dims`, counted from the end if negative."""
        dim = self.dim + operand.rank if self.dim < 0 else self.dim
        return dim, self.batch_dims + index.rank if self.batch_dims < 0 else self.batch_dims

    def _shape(self, operand: TensorType, index: TensorType) -> tuple[Dim, ...]:
        dim, batch = self._dims(operand, index)
        return (*operand.shape[:dim], *index.shape[batch:], *operand.shape[dim + 1 :])

    def rule(self, operand: TensorType, index: TensorType) -> Rule:
        dim, batch = self._dims(operand, index)
        out = operand.with_shape(self._shape(operand, index))
        added = index.rank - batch
        builder = RuleBuilder((operand, index), (out,))
        for d, size in enumerate(out.bounds):
            source = d if d < dim else None if d < dim + added else d - added + 1
            row = d if d < batch else d - dim + batch if source is None else None
            builder.factor([source, row], [d], size)
        builder.factor([dim, None], [None], operand.bounds[dim], "reduction", needs_offset=True)
        return builder.build()

    def reference(self, operand: Array, index: Array) -> Array:
        dim, batch = self._dims(type_of(operand), type_of(index))
        added = index.ndim - batch
        rank = operand.ndim - 1 + added
        offsets = [d for d in range(rank) if d >= batch and not dim <= d < dim + added]
        shared = tuple(range(batch))
        windows = Windows(tuple(offsets), (dim,), shared, shared, (dim,), index.ndim)
        sizes = [1 if d == dim or d < batch else n for d, n in enumerate(operand.shape)]
        return gather(windows, tuple(sizes), operand, index)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(operands[1]) + 2 * moved(*results))


OPS: tuple[type[Op], ...] = (Gather, TorchIndexSelect)
