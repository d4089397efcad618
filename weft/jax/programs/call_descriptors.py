"""Call descriptors: precomputed native calls of small programs (see `native.calls`)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from weft.array.host import HOST_MEMORY
from weft.array.stacked import Kind
from weft.emit.llvm.pool.commands import RawLaunch
from weft.executable.items import Host, Launch, all_items, is_view
from weft.ir.types import Array
from weft.jax.buffers.values import number_of, step_of, template
from weft.jax.native.calls import TRIES
from weft.jax.native.records import (
    READY,
    ArgumentPlan,
    CallDescriptor,
    ExecutableRecord,
    ResultPlan,
    words,
)
from weft.jax.programs.executables import LoadedExecutable
from weft.jax.programs.placement import LateMessages
from weft.kernels.flow import ControlFlow, FlowLoop, statements_in
from weft.kernels.group import AnyKernel
from weft.kernels.work import work_of
from weft.records import dataclass
from weft.run.code import SlotValues
from weft.run.direct import Direct, Picked

_MAX_PEAK_BYTES = 1 << 22  # fewer are streamed about as soon as Python would run the call
_MAX_RESULT_BYTES = 1 << 20  # `native.blocks` keeps blocks of up to that size, with their pages
_MAX_CONSTANT_BYTES = 1 << 18  # which native code copies; Python shares the program's memory
_MAX_OPS = 1 << 24  # arithmetic ops; fewer take one thread no longer than that
_TRANSCENDENTAL_OPS = 16  # arithmetic ops of a transcendental function
_MAX_ARGUMENTS = 64  # a donating call checks all of them


@dataclass(frozen=True, slots=True)
class _Result:
    """A result of a call: a kernel's output, or a copy."""

    kind: Kind
    nbytes: int
    places: Sequence[int] = ()  # in the operand table
    over: int = -1  # the argument whose memory it takes
    argument: int = -1  # the argument that it is a copy of
    earlier: int = -1  # the result that it is a copy of
    constant: Array | None = None  # what it is a copy of


@dataclass(frozen=True, slots=True)
class _Call:
    """A program as native code calls it."""

    given: Sequence[tuple[Kind, Sequence[int]]]  # arguments, with places in the operand table
    results: Sequence[_Result]
    direct: Direct | None = None  # None if it has no kernels
    frame: Callable[[], SlotValues] | None = None

    def raw_launch(self) -> RawLaunch | None:
        """The handles of its kernels, in a frame of their own."""
        if self.direct is None or self.frame is None:
            return None
        made: RawLaunch = self.direct.raw_launch(self.frame)
        return made


def attach_call_descriptor(handle: int, loaded: LoadedExecutable) -> bool:
    """Publish a call descriptor, if the program qualifies; False, without one, if it is too early.

    A program of several processes may not have run yet when it is called again.
    """
    process = loaded.program.host.process
    late = None if process is None else process.transport
    if isinstance(late, LateMessages) and not late.has_run:
        return False
    call = _call_of(loaded)
    if call is not None and _is_small(loaded, call) and _is_plain(loaded, call):
        _attach(handle, loaded, call)
    return True


def _attach(handle: int, loaded: LoadedExecutable, call: _Call) -> None:
    raw_launch = call.raw_launch()
    contents = [*_descriptor_words(loaded, call, raw_launch)]
    held = (ctypes.c_int64 * len(contents))(*contents)
    constants = [result.constant for result in call.results]
    loaded.descriptor = (held, raw_launch, constants)
    words(handle)[ExecutableRecord.descriptor.word] = ctypes.addressof(held)


def _call_of(loaded: LoadedExecutable) -> _Call | None:
    """The call of a program; None if it is more than one launch of kernels, or has tokens."""
    program, direct, frame = loaded.program, loaded.program.direct, loaded.program.frame
    if direct is None and loaded.is_one_of_many:
        from weft.jax.programs.native_sums import native_sums  # most processes are alone

        summing = native_sums(loaded)
        if summing is not None:
            direct, frame = summing.direct, summing.frame
    if direct is not None:
        results = _results(loaded, direct.picked, direct)
        fresh = direct.is_whole and not loaded.forwarded and all(own for *_, own in direct.made)
        if results is None or (loaded.is_one_of_many and not fresh):
            return None
        return _Call(direct.given, results, direct, frame)
    if loaded.is_one_of_many:
        return None
    given = [(kind, ()) for kind in loaded.kinds if kind is not None]
    if program.calls is None or len(given) != len(loaded.kinds):
        return None
    slots = {slot: n for n, slot in enumerate(program.arguments.slots)}
    for unit in program.code.units:
        if not isinstance(unit, Host) or not is_view(unit, program.code.stacks):
            return None
        if (viewed := slots.get(unit.ins[0])) is not None:
            slots[unit.outs[0]] = viewed
    picked = [(None, slots.get(slot), slot, own) for slot, own in program.results]
    results = _results(loaded, picked, None)
    return None if results is None else _Call(given, results)


def _results(
    loaded: LoadedExecutable, picked: Sequence[Picked], direct: Direct | None
) -> list[_Result] | None:
    """Where the results come from; None if a kernel's output is not among them, or of no type."""
    results: list[_Result] = []
    first: dict[int, int] = {}  # by output: the result that it is
    over = {} if direct is None else direct.over
    taken = {*over.values()}
    kinds = loaded.program.result_kinds()
    for (number, argument, slot, _), copied_kind in zip(picked, kinds, strict=True):
        if number is None:
            copied = _copied_result(loaded, argument, slot, copied_kind)
            if copied is None:
                return None
            if argument in loaded.donated and argument not in taken:
                copied = replace(copied, over=argument)
                taken.add(argument)
            results.append(copied)
            continue
        assert direct is not None, "outputs are of kernels"
        kind, nbytes, _ = direct.made[number]
        if number in first:
            results.append(_Result(kind, nbytes, earlier=first[number]))
            continue
        first[number] = len(results)
        results.append(_Result(kind, nbytes, direct.written[number][1], over.get(number, -1)))
    return results if direct is None or len(first) == len(direct.made) else None


def _copied_result(
    loaded: LoadedExecutable, argument: int | None, slot: int, kind: Kind | None
) -> _Result | None:
    """A result that is an argument or a constant; None for tokens and other values."""
    if kind is None:
        return None
    if argument is not None:
        nbytes = _bytes_of(kind)
        given = loaded.kinds[argument]
        is_same = given is not None and _bytes_of(given) == nbytes
        return _Result(kind, nbytes, argument=argument) if is_same else None
    constant = loaded.program.template[slot]
    if not isinstance(constant, np.ndarray) or constant.shape != kind.shape:
        return None
    return _Result(kind, _bytes_of(kind), constant=np.ascontiguousarray(constant))


def _bytes_of(kind: Kind) -> int:
    return math.prod(kind.shape) * kind.dtype.itemsize


def _is_small(loaded: LoadedExecutable, call: _Call) -> bool:
    """Whether it finishes before overlapping work could start; loops are ended by the clock."""
    most = max([result.nbytes for result in call.results], default=0)
    constants = sum(result.nbytes for result in call.results if result.constant is not None)
    little = loaded.program.memory().peak <= _MAX_PEAK_BYTES and constants <= _MAX_CONSTANT_BYTES
    few = len(call.given) <= _MAX_ARGUMENTS and _steps(loaded) <= _MAX_OPS
    return little and few and most <= _MAX_RESULT_BYTES


def _steps(loaded: LoadedExecutable) -> int:
    """The arithmetic of its kernels: little memory may be read many times."""
    items = all_items(loaded.program.tiled.block)
    kernels = [item.kernel for item in items if isinstance(item, Launch)]
    work = [work_of(kernel) for kernel in kernels if not _has_loop(kernel)]
    return sum(one.flops + _TRANSCENDENTAL_OPS * one.transcendentals for one in work)


def _has_loop(kernel: AnyKernel) -> bool:
    """Whether a kernel is control flow with a loop, whose number of rounds may be unknown."""
    if not isinstance(kernel, ControlFlow):
        return False
    return any(isinstance(statement, FlowLoop) for statement in statements_in(kernel.body))


def _is_plain(loaded: LoadedExecutable, call: _Call) -> bool:
    """Whether all values are row-major on the host, with pieces in device order."""
    in_order = all(order is None for order in (*loaded.orders, *loaded.result_orders))
    dense = all(buffer_format.is_row_major for buffer_format in loaded.described.outside)
    kinds = [loaded.kind_here(result.kind) for result in call.results]
    on_host = not loaded.moved and all(kind.memory is HOST_MEMORY for kind in kinds)
    return in_order and dense and on_host and None not in [step_of(kind) for kind in kinds]


def _descriptor_words(
    loaded: LoadedExecutable, call: _Call, raw_launch: RawLaunch | None
) -> Iterator[int]:
    """The words of the call descriptor and of the plans that follow it."""
    short_run = 0 if raw_launch is None else raw_launch.short_run
    yield from CallDescriptor.words(
        run=0 if raw_launch is None else raw_launch.run,
        pool=0 if raw_launch is None else raw_launch.state,
        commands=0 if raw_launch is None else raw_launch.commands,
        devices=loaded.count,
        arguments=len(call.given),
        results=len(call.results),
        templates=_templates(loaded, call),
        on=loaded.on_at,
        inside=loaded.inside_at,
        blocks=loaded.described.words(ctypes.c_size_t, [0] * len(call.results)),
        donates=int(bool(loaded.donated)),
        short_run=short_run,
        tries=TRIES,
    )
    # A word for each result that is a copy, which holds the address of its source. That is one more
    # operand of the argument or the result it is a copy of.
    sources = loaded.described.words(ctypes.c_size_t, [_address(r) for r in call.results])
    pointers = 0 if raw_launch is None else raw_launch.pointers
    for n, (kind, places) in enumerate(call.given):
        copies = [k for k, result in enumerate(call.results) if result.argument == n]
        operands = [*_words_at(pointers, places), *_words_at(sources, copies)]
        donated = int(n in loaded.donated)
        number = number_of(loaded.kind_here(kind))
        yield from ArgumentPlan.words(count=len(operands), kind=number, donated=donated)
        yield from operands
    for n, result in enumerate(call.results):
        copies = [k for k, other in enumerate(call.results) if other.earlier == n]
        operands = [*_words_at(pointers, result.places), *_words_at(sources, copies)]
        # A run that is repeated needs its arguments as they were.
        over = result.over if result.over in loaded.donated and not short_run else -1
        is_copy = max(result.argument, result.earlier) >= 0 or result.constant is not None
        (source,) = _words_at(sources, [n])
        source = source if is_copy else 0
        yield from ResultPlan.words(
            count=len(operands), nbytes=result.nbytes, over=over, source=source
        )
        yield from operands


def _address(result: _Result) -> int:
    """The address of a constant."""
    return 0 if result.constant is None else int(result.constant.ctypes.data)


def _words_at(table: int, places: Sequence[int]) -> list[int]:
    """The addresses of words of a table."""
    return [table + 8 * place for place in places]


def _templates(loaded: LoadedExecutable, call: _Call) -> int:
    """The array records of the results, one after another."""
    pairs = zip(loaded.results, call.results, strict=True)
    made = [
        template(*result, READY, kind=loaded.kind_here(one.kind), native=True)
        for result, one in pairs
    ]
    return loaded.described.bytes(b"".join(made))[0]
