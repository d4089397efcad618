"""Execution: one call takes the buffers of all devices and runs in lockstep."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from weft.array.future import StackFuture
from weft.array.host import copied
from weft.array.memory import DeviceBuffer
from weft.array.stacked import Stacked
from weft.array.stream import DEFAULT
from weft.jax.abi import api
from weft.jax.buffers.buffers import forget_arrivals
from weft.jax.buffers.client import the_client
from weft.jax.buffers.events import event_of
from weft.jax.buffers.gathering import gathered
from weft.jax.buffers.values import (
    NOTHING,
    ONE_DEVICE,
    PjrtArray,
    bind_value,
    deleted,
    publish_address,
    publish_kind,
    share_lent,
    value_at,
)
from weft.jax.native.handles import INVALID, Handles, PjrtError
from weft.jax.native.record_code import DELETED
from weft.jax.native.records import BufferRecord, words
from weft.jax.native.slots import SlotFunction
from weft.jax.patches.interrupts import LoopInterrupted
from weft.jax.programs.call_descriptors import attach_call_descriptor
from weft.jax.programs.executables import LoadedExecutable
from weft.jax.programs.placement import PENDING
from weft.jax.programs.profiling import span
from weft.native.memory import address
from weft.run.execute import Run, take_over
from weft.workers.native_sums import PendingRuns

_Pointer = ctypes.c_size_t
_ARRAY = BufferRecord.array.word
_PENDING = ctypes.c_int64.from_address(address(PendingRuns.count.of(PENDING)))
_CALLS_BEFORE_NATIVE = 2  # calls through Python before native code takes over


class Execution(Run):
    """One run of a program, and its completion event."""

    def __init__(
        self,
        loaded: LoadedExecutable,
        given: Mapping[int, StackFuture],
        results: Mapping[int, PjrtArray],
    ) -> None:
        super().__init__(loaded.program, given, results, DEFAULT)
        self.loaded = loaded
        # Until it has run, native code must not exchange messages that come after it.
        self.counted = loaded.program.here is not None
        _PENDING.value += self.counted
        self.done = StackFuture().helped_by(DEFAULT.help)

    def abandon(self, error: BaseException) -> None:
        """Fail the results because of an interrupt."""
        super().abandon(error)
        self._uncount()
        if not self.done.is_ready:
            self.done.fail(error)

    def __call__(self) -> None:
        """Run; an error is stored in the results."""
        try:
            with span("run", self.loaded.described.executable.name):
                made = _results(self.loaded, self._stacks())
            self._uncount()
            self._resolve(made)
        except BaseException as error:  # noqa: BLE001  # re-raised when results are fetched
            self._uncount()
            for result in self.results:
                result.fail(error)
            self.done.fail(error)
        else:
            self.done.resolve(NOTHING)

    def _uncount(self) -> None:
        _PENDING.value -= self.counted
        self.counted = False


def _execute(handles: Handles, args: Any) -> None:
    handles.drain()
    loaded: LoadedExecutable = handles.objects[args.executable]
    count, lists = args.num_devices, args.argument_lists
    if count != loaded.count:
        raise PjrtError(INVALID, f"the program runs on {loaded.count} devices, {count} are given")
    if not count:  # the devices are those of other processes, which run it
        return
    values = _arguments(handles, loaded, lists, args.num_args)
    donated: Sequence[int] = ()
    if loaded.donated:
        donated = _donated(loaded, args.options)
        # Before anything is deleted, so that a refused call leaves its arguments as they were.
        _check_clashes(values, donated)
        _delete(handles, values, donated, args)
    forget_arrivals()
    made, done = _run(loaded, values, donated)
    _hand_out(handles, loaded, made, done is None, args)
    if args.device_complete_events:
        events = (_Pointer * count).from_address(args.device_complete_events)
        for n in range(count):
            events[n] = handles.ready if done is None else event_of(handles, done)
    loaded.calls += 1
    # Not at the first call: programs that run once, as most in a test do, need no descriptor.
    if loaded.calls == _CALLS_BEFORE_NATIVE and not attach_call_descriptor(args.executable, loaded):
        loaded.calls -= 1  # again at the next call


def _arguments(
    handles: Handles, loaded: LoadedExecutable, lists: int, count: int
) -> list[PjrtArray]:
    """The argument values, from the buffers of all devices."""
    if not count:
        return []
    records = loaded.records_in()
    handles.native.columns(lists, loaded.count, count, ctypes.addressof(records))
    known, orders = handles.objects, loaded.orders
    values: list[PjrtArray] = []
    for n, array_record in enumerate(records):
        if array_record == DELETED:
            raise deleted()
        value = known.get(array_record) or value_at(handles, array_record) if array_record else None
        if value is None or value.order != orders[n]:
            value = gathered(handles, loaded, lists, n)
        values.append(value)
    return values


def _donated(loaded: LoadedExecutable, options: int) -> Sequence[int]:
    """The arguments that may be overwritten."""
    options_at: Any = api().structs["ExecuteOptions"].from_address(options)
    count = options_at.num_non_donatable_input_indices
    if not count:
        return loaded.donated
    kept = set((ctypes.c_int64 * count).from_address(options_at.non_donatable_input_indices))
    return [n for n in loaded.donated if n not in kept]


def _delete(handles: Handles, values: list[PjrtArray], donated: Sequence[int], args: Any) -> None:
    """Mark donated arguments as deleted; external references keep their memory."""
    first: Any = (_Pointer * args.num_args).from_address(
        _Pointer.from_address(args.argument_lists).value
    )
    for n in donated:
        # Deleted first, and only then is asked whether it is lent: see the order of donation in
        # `weft.jax.native.calls`.
        handles.native.drop(args.argument_lists, args.num_devices, n)
        array_record = words(first[n])[_ARRAY]
        if handles.objects.get(array_record) is values[n]:
            share_lent(values[n], array_record)


def _check_clashes(values: Sequence[PjrtArray], donated: Sequence[int]) -> None:
    """Raise if a donated array is passed twice."""
    first: dict[int, int] = {}
    given = {id(values[n]) for n in donated}
    for n, value in enumerate(values):
        if id(value) in given and first.setdefault(id(value), n) != n:
            was, here = first[id(value)] in donated, n in donated
            what = {
                (True, True): "donate the same buffer twice in Execute()",
                (True, False): "use a buffer that was previously donated in the same call to "
                "Execute()",
                (False, True): "donate a buffer which is also used by the same call to Execute()",
            }[was, here]
            raise PjrtError(
                INVALID,
                f"Attempt to {what} (flattened argument {n}, first use: {first[id(value)]}): "
                "pass a copy",
            )


def _run(
    loaded: LoadedExecutable, values: list[PjrtArray], donated: Sequence[int]
) -> tuple[list[PjrtArray], StackFuture | None]:
    """The results, and their completion event if they are pending."""
    program = loaded.program
    for n in program.donated:
        if n not in donated:
            # JAX keeps this argument: the program, which was compiled to overwrite it, gets it
            # read-only and takes other memory.
            values[n] = _lent(values[n])
    if loaded.at_once and DEFAULT.is_idle:
        try:
            direct_results = _run_at_once(loaded, values, donated)
        except LoopInterrupted as error:
            return _failed(loaded, error)
        if direct_results is not None:
            return direct_results, None
    results = [PjrtArray(order=order) for order in loaded.result_orders]
    for result in results:
        result.helped_by(DEFAULT.help)
    # under the lock: a synchronous run sees this task, or this task sees the deleted value
    with DEFAULT.lock:
        task = Execution(loaded, dict(enumerate(values)), dict(enumerate(results)))
        _give_up(values, donated)
        # Inside of a callback the stream runs a task at once, which must not happen under the lock.
        if queued := not DEFAULT.is_inside:
            DEFAULT.enqueue(task)
    if not queued:
        DEFAULT.enqueue(task)
    return results, task.done


def _failed(
    loaded: LoadedExecutable, error: LoopInterrupted
) -> tuple[list[PjrtArray], StackFuture]:
    """The results of an interrupted run, which carry its error.

    The call itself succeeds: Python raises what the handler has raised at once after a call, but an
    error of JAX would come first.
    """
    results = [PjrtArray(order=order) for order in loaded.result_orders]
    done = StackFuture()
    for one in (*results, done):
        one.fail(error)
    return results, done


def _run_at_once(
    loaded: LoadedExecutable, values: list[PjrtArray], donated: Sequence[int]
) -> list[PjrtArray] | None:
    """The results of a synchronous run; None if an argument is not ready."""
    DEFAULT.beside.append(None)
    try:
        held = [value.held for value in values]
        if None in held:
            return None
        if donated:
            take_over(DEFAULT, donated, values, held)
        made = _results(loaded, held)
        return [*map(PjrtArray, made, loaded.result_orders)]
    finally:
        DEFAULT.beside.pop()


def _results(loaded: LoadedExecutable, stacks: Sequence[Stacked | None]) -> Sequence[Stacked]:
    """Run the program on converted arguments."""
    try:
        made: Sequence[Stacked] = loaded.program(*loaded.fitted(stacks))
        if loaded.forwarded:
            made = _copied(loaded, made)
        if loaded.is_one_of_many:
            made = [_of_one_device(loaded, stacked) for stacked in made]
        return _moved(loaded, made) if loaded.moved else made
    except MemoryError:  # errors of ops have their lines; this one concerns arguments and results
        memory = loaded.program.memory()
        needed = memory.arguments + memory.results
        raise loaded.program.shortage("arguments and results", needed) from None


def _copied(loaded: LoadedExecutable, made: Sequence[Stacked]) -> Sequence[Stacked]:
    """The results in their own memory, also where the program returns an argument."""
    listed = [*made]
    for n in loaded.forwarded:
        data = listed[n].data
        copy = data.copy() if data.__class__ is DeviceBuffer else copied(data)
        listed[n] = _enqueued(Stacked(copy, listed[n].sub_axes, owned=True))
    return listed


def _of_one_device(loaded: LoadedExecutable, made: Stacked) -> Stacked:
    """A result of this process's only device, as an array of that device."""
    data, shape = made.data, (1, *made.shape)
    if data.shape != shape:
        data, event = data.reshape(shape), getattr(data, "event", None)
        if event is not None:  # of a device's stream
            data.event = event
    if made.kind is not None:
        return Stacked(data, ONE_DEVICE, made.owned, loaded.kind_here(made.kind))
    stacked = Stacked(data, ONE_DEVICE, made.owned)
    stacked.located()
    return stacked


def _moved(loaded: LoadedExecutable, made: Sequence[Stacked]) -> Sequence[Stacked]:
    """The results in the memories that JAX expects them in."""
    listed = [*made]
    for n, memory in loaded.moved.items():
        placed = memory.place(listed[n].data)
        listed[n] = _enqueued(Stacked(placed, listed[n].sub_axes, owned=True))
    return listed


def _enqueued(stacked: Stacked) -> Stacked:
    """A stack that is copied on a device's stream, with the event of its end."""
    stream = the_client().home.stream
    if stream is not None and not stacked.is_on_host:
        stacked.data.event = stream.record()
    return stacked


def _lent(value: PjrtArray) -> PjrtArray:
    """The same pieces, read-only."""
    array = PjrtArray(order=value.order)
    value.claim()

    def lend() -> None:
        try:
            stacked = value.take_claimed()
        except BaseException as error:  # noqa: BLE001  # set on the value
            array.fail(error)
        else:
            array.resolve(Stacked(stacked.data, stacked.sub_axes))

    value.then(lend)
    return array


def _give_up(values: list[PjrtArray], donated: Sequence[int]) -> None:
    for n in donated:
        values[n].delete("donated to a program")


def _hand_out(
    handles: Handles, loaded: LoadedExecutable, results: list[PjrtArray], ready: bool, args: Any
) -> None:
    """Create buffers for the results, on the program's devices or the requested one."""
    if not results:
        return
    on, inside = loaded.on_at, loaded.inside_at
    if args.execute_device:
        on, inside = loaded.elsewhere(the_client().devices.at(args.execute_device))
    array_records = loaded.records_out()
    templates = loaded.ready_at if ready else loaded.pending_at
    spread = (args.output_lists, loaded.count, len(results), templates, on, inside)
    # All results or none: native code checks the number of free records before it takes the first.
    while not handles.native.spread(*spread, ctypes.addressof(array_records)):
        handles.more((loaded.count + 1) * len(results))
    if not ready:
        kinds = {**loaded.shown, **loaded.aliases}
        for n, (value, array_record) in enumerate(zip(results, array_records, strict=True)):
            if n in kinds:  # before it is settled, up to when the record is held
                value.then(partial(publish_kind, value, array_record, kinds[n]))
            bind_value(handles, value, array_record)
        return
    for value, array_record in zip(results, array_records, strict=True):
        handles.objects[array_record] = value
    for n in loaded.shown:
        publish_address(results[n], array_records[n])
    for n, kind in loaded.aliases.items():
        publish_kind(results[n], array_records[n], kind)


SLOTS: tuple[tuple[str, SlotFunction], ...] = (("LoadedExecutable_Execute", _execute),)
