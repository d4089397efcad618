"""Array-level calling conventions of programs: arguments as the program takes them, placed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from weft.array.array import Array, ArraySpec, array_spec
from weft.array.exchange import Writable, to_numpy
from weft.array.host import copied, is_dense
from weft.array.memory import DeviceBuffer, Stream
from weft.array.put import placed_in, put, put_here
from weft.array.stacked import Kind, SplitPlan, Stacked, kind_of, split_plan
from weft.ir.types import TensorType, Type
from weft.mesh import Axis, DimSharding, Mesh, Sharding, as_sharding
from weft.mesh.algebra import merged_axes
from weft.mesh.pieces import counts, local_shape
from weft.mesh.sub_axes import span_of
from weft.records import dataclass
from weft.run.local import LocalProgram


def tensors(types: Sequence[Type]) -> list[int]:
    """The indices of tensors among these; tokens only order effects."""
    return [n for n, type in enumerate(types) if isinstance(type, TensorType)]


@dataclass(frozen=True, slots=True)
class BorrowedStack:
    """A view of a caller's numpy array as an argument, for a run that ends before the call does."""

    spec: ArraySpec
    kind: Kind

    def of(self, data: np.ndarray[Any, Any]) -> Array | None:
        """The array, of the caller's own memory; None if that is not dense."""
        if not is_dense(data):
            return None
        kind = self.kind
        return Array.of(Stacked(data.reshape(kind.shape), kind.sub_axes, False, kind), self.spec)


@dataclass(frozen=True, slots=True)
class KnownParameter:
    """A parameter of PyTorch's, and the array of its memory."""

    parameter: ref[Any]
    address: int
    strides: tuple[int, ...]
    array: Array

    @classmethod
    def of(cls, parameter: Any, array: Array) -> KnownParameter:
        """A parameter, with the array that has the same memory."""
        return cls(ref(parameter), parameter.data_ptr(), parameter.stride(), array)

    def is_of(self, parameter: Any) -> bool:
        """Whether this is the same parameter, in the same memory."""
        held = self.parameter()
        if held is None or held is not parameter or self.array.is_deleted:
            return False
        # `parameter.data = ...` replaces the memory of the same object.
        return bool(held.data_ptr() == self.address and held.stride() == self.strides)


class ArraySignature:
    """A program's array-level calling convention, computed once."""

    def __init__(self, program: LocalProgram) -> None:
        self.types, self.shardings = program.arg_types, program.shardings
        self.mesh, self.here, self.memory = program.mesh, program.here, program.held_in
        self.taken = tensors(program.arg_types)
        self.given = {n: _result(program, n) for n in tensors(program.result_types)}
        whole = len(self.taken) == len(program.arg_types)
        self.is_brief = program.is_brief and whole and len(self.given) == len(program.results)
        self.specs = tuple(self.given.values())
        # Fast path: arguments that matched last time, and cached resharding plans for others.
        self.known: dict[int, ArraySpec] = {}
        self.split: dict[int, tuple[ArraySpec, Kind, SplitPlan]] = {}
        self.placed: dict[int, tuple[ArraySpec, Kind]] = {}
        self.parameters: dict[int, KnownParameter] = {}
        # Results that vary over devices for which their shardings replicate them, as after an
        # all_to_all: equal values, and the next program takes them stored once.
        excess = {n: _excess(program, n) for n in self.given}
        self.excess = {n: window for n, window in excess.items() if window is not None}
        self.stream = program.stream

    def narrowed(self, stacks: Sequence[Stacked]) -> Sequence[Stacked]:
        """The results of a run, each stored once for the devices that its sharding replicates."""
        if not self.excess:
            return stacks
        return [
            _picked(stack, self.excess[n], self.stream) if n in self.excess else stack
            for n, stack in enumerate(stacks)
        ]

    def argument(self, index: int, value: Any) -> Array:
        """An argument with the program's devices and sharding."""
        if not isinstance(value, Array):
            return self._put(index, value)
        value.check_alive()
        if value.spec is self.known.get(index):
            return value
        if self.fits(index, value):
            # Specs are interned: next time one comparison by identity replaces the checks of
            # `fits`.
            self.known[index] = value.spec
            return value
        return self._put(index, value)

    def takes(self, arrays: Sequence[Array]) -> bool:
        """Whether these arrays have the program's shardings."""
        listed = zip(self.taken, arrays, strict=False)
        same = len(arrays) == len(self.taken)
        return same and all(self.fits(index, array) for index, array in listed)

    def fits(self, index: int, array: Array) -> bool:
        """Whether an array has the devices and the sharding of an argument."""
        type, wanted = self.types[index], self.shardings[index]
        assert isinstance(type, TensorType), "only tensors are arrays"
        same = array.mesh.size == self.mesh.size and array.element_type is type.dtype
        same = same and array.spec.here == self.here
        pieces = local_shape(array.shape, array.sharding, array.mesh)
        return (
            same
            and pieces == type.sizes
            and _split(array.sharding, array.mesh) == _split(wanted, self.mesh)
        )

    def _put(self, index: int, value: Any) -> Array:
        if value.__class__ is Writable:
            array = self._converted(index, value.array)
            # The caller gave the memory to be written, so that a result may be put there.
            array.stacked.owned = True
            return array
        known = self.parameters.get(index)
        if known is not None and known.is_of(value):
            return known.array
        array = self._converted(index, value)
        # Parameters stay where they are from call to call; other tensors are mostly new ones.
        if type(value).__name__ == "Parameter" and not array.stacked.is_on_host:
            self.parameters[index] = KnownParameter.of(value, array)
        return array

    def _converted(self, index: int, value: Any) -> Array:
        if not self.memory.is_host and not isinstance(value, Array | np.ndarray):
            buffer = self.memory.adopt(value)
            if buffer is not None and self.here is None:
                return self._placed_argument(index, buffer)
        held = value if isinstance(value, Array) else to_numpy(value)
        before = self.split.get(index)
        if before is not None and not isinstance(held, Array):
            spec, kind, plan = before
            # The plan depends on shape and sharding alone, and the sharding is this argument's.
            if held.shape == spec.shape and held.dtype == spec.dtype.numpy:
                stacked = plan.split(held, kind.sub_axes)
                if is_dense(stacked.data):
                    stacked.kind = kind
                return Array.of(stacked, spec)
        wanted = self._wanted(index)
        array = put(held, wanted) if self.here is None else self._put_here(held, wanted)
        spec, sub_axes = array.spec, array.stacked.sub_axes
        way_there = split_plan(spec.shape, spec.sharding, spec.mesh, sub_axes)
        if way_there is not None and self.here is None:
            self.split[index] = (spec, kind_of(sub_axes, way_there.shape, array.dtype), way_there)
        return array

    def borrowed(self, index: int) -> BorrowedStack | None:
        """How numpy arrays of an argument, which were split before, are stacks without a copy."""
        spec, kind, plan = self.split.get(index, (None, None, None))
        if spec is None or kind is None or plan is None or not self.memory.is_host:
            return None
        # Only where splitting is a reshape: nothing is transposed, and nothing padded.
        in_order = plan.order == tuple(range(len(plan.order)))
        return BorrowedStack(spec, kind) if in_order and plan.room == spec.shape else None

    def _placed_argument(self, index: int, buffer: DeviceBuffer) -> Array:
        """A buffer of the program's memory as an argument; quickly where it needs no splitting."""
        before = self.placed.get(index)
        if before is not None:
            spec, kind = before
            if buffer.shape == spec.shape and buffer.dtype == spec.dtype.numpy:
                stacked = Stacked(buffer.reshape(kind.shape), kind.sub_axes, kind=kind)
                stacked.locate()
                return Array.of(stacked, spec)
        array = placed_in(buffer, self._wanted(index), self.mesh)
        held = array.stacked
        # Placed without a copy: only then is the short cut of the next call right.
        if held.data.block is buffer.block and held.data.nbytes == buffer.nbytes:
            self.placed[index] = (array.spec, held.located())
        return array

    def _wanted(self, index: int) -> Sharding:
        """The sharding of an argument, on the program's mesh."""
        type, mesh = self.types[index], self.mesh
        assert isinstance(type, TensorType), "only tensors are arrays"
        wanted = self.shardings[index] or _whole(type.rank, mesh)
        return wanted if isinstance(wanted.mesh, Mesh) else _on(wanted, mesh)

    def _put_here(self, held: Any, wanted: Sharding) -> Array:
        """This process's shards of a global argument."""
        if isinstance(held, Array) and not held.is_readable:
            return put(held, wanted)  # resharded between the processes, which all call this
        whole = to_numpy(held)
        return put_here(whole, as_sharding(wanted, whole.ndim, self.mesh), self.mesh, self.here)


def array_signature_of(program: LocalProgram) -> ArraySignature:
    """The signature of a program."""
    signature: ArraySignature | None = program.array_signature
    if signature is None:
        signature = program.array_signature = ArraySignature(program)
    return signature


def _split(sharding: Sharding | None, mesh: Mesh) -> tuple[tuple[Axis, ...], ...]:
    """The axes that split each dim, then the unreduced ones; none of size 1.

    Shardings for which it is equal place the same pieces on the same devices. Whether dims are
    open, and priorities, matter to propagation only; a program's own shardings have no axes of
    size 1.
    """
    if sharding is None:
        return ()
    dims = [dim.axes for dim in sharding.dims]
    found = [merged_axes(axes, mesh) for axes in (*dims, sharding.unreduced)]
    return tuple(found) if any(found) else ()


def _on(sharding: Sharding, mesh: Mesh) -> Sharding:
    return Sharding(mesh, sharding.dims, sharding.replicated, sharding.unreduced)


def _whole(rank: int, mesh: Mesh) -> Sharding:
    return Sharding(mesh, (DimSharding(),) * rank)


def _result(program: LocalProgram, index: int) -> ArraySpec:
    """The global type and sharding of a result's array."""
    type = program.result_types[index]
    assert isinstance(type, TensorType), "only tensors are arrays"
    sharding = program.result_shardings[index]
    mesh = program.mesh
    placed = _whole(type.rank, mesh) if sharding is None else _on(sharding, mesh)
    shape = program.global_shape(index) or _global_shape(type.sizes, placed, mesh)
    return array_spec(shape, type.dtype, placed, mesh, program.here)


def _excess(program: LocalProgram, index: int) -> tuple[slice, ...] | None:
    """The part of a result's stack that its sharding needs; None if it needs all."""
    sharding, mask = program.result_shardings[index], program.result_masks[index]
    if sharding is None or not isinstance(mask, int):
        return None
    axes = [axis for dim in sharding.dims for axis in dim.axes]
    spans = [span_of(axis, program.mesh) for axis in (*axes, *sharding.unreduced)]
    used = program.sub_axes.dims_of(spans)
    head = program.stack_dims.shape(mask)
    if used is None or all(size == 1 or n in used for n, size in enumerate(head)):
        return None
    return tuple([slice(None) if n in used else slice(1) for n in range(len(head))])


def _picked(stack: Stacked, window: tuple[slice, ...], stream: Stream | None) -> Stacked:
    """A part of a stack, in memory of its own."""
    if stack.is_on_host:
        return Stacked(copied(stack.data[window]), stack.sub_axes, owned=True)
    made = stack.picked(Stacked(stack.rows().data[window], stack.sub_axes))
    made.data.event = None if stream is None else stream.record()
    return made


def _global_shape(sizes: Sequence[int], sharding: Sharding, mesh: Mesh) -> tuple[int, ...]:
    """The global shape from local sizes, without padding."""
    return tuple(n * size for n, size in zip(counts(sharding, mesh), sizes, strict=True))
