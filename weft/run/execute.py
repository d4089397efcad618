"""Asynchronous execution on arrays: runs are enqueued, results are futures."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any
from weakref import ref

import numpy as np

from weft.array.array import Array, ArraySpec, array_spec
from weft.array.context import CONTEXTS, note
from weft.array.exchange import Writable, to_numpy
from weft.array.future import StackFuture
from weft.array.host import dense, is_dense
from weft.array.memory import DeviceBuffer
from weft.array.put import placed_in, put, put_here
from weft.array.stacked import Kind, SplitPlan, Stacked, kind_of, split_plan
from weft.array.stream import HostStream, released, report
from weft.errors import WeftError
from weft.ir.types import TensorType, Type
from weft.mesh import DimSharding, Mesh, Sharding, as_sharding
from weft.mesh.pieces import counts, local_shape
from weft.native.cpython import reads_objects
from weft.records import dataclass
from weft.run.local import LocalProgram


def run(
    program: LocalProgram,
    *arguments: Any,
    sync_every_op: bool = False,
    stream: HostStream | None = None,
) -> tuple[Array, ...]:
    """Run a program on arrays; results are returned at once and become ready when computed.

    Donated arrays are deleted. With `sync_every_op` the run is synchronous: every op's result is
    checked, and an error names the op.
    """
    signature, stream = array_signature_of(program), stream or program.runs_on
    if len(arguments) != len(signature.taken):
        raise WeftError(
            f"{program.function.name} takes {len(signature.taken)} arguments, "
            f"{len(arguments)} given",
            help="give one array for each argument",
            loc=program.function.loc,
        )
    listed = [signature.argument(n, a) for n, a in zip(signature.taken, arguments, strict=True)]
    # A queue and a second thread cost more than a short program: it runs in the caller's thread.
    if not sync_every_op and (quick := at_once(program, signature, listed, stream)) is not None:
        return quick
    arrays = dict(zip(signature.taken, listed, strict=True))
    help_ = stream.help
    results = {n: Array.of(None, place).helped_by(help_) for n, place in signature.given.items()}
    context = CONTEXTS.here()
    for result in results.values():
        result.context = context
    # Under the lock: a synchronous run sees this task, or this task sees the deleted array.
    with stream.lock:
        task = Run(program, arrays, results, stream)
        for n in program.donated:
            arrays[n].delete("donated to a program")
        # A thread of the stream itself runs it at once: the queue behind it waits for this very
        # task.
        if queued := not sync_every_op and not stream.is_inside:
            stream.enqueue(task)
    if not queued:
        stream.beside.append(None)
        try:
            task.check() if sync_every_op else stream.enqueue(task)
        finally:
            stream.beside.pop()
    return tuple(results.values())


def place_as_results(program: LocalProgram, arrays: Sequence[Any]) -> list[Array]:
    """Global arrays as a program's own results would be: its shardings, stack dims and order."""
    signature, parameters = array_signature_of(program), program.arguments
    results = []
    for index, value in zip(signature.taken, arrays, strict=True):
        array = signature.argument(index, value)
        stacked = Stacked(dense(parameters.array(index, array.stacked)), parameters.sub_axes)
        stacked.located()
        results.append(Array.of(stacked, array.spec))
    return results


def at_once(
    program: LocalProgram, signature: ArraySignature, arrays: Sequence[Array], stream: HostStream
) -> tuple[Array, ...] | None:
    """Run a short program synchronously; None if it has to be enqueued.

    The arrays already have the program's shardings.
    """
    # Anything queued must come first: it may write what this program reads, or fail.
    if not signature.is_brief or stream.tasks or stream.busy or stream.outside:
        return None
    # Before the stacks are taken out of their arrays; see `HostStream.beside`.
    stream.beside.append(None)
    try:
        stacks = [array.held for array in arrays]
        # Not ready, or deleted since: the way through the queue waits, or raises the right error.
        if None in stacks:
            return None
        if program.donated:
            take_over(stream, program.donated, arrays, stacks)
        results = program(*stacks)
    except BaseException as error:  # noqa: BLE001  # re-raised when results are fetched
        return failed_at_once(error, signature.specs)
    finally:
        stream.beside.pop()
    return tuple(map(Array.of, results, signature.specs))


class QuickRun:
    """Runs of a short program of one device on numpy arrays as they are, and on Weft's arrays."""

    def __init__(self, program: LocalProgram, signature: ArraySignature) -> None:
        assert program.direct is not None, "asked by `of`"
        self.on_arrays, self.frame = program.direct.on_arrays, program.frame
        self.stream, self.specs = program.runs_on, signature.specs
        self.count = len(signature.taken)

    @classmethod
    def of(cls, program: LocalProgram, signature: ArraySignature) -> QuickRun | None:
        """The quick runs of a program; None if it needs more than a native call."""
        direct = program.direct
        if direct is None or direct.over or not direct.is_whole or not reads_objects():
            return None
        # Borrowed memory is the caller's: no result may alias it, and nothing may be written to it.
        aliases = program.donated or program.plan.lent or program.here is not None
        is_one = program.mesh.size == 1 and signature.memory.is_host and signature.is_brief
        return None if aliases or not is_one or not signature.specs else cls(program, signature)

    def __call__(self, arguments: tuple[Any, ...]) -> tuple[Array, ...] | None:
        """Run synchronously; None, and nothing has run, if an argument has to be converted."""
        stream = self.stream  # what is queued must come first, as in `at_once`
        if len(arguments) != self.count or stream.tasks or stream.busy or stream.outside:
            return None
        stream.beside.append(None)
        try:
            held = tuple([a.held if type(a) is Array else a for a in arguments])
            results = self.on_arrays(held, self.frame)
        except BaseException as error:  # noqa: BLE001  # re-raised when results are fetched
            return failed_at_once(error, self.specs)
        finally:
            stream.beside.pop()
        return None if results is None else tuple(map(Array.of, results, self.specs))


def failed_at_once(error: BaseException, specs: Sequence[ArraySpec]) -> tuple[Array, ...]:
    """The results of a synchronous run that failed: the error is raised where they are read."""
    note(error, CONTEXTS.here())
    return tuple([Array.of(None, spec).failed(error) for spec in specs])


def take_over(
    stream: HostStream,
    donated: Sequence[int],
    arrays: Sequence[StackFuture],
    stacks: MutableSequence[Stacked | None],
) -> None:
    """Delete donated arrays; copy their memory if another thread may still read it."""
    with stream.lock:
        for n in donated:
            arrays[n].delete("donated to a program")
        # The only mark is this run's own, and arrays are deleted before the look: no other reader
        # can come any more.
        if stream.is_idle and len(stream.beside) == 1:
            return
    for n in donated:
        stack = stacks[n]
        # Not owned any more, so the program writes its results elsewhere instead of over them.
        stacks[n] = stack and stack.read_only()


def tensors(types: Sequence[Type]) -> list[int]:
    """The indices of tensors among these; tokens only order effects."""
    return [n for n, type in enumerate(types) if isinstance(type, TensorType)]


class Run:
    """One run of a program."""

    def __init__(
        self,
        program: LocalProgram,
        arrays: Mapping[int, StackFuture],
        results: Mapping[int, StackFuture],
        stream: HostStream,
    ) -> None:
        self.program = program
        self.places = results
        self.results = tuple(results.values())
        self.stream = stream
        self.calls_host = program.calls_host
        # Take a ready array's stack now: it may be deleted before the task runs.
        self.given: dict[int, Stacked | StackFuture] = {n: _held(a) for n, a in arrays.items()}

    @property
    def is_ready(self) -> bool:
        """Whether all arguments are ready."""
        return all(isinstance(a, Stacked) or a.is_ready for a in self.given.values())

    def __call__(self) -> None:
        """Run; an error is stored in the results, or printed if none are referenced."""
        try:
            self._resolve(self.program(*self._stacks()))
        except BaseException as error:  # noqa: BLE001  # re-raised when results are fetched
            for result in self.results:
                result.fail(error)
            if not self.results:
                report(error)

    def abandon(self, error: BaseException) -> None:
        """Fail the results because of an interrupt."""
        for result in self.results:
            if not result.is_ready:
                result.fail(error)

    def check(self) -> None:
        """Run synchronously, op by op; errors are raised immediately."""
        self._resolve(self.program.checked(*self._stacks()))

    def _resolve(self, stacks: Sequence[Stacked]) -> None:
        for n, result in self.places.items():
            result.resolve(stacks[n])

    def _stacks(self) -> list[Stacked | None]:
        """A stack for each argument; None for tokens."""
        stacks = {n: self._wait(operand) for n, operand in self.given.items()}
        # A run that waits for a callback, or bypasses the queue, may still read them.
        if self.stream.outside or self.stream.beside:
            stacks = {n: s.read_only() for n, s in stacks.items()}
        return [stacks.get(n) for n in range(len(self.program.arg_types))]

    def _wait(self, operand: Stacked | StackFuture) -> Stacked:
        if isinstance(operand, Stacked):
            return operand
        if not operand.is_ready:
            with released():  # runs pending tasks meanwhile
                operand.settle_on_host()
        return operand.take_claimed()


def _held(array: StackFuture) -> Stacked | StackFuture:
    if array.is_ready and array.error is None:
        return array.enqueued()
    # Deleting it (by donation to a later program) must wait until this run has taken its stack.
    array.claim()
    return array


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
        return same and pieces == type.sizes and _splits_alike(array.sharding, wanted)

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
        whole = to_numpy(held)
        return put_here(whole, as_sharding(wanted, whole.ndim, self.mesh), self.mesh, self.here)


def array_signature_of(program: LocalProgram) -> ArraySignature:
    """The signature of a program."""
    signature: ArraySignature | None = program.array_signature
    if signature is None:
        signature = program.array_signature = ArraySignature(program)
    return signature


def _splits_alike(actual: Sharding, wanted: Sharding | None) -> bool:
    """Whether two shardings place the same pieces on the same devices."""
    if wanted is None:
        return not any(d.axes for d in actual.dims)
    # Axes alone: whether dims are open, and priorities, matter to propagation only.
    mine, theirs = ([d.axes for d in s.dims] for s in (actual, wanted))
    return mine == theirs and actual.unreduced == wanted.unreduced


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


def _global_shape(sizes: Sequence[int], sharding: Sharding, mesh: Mesh) -> tuple[int, ...]:
    """The global shape from local sizes, without padding."""
    return tuple(n * size for n, size in zip(counts(sharding, mesh), sizes, strict=True))
