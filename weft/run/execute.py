"""Asynchronous execution on arrays: runs are enqueued, results are futures."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from copy import copy
from typing import Any, TypeAlias

import numpy as np

from weft.array.array import Array, ArraySpec
from weft.array.context import CONTEXTS, note
from weft.array.future import StackFuture
from weft.array.host import dense
from weft.array.stacked import Stacked
from weft.array.stream import HostStream, released, report
from weft.errors import WeftError
from weft.native.cpython import reads_objects
from weft.run.array_signature import ArraySignature, array_signature_of
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
        results = signature.narrowed(program(*stacks))
    except BaseException as error:  # noqa: BLE001  # re-raised when results are fetched
        return failed_at_once(error, signature.specs)
    finally:
        stream.beside.pop()
    return tuple(map(Array.of, results, signature.specs))


_JaxKind: TypeAlias = tuple[Any, bool, Any]  # the class, whether its type is weak, the sharding


class JaxViews:
    """Arguments that are JAX's arrays on its CPU device, as numpy arrays of the same memory."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.kinds: list[_JaxKind | None] = [_jax_kind(value) for value in values]

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """The arguments; None if a JAX array is not of the kind that was there at first."""
        views: list[Any] = []
        for given, kind in zip(values, self.kinds, strict=True):
            value: Any = given
            if kind is not None:
                known, is_weak, place = kind
                if type(value) is not known or value.weak_type != is_weak:
                    return None
                if value.sharding is not place and value.sharding != place:
                    return None
                value = np.asarray(value)
            views.append(value)
        return tuple(views)


def is_of_jax(value: Any) -> bool:
    """Whether a value is JAX's array on a single CPU device, which numpy reads in place."""
    if type(value).__name__ != "ArrayImpl" or not value.is_fully_addressable:
        return False
    devices = value.sharding.device_set
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def _jax_kind(value: Any) -> _JaxKind | None:
    return (type(value), value.weak_type, value.sharding) if is_of_jax(value) else None


class QuickRun:
    """Runs of a short program of one device on numpy arrays as they are, and on Weft's arrays."""

    def __init__(self, program: LocalProgram, signature: ArraySignature) -> None:
        assert program.direct is not None, "asked by `of`"
        self.on_arrays, self.frame = program.direct.on_arrays, program.frame
        self.stream, self.specs = program.runs_on, signature.specs
        self.count = len(signature.taken)
        self.views: JaxViews | None = None

    def taking(self, values: Sequence[Any]) -> QuickRun:
        """The quick runs on arguments of the kinds of these."""
        run = copy(self)
        run.views = JaxViews(values) if any(map(is_of_jax, values)) else None
        return run

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
        if self.views is not None:
            views = self.views(arguments)
            if views is None:
                return None
            arguments = views
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
            made = self.program(*self._stacks())
            self._resolve(array_signature_of(self.program).narrowed(made))
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
        made = self.program.checked(*self._stacks())
        self._resolve(array_signature_of(self.program).narrowed(made))

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
