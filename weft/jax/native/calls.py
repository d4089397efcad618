"""Native calls: small programs on small arrays run without Python.

Entering Python takes many times as long as such a program. So native code does the whole call where
it can: the executable has a call descriptor (see `weft.jax.programs.call_descriptors`), and the
arrays of all arguments have known addresses and kinds. Otherwise it falls back to Python. The GIL
is held, as by all code that allocates or frees records. Memory order of donation: an argument is
marked as deleted before its external references are checked; a lender does the two in the opposite
order, so that one of them sees the other.
"""

from __future__ import annotations

from weft.jax.native.blocks import block, release
from weft.jax.native.fast_path import DONE, FAILED, sweep, with_fast_path
from weft.jax.native.record_code import array_from, buffer_at, buffer_of
from weft.jax.native.records import (
    ArgumentPlan,
    ArrayRecord,
    BufferRecord,
    CallDescriptor,
    DeviceRecord,
    EventRecord,
    ExecutableRecord,
    OperandPlan,
    ResultPlan,
    offsets_of,
)
from weft.jax.native.state import PluginState, state
from weft.native.function import copy, native, to_int
from weft.native.libc import pthread_self
from weft.native.memory import Items, Member, Pointer, Struct, address
from weft.native.short_run import LATE, ShortRun

SLOT = "LoadedExecutable_Execute"
SHORT = 250_000  # nanoseconds that a loop may hold the GIL, which is less than a thread's turn
TRIES = 4  # of a program whose loops take longer
AWAITED = 3  # the result of a run that another process did not join in time


class ExecuteOptions(Struct, offsets=offsets_of("ExecuteOptions")):
    """How JAX wants a program to run."""

    num_non_donatable_input_indices: Member[int]


class ExecuteArgs(Struct, offsets=offsets_of(f"{SLOT}_Args")):
    """The arguments of the slot."""

    executable: Member[ExecutableRecord]
    options: Member[ExecuteOptions]
    argument_lists: Member[Items[Items[BufferRecord]]]
    num_devices: Member[int]
    num_args: Member[int]
    output_lists: Member[Items[Items[BufferRecord]]]
    device_complete_events: Member[Items[EventRecord]]
    execute_device: Member[DeviceRecord]


@native(attribute="alwaysinline")
def has_descriptor(given: Pointer) -> bool:
    """Whether native code knows how to call the program."""
    return ExecuteArgs(given).executable.descriptor != CallDescriptor(0)


@native(name=f"try_{SLOT}")
def execute(given: Pointer) -> int:
    """Run a program by its call descriptor."""
    args = ExecuteArgs(given)
    descriptor = args.executable.descriptor
    lists = args.argument_lists
    devices = descriptor.devices
    results = descriptor.results
    if not fits(args, descriptor) or not sweep() or state.count < (devices + 1) * results:
        return 0
    first = ArgumentPlan(descriptor.nth(1))
    plans = place_arguments(first, descriptor.arguments, lists, devices)
    if not plans:
        return 0
    # Before `place_results` asks whether an argument is lent: see the order of donation above.
    mark_donated(first, descriptor.arguments, lists, devices, 1)
    got = place_results(plans, results, descriptor.blocks, lists)
    if got != results:
        free_blocks(plans, got, descriptor.blocks, lists)
        mark_donated(first, descriptor.arguments, lists, devices, 0)
        return 0
    came = run_shortly(descriptor)
    if came != DONE:
        free_blocks(plans, results, descriptor.blocks, lists)
        # Its donated arguments stay deleted: kernels may have written over them already.
        if came == FAILED:
            return FAILED
        # A program with loops writes over no argument (see `call_descriptors`), so Python may run
        # it from its start. Another program may have had the core for a while; if it is too long
        # again and again, native calls end.
        mark_donated(first, descriptor.arguments, lists, devices, 0)
        if came != AWAITED:
            descriptor.tries = descriptor.tries - 1
            if descriptor.tries <= 0:
                args.executable.descriptor = CallDescriptor(0)
        return 0
    descriptor.tries = TRIES
    copy_sources(plans, results, descriptor.blocks)
    move_blocks(plans, results, descriptor.blocks, lists)
    hand_out(descriptor, plans, args.output_lists)
    events = args.device_complete_events
    if events:
        for d in range(devices):
            events[d] = PluginState.ready.load(state, "acquire")
    return DONE


@native(attribute="alwaysinline")
def run_shortly(descriptor: CallDescriptor) -> int:
    """Run the kernels; 0 if a loop would take too long under Python's lock, or AWAITED."""
    if not descriptor.commands:
        return DONE
    short = descriptor.short_run
    if short:
        # Read by this thread alone, in the loop's check: another thread's loop compares it with its
        # own handle and goes on. Several devices would be faster on several threads.
        short.limit = SHORT if descriptor.devices == 1 else 0
        ShortRun.thread.store(short, pthread_self(), "monotonic")
    failed = descriptor.run(descriptor.pool, descriptor.commands)
    if short:
        ShortRun.thread.store(short, Pointer(0), "monotonic")
        unfinished = short.unfinished
        short.unfinished = 0
        if unfinished != 0:
            return AWAITED if unfinished == LATE else 0
    return FAILED if failed != 0 else DONE


@native
def fits(args: ExecuteArgs, descriptor: CallDescriptor) -> bool:
    """Whether a call is one that the call descriptor is for."""
    if args.num_devices != descriptor.devices or args.num_args != descriptor.arguments:
        return False
    # JAX names a device for portable executables only, which run on another one than they were
    # compiled for.
    if args.execute_device and args.execute_device != descriptor.on[0]:
        return False
    return descriptor.donates == 0 or args.options.num_non_donatable_input_indices == 0


@native(attribute="alwaysinline")
def array_at(lists: Items[Items[BufferRecord]], argument: int) -> ArrayRecord:
    """The array of an argument, whose buffer on the first device this is."""
    return buffer_at(lists, 0, argument).array


@native(attribute="alwaysinline")
def operands_of(plan: OperandPlan) -> Items[Items[int]]:
    """Where the pointers to the operands of an argument or a result are."""
    return Items[Items[int]](plan.nth(1))


@native(attribute="alwaysinline")
def behind(plan: OperandPlan) -> Pointer:
    """The plan after that of an argument or a result."""
    return operands_of(plan).after(plan.count)


@native(attribute="alwaysinline")
def place(plan: OperandPlan, at: int) -> None:
    """Write an address to all operands of an argument or a result."""
    operands = operands_of(plan)
    for n in range(plan.count):
        operands[n][0] = at


@native
def is_whole(
    lists: Items[Items[BufferRecord]], argument: int, devices: int, array: ArrayRecord
) -> bool:
    """Whether all buffers of an argument are of one array, in order, and not deleted."""
    for d in range(devices):
        buffer = buffer_at(lists, d, argument)
        if buffer.array != array or buffer.place != d or buffer.deleted != 0:
            return False
    return True


@native
def is_alone(lists: Items[Items[BufferRecord]], arguments: int, array: ArrayRecord) -> bool:
    """Whether an array is that of one argument only."""
    count = 0
    for n in range(arguments):
        count += to_int(array_at(lists, n) == array)
    return count == 1


@native
def place_arguments(
    first: ArgumentPlan, arguments: int, lists: Items[Items[BufferRecord]], devices: int
) -> ResultPlan:
    """Bind argument addresses; the plan of the first result, or null if one does not fit."""
    plan = first
    for n in range(arguments):
        array = array_at(lists, n)
        if array.kind != plan.kind or not is_whole(lists, n, devices, array):
            return ResultPlan(0)
        if plan.donated != 0 and not is_alone(lists, arguments, array):
            return ResultPlan(0)
        place(plan, array.data)
        plan = ArgumentPlan(behind(plan))
    return ResultPlan(plan)


@native
def mark_donated(
    first: ArgumentPlan,
    arguments: int,
    lists: Items[Items[BufferRecord]],
    devices: int,
    deleted: int,
) -> None:
    """Mark or unmark all donated arguments as deleted."""
    plan = first
    for n in range(arguments):
        if plan.donated != 0:
            for d in range(devices):
                BufferRecord.deleted.store(buffer_at(lists, d, n), deleted, "seq_cst")
        plan = ArgumentPlan(behind(plan))


@native
def donor(plan: ResultPlan, lists: Items[Items[BufferRecord]]) -> Pointer:
    """The memory of the argument that a result is written over.

    Null if there is no such argument, if its memory is Python's, or if another library reads it.
    """
    if plan.over < 0:
        return Pointer(0)
    array = array_at(lists, plan.over)
    if ArrayRecord.lent.load(array, "seq_cst") != 0:
        return Pointer(0)
    return array.own


@native
def place_results(
    first: ResultPlan,
    results: int,
    blocks: Items[Pointer],
    lists: Items[Items[BufferRecord]],
) -> int:
    """Find memory for the results and say where it is; for how many there is."""
    plan = first
    for n in range(results):
        memory = donor(plan, lists)
        if not memory:
            memory = block(plan.nbytes)
            if not memory:
                return n
        blocks[n] = memory
        place(plan, address(memory))
        plan = ResultPlan(behind(plan))
    return results


@native
def owner(plan: ResultPlan, lists: Items[Items[BufferRecord]], memory: Pointer) -> ArrayRecord:
    """The argument whose memory a result was given, null if it has its own."""
    if plan.over < 0:
        return ArrayRecord(0)
    array = array_at(lists, plan.over)
    # Also where the argument had no memory of native code's: `donor` gave null, and the result has
    # a block.
    if array.own != memory:
        return ArrayRecord(0)
    return array


@native
def free_blocks(
    first: ResultPlan,
    results: int,
    blocks: Items[Pointer],
    lists: Items[Items[BufferRecord]],
) -> None:
    """Roll back a failed call: free newly allocated result memory."""
    plan = first
    for n in range(results):
        if not owner(plan, lists, blocks[n]):
            release(blocks[n], plan.nbytes)
        plan = ResultPlan(behind(plan))


@native
def copy_sources(first: ResultPlan, results: int, blocks: Items[Pointer]) -> None:
    """Fill the results that are arguments, constants or other results."""
    plan = first
    for n in range(results):
        if plan.source:
            source = plan.source[0]
            if source != blocks[n]:  # a donated argument gives its memory to the result
                copy(blocks[n], source, plan.nbytes)
        plan = ResultPlan(behind(plan))


@native
def move_blocks(
    first: ResultPlan,
    results: int,
    blocks: Items[Pointer],
    lists: Items[Items[BufferRecord]],
) -> None:
    """Commit donation: arguments give up the memory that results reuse."""
    plan = first
    for n in range(results):
        array = owner(plan, lists, blocks[n])
        if array:
            # The memory has one owner at any time: the result's record gets it in `hand_out`.
            array.own = Pointer(0)
            array.data = 0
            array.kind = 0
        plan = ResultPlan(behind(plan))


@native
def hand_out(
    descriptor: CallDescriptor, first: ResultPlan, outputs: Items[Items[BufferRecord]]
) -> None:
    """Arrays of the results, each with a buffer on every device."""
    devices = descriptor.devices
    plan = first
    for n in range(descriptor.results):
        array = array_from(descriptor.templates.nth(n), devices)
        array.own = descriptor.blocks[n]
        array.room = plan.nbytes
        plan = ResultPlan(behind(plan))
        array.data = address(descriptor.blocks[n])
        for d in range(devices):
            device = descriptor.on[d]
            outputs[d][n] = buffer_of(array, d, device, descriptor.inside[n * devices + d])


CALL = with_fast_path(SLOT, has_descriptor, execute)
