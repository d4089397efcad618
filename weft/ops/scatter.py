"""Scatter: windows of updates are combined into a tensor at indices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import numpy as np

from weft.ir.attrs import struct
from weft.ir.check import one_of, require, tensor_type
from weft.ir.op import Body, Op, RegionCall, op
from weft.ir.rule import Combine, Role, Rule, RuleBuilder
from weft.ir.types import BOOL, Array, TensorType, Type, Types
from weft.ir.work import Work, elements, moved
from weft.ops.combiners import BY_OP, IDEMPOTENT
from weft.ops.index import DimList, Windows, check_windows, window_factors, window_starts
from weft.ops.reduce import in_types, promotable
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ScatterDims:
    """The dimension numbers of a scatter."""

    update_window_dims: DimList = ()
    inserted_window_dims: DimList = ()
    input_batching_dims: DimList = ()
    scatter_indices_batching_dims: DimList = ()
    scatter_dims_to_operand_dims: DimList = ()
    index_vector_dim: int = 0


SCATTER_DIMS = struct("stablehlo.scatter")(ScatterDims)
_LOGICAL = ("and", "or")  # bitwise on integers, which no collective supports


@op("stablehlo.scatter")
class Scatter(Op):
    """The inputs, with each update combined, in order, into the element at its index."""

    scatter_dimension_numbers: Annotated[ScatterDims, SCATTER_DIMS]
    outs: Types
    # Promises of the program, of which the reference needs none.
    indices_are_sorted: bool = False
    unique_indices: bool = False
    regions = 1

    @property
    def windows(self) -> Windows:
        """The dimension numbers in the form shared with gather."""
        dims = self.scatter_dimension_numbers
        return Windows(
            dims.update_window_dims,
            dims.inserted_window_dims,
            dims.input_batching_dims,
            dims.scatter_indices_batching_dims,
            dims.scatter_dims_to_operand_dims,
            dims.index_vector_dim,
        )

    def infer(self, *operands: Type, regions: tuple[Body, ...] = ()) -> Types:
        count = len(operands) // 2
        require(
            count > 0 and len(operands) == 2 * count + 1,
            f"{self.name}: has {len(operands)} operands",
            "give n inputs, the indices, and n updates",
        )
        given = [tensor_type(self.name, n, t) for n, t in enumerate(operands)]
        inputs, updates = given[:count], given[count + 1 :]
        indices = one_of(self.name, count, operands[count], "int uint")
        for n, (source, update) in enumerate(zip(inputs, updates, strict=True)):
            require(
                source.shape == inputs[0].shape and update.shape == updates[0].shape,
                f"{self.name}: input {n} is {source} and update {n} {update}, but the first ones "
                f"are {inputs[0]} and {updates[0]}",
                "all inputs have one shape, and all updates have one shape",
            )
            require(
                source.dtype is update.dtype,
                f"{self.name}: the elements of input {n} are {source.dtype}, of its update "
                f"{update.dtype}",
                "they must be the same; convert one of them",
            )
        check_windows(self.name, self.windows, inputs[0], indices, updates[0].rank)
        self._check_updates(inputs[0], indices, updates[0])
        return _check_body(self.name, inputs, regions[0])

    def _check_updates(self, source: TensorType, indices: TensorType, update: TensorType) -> None:
        windows = self.windows
        counts = [n for d, n in enumerate(indices.shape) if d != windows.vector]
        given = [update.shape[d] for d in windows.batch(update.rank)]
        require(
            given == counts,
            f"{self.name}: the dims of {update} that count windows are {given}, but the indices "
            f"{indices} name windows of {counts}",
            "each index vector has one window of updates",
        )
        for inside, dim in zip(windows.window, windows.operand_dims(source.rank), strict=True):
            require(
                update.bounds[inside] <= source.bounds[dim],
                f"{self.name}: update dim {inside} is {update.shape[inside]}, but input dim {dim} "
                f"is {source.shape[dim]}",
                "a window must fit into the input",
            )

    def rule(self, *operands: TensorType, regions: tuple[Body, ...] = ()) -> Rule:
        count = len(operands) // 2
        source, indices, update = operands[0], operands[count], operands[-1]
        combiner = _combiner(regions[0])
        # Every shard starts from the whole input, which only an idempotent combiner may count
        # twice.
        combine = combiner if combiner in IDEMPOTENT else None
        rows: Role = "reduction" if combiner else "whole"
        builder = RuleBuilder(operands, operands[:count])
        for f in window_factors(self.windows, source, indices, update, rows):
            builder.factor(
                [*[f.operand] * count, f.row, *[f.slices] * count],
                [f.operand] * count,
                f.size,
                f.role,
                combine=combine if f.role == "reduction" else None,
                needs_offset=f.needs_offset,
            )
        return builder.build()

    def reference(
        self, *operands: Array, regions: tuple[RegionCall, ...] = ()
    ) -> tuple[Array, ...]:
        count = len(operands) // 2
        shape, indices = operands[0].shape, operands[count]
        target, source = update_targets(self.windows, shape, indices, operands[-1].shape)
        out = [a.reshape(-1).copy() for a in in_types(operands[:count], self.outs)]
        new = [a.reshape(-1) for a in in_types(operands[count + 1 :], self.outs)]
        for batch in conflict_free(target):
            at, made = target[batch], [a[source[batch]] for a in new]
            combined = regions[0].each(*[a[at] for a in out], *made)
            for held, values in zip(out, combined, strict=True):
                held[at] = values
        return tuple([a.reshape(shape) for a in out])

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        count = len(operands) // 2
        updates = operands[count + 1 :]
        body = bodies[0] if bodies else Work()
        # An update is read, and the element that it hits is read and written; the inputs are
        # updated in place.
        touched = moved(operands[count]) + 3 * moved(*updates)
        return replace(body.times(elements(updates[0])), bytes=touched)


def _combiner(body: Body) -> Combine | None:
    """The op that combines every input with its update, if it can combine partial results."""
    first = BY_OP.get(body.combiners[0])
    if first == "xor" or len({*body.combiners}) > 1:
        return None
    if first in _LOGICAL and any(t is not TensorType((), BOOL) for t in body.results):
        return None
    return first


def _check_body(name: str, inputs: list[TensorType], body: Body) -> Types:
    """The result types: the inputs' shapes, with the element types of the update region."""
    scalars = body.results
    require(
        len(scalars) == len(inputs) and body.args == scalars + scalars,
        f"{name}: the update computation takes {body.args} and gives {scalars}",
        "for n inputs it takes n scalars and n more of the same types, and gives n of them",
    )
    results = []
    for n, (source, scalar) in enumerate(zip(inputs, scalars, strict=True)):
        require(
            isinstance(scalar, TensorType) and scalar.rank == 0 and promotable(source, scalar),
            f"{name}: the update computation gives {scalar} for input {n}, which is {source}",
            "it gives a scalar of the input's element type, or of a wider one of the same kind",
        )
        assert isinstance(scalar, TensorType)
        results.append(source.with_dtype(scalar.dtype))
    return tuple(results)


def update_targets(
    windows: Windows, shape: tuple[int, ...], indices: Array, updates: tuple[int, ...]
) -> tuple[Array, Array]:
    """The flat index of the input element that each update hits, and that update's flat index.

    Out-of-bounds updates are left out.
    """
    starts = window_starts(windows, len(shape), indices)
    counted = [updates[d] if d not in windows.window else 1 for d in range(len(updates))]
    inside = dict(zip(windows.operand_dims(len(shape)), windows.window, strict=True))
    target = np.zeros(updates, np.int64)
    valid = np.ones(updates, bool)
    for dim, room in enumerate(shape):
        # Starts vary along the dims that count windows; offsets inside of a window are added.
        place = starts[..., dim].reshape(counted)
        if dim in inside:
            along = [-1 if d == inside[dim] else 1 for d in range(len(updates))]
            place = place + np.arange(updates[inside[dim]]).reshape(along)
        valid &= (place >= 0) & (place < room)
        target = target * room + place
    return target[valid], np.flatnonzero(valid)


def conflict_free(target: Array) -> Iterator[Array]:
    """Updates in batches, in order, so that no two of one batch hit the same element."""
    if not target.size:
        return
    order = np.argsort(target, kind="stable")
    sorted_target = target[order]
    begins = np.flatnonzero(np.r_[True, sorted_target[1:] != sorted_target[:-1]])
    lengths = np.diff(np.r_[begins, target.size])
    batch = np.arange(target.size) - np.repeat(begins, lengths)
    by_batch = order[np.argsort(batch, kind="stable")]
    yield from np.split(by_batch, np.cumsum(np.bincount(batch))[:-1])


OPS: tuple[type[Op], ...] = (Scatter,)
