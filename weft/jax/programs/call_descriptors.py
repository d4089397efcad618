"""Call descriptors: precomputed native calls of small programs (see `native.calls`)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

from weft.emit.llvm.pool.commands import RawLaunch
from weft.executable.items import Launch, all_items
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
from weft.run.direct import Direct

_MAX_PEAK_BYTES = 1 << 22  # fewer are streamed about as soon as Python would run the call
_MAX_RESULT_BYTES = 1 << 20  # `native.blocks` keeps blocks of up to that size, with their pages
_MAX_OPS = 1 << 24  # arithmetic ops; fewer take one thread no longer than that
_TRANSCENDENTAL_OPS = 16  # arithmetic ops of a transcendental function
_MAX_ARGUMENTS = 64  # a donating call checks all of them


def attach_call_descriptor(handle: int, loaded: LoadedExecutable) -> bool:
    """Publish a call descriptor, if the program qualifies; False, without one, if it is too early.

    A program of several processes may not have run yet when it is called again.
    """
    process = loaded.program.host.process
    late = None if process is None else process.transport
    if isinstance(late, LateMessages) and not late.has_run:
        return False
    _attach(handle, loaded)
    return True


def _attach(handle: int, loaded: LoadedExecutable) -> None:
    direct, frame = loaded.program.direct, loaded.program.frame
    if direct is None and loaded.is_one_of_many:
        from weft.jax.programs.native_sums import native_sums  # most processes are alone

        summing = native_sums(loaded)
        if summing is not None:
            direct, frame = summing.direct, summing.frame
    if direct is None or not _is_small(loaded, direct) or not _is_plain(loaded, direct):
        return
    raw_launch = direct.raw_launch(frame)
    contents = [*_descriptor_words(loaded, direct, raw_launch)]
    held = (ctypes.c_int64 * len(contents))(*contents)
    loaded.descriptor = (held, raw_launch)
    words(handle)[ExecutableRecord.descriptor.word] = ctypes.addressof(held)


def _is_small(loaded: LoadedExecutable, direct: Direct) -> bool:
    """Whether it finishes before overlapping work could start; loops are ended by the clock."""
    most = max([nbytes for _, nbytes, _ in direct.made], default=0)
    little = loaded.program.memory().peak <= _MAX_PEAK_BYTES
    few = len(direct.given) <= _MAX_ARGUMENTS and _steps(loaded) <= _MAX_OPS
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


def _is_plain(loaded: LoadedExecutable, direct: Direct) -> bool:
    """Whether results are exactly its kernels' outputs, with pieces in device order."""
    outside = loaded.described.outside
    in_order = all(order is None for order in (*loaded.orders, *loaded.result_orders))
    dense = all(buffer_format.is_row_major for buffer_format in outside)
    fresh = direct.is_whole and not loaded.forwarded and all(own for *_, own in direct.made)
    steps = [step_of(loaded.kind_here(kind)) for kind, *_ in direct.made]
    return in_order and dense and fresh and None not in steps


def _descriptor_words(
    loaded: LoadedExecutable, direct: Direct, raw_launch: RawLaunch
) -> Iterator[int]:
    """The words of the call descriptor and of the plans that follow it."""
    yield from CallDescriptor.words(
        run=raw_launch.run,
        pool=raw_launch.state,
        commands=raw_launch.commands,
        devices=loaded.count,
        arguments=len(direct.given),
        results=len(direct.made),
        templates=_templates(loaded, direct),
        on=loaded.on_at,
        inside=loaded.inside_at,
        blocks=loaded.described.words(ctypes.c_size_t, [0] * len(direct.made)),
        donates=int(bool(loaded.donated)),
        short_run=raw_launch.short_run,
        tries=TRIES,
    )
    for n, (kind, places) in enumerate(direct.given):
        donated = int(n in loaded.donated)
        number = number_of(loaded.kind_here(kind))
        yield from ArgumentPlan.words(count=len(places), kind=number, donated=donated)
        yield from _operands(raw_launch, places)
    for n, ((_, nbytes, _), (_, places)) in enumerate(
        zip(direct.made, direct.written, strict=True)
    ):
        over = direct.over.get(n, -1)
        # A run that is repeated needs its arguments as they were.
        over = over if over in loaded.donated and not raw_launch.short_run else -1
        yield from ResultPlan.words(count=len(places), nbytes=nbytes, over=over)
        yield from _operands(raw_launch, places)


def _operands(raw_launch: RawLaunch, places: Sequence[int]) -> list[int]:
    """Where the addresses of an argument or a result are to be."""
    return [raw_launch.pointers + 8 * place for place in places]


def _templates(loaded: LoadedExecutable, direct: Direct) -> int:
    """The array records of the results, one after another."""
    pairs = zip(loaded.results, direct.made, strict=True)
    made = [
        template(*result, READY, kind=loaded.kind_here(kind), native=True)
        for result, (kind, *_) in pairs
    ]
    return loaded.described.bytes(b"".join(made))[0]
