"""Direct programs on a device: a call passes addresses, by which launches are replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.array.array import Array, ArraySpec
from weft.array.memory import DeviceBuffer, DeviceMemory, MemoryBlock, Stream
from weft.array.stacked import Stacked
from weft.array.stream import HostStream
from weft.run.code import SlotValues
from weft.run.direct import OneCall
from weft.run.launch import TablePlace, reshaped
from weft.target import SupportsGraphs


class DirectOnDevice:
    """A program of one sequence of kernels on a device, whose results are all allocated by it.

    The addresses of arguments and results are the key of a captured graph: a call with addresses
    that recur writes no address table.
    """

    def __init__(self, program: OneCall) -> None:
        calls = program.calls
        assert isinstance(calls.memory, DeviceMemory), "it is no host program"
        self.code, self.call, self.arguments = program.code, program.call, program.arguments
        self.memory: DeviceMemory = calls.memory
        self.stream: Stream | None = calls.target.stream
        self.donated, self.frames, self.kinds = program.donated, program.frames, program.kinds
        self.made, self.over = program.made, program.over
        self.places: list[Sequence[TablePlace]] = [places for _, _, places in self.arguments.listed]
        self.places += [output.places for output in program.outputs]

    def __call__(
        self, stacks: tuple[Stacked | None, ...], new: Callable[[], SlotValues]
    ) -> tuple[Stacked, ...] | None:
        """Run on all devices; None, with no effect, if an argument has another kind."""
        if len(stacks) != len(self.kinds):
            raise self.arguments.miscounted(len(stacks))
        addresses: list[int] = []
        for stack, kind in zip(stacks, self.kinds, strict=True):
            if stack is None or stack.kind is not kind:
                return None
            addresses.append(stack.address or stack.locate())
        over: dict[int, Any] = {}
        if self.over:
            writable = {*self.arguments.writable(stacks, self.donated)}
            over = {n: donor.data for n, at in self.over.items()
                    if at in writable and (donor := stacks[at]) is not None}  # fmt: skip
        buffers = self.enqueue(addresses, over, new)
        event = None if self.stream is None else self.stream.record()
        sub_axes, outputs = self.arguments.sub_axes, list[Stacked]()
        for buffer, (kind, _, owned) in zip(buffers, self.made, strict=True):
            buffer.event = event
            outputs.append(Stacked(buffer, sub_axes, owned, kind))
        return tuple(outputs)

    def enqueue(
        self, addresses: list[int], over: dict[int, Any], new: Callable[[], SlotValues]
    ) -> list[DeviceBuffer]:
        """Enqueue the kernels on arguments at these addresses; results are allocated or `over`."""
        memory = self.memory
        buffers: list[DeviceBuffer] = []
        try:
            for number, (kind, nbytes, _) in enumerate(self.made):
                donor = over.get(number)
                buffers.append(
                    memory.allocate(kind.shape, kind.dtype, nbytes)
                    if donor is None
                    else reshaped(donor, kind.shape, kind.dtype, memory)
                )
            self.launch((*addresses, *map(memory.address, buffers)), new)
        except BaseException as error:
            self.explain(error)
            raise
        return buffers

    def explain(self, error: BaseException) -> None:
        """Raise an error that names the kernels' lines in the place of another, if there is one."""
        explained = self.code.explained(error, self.code.units[0])
        if explained is not error:
            raise explained from None

    def launch(self, key: tuple[int, ...], new: Callable[[], SlotValues]) -> None:
        """Enqueue the kernels on arguments and results at these addresses."""
        # A call owns its frame: list.pop and append are atomic, so that threads never share one.
        try:
            slots = self.frames.pop()
        except IndexError:
            slots = new()
        commands: SupportsGraphs = slots[self.call.commands]
        if not commands.replayed(key):
            for address, places in zip(key, self.places, strict=True):
                for table, place in places:
                    slots[table][place] = address
            commands.run_as(key)
        self.frames.append(slots)


class EnqueuedArrays:
    """A direct program that overwrites none of its arguments, on arrays of its device.

    With `specs`, it is for arrays of these, whatever else a call may be given.
    """

    def __init__(
        self,
        direct: DirectOnDevice,
        results: Sequence[ArraySpec],
        runs_on: HostStream,
        new: Callable[[], SlotValues],
        specs: Sequence[ArraySpec] | None = None,
    ) -> None:
        self.direct, self.results, self.runs_on, self.new = direct, results, runs_on, new
        self.sub_axes = direct.arguments.sub_axes
        wanted: Sequence[ArraySpec | None] = specs or [None] * len(direct.kinds)
        self.given = [*zip(direct.kinds, wanted, strict=True)]
        self.made = [
            (kind, kind.shape, kind.dtype, nbytes, owned, spec)
            for (kind, nbytes, owned), spec in zip(direct.made, results, strict=True)
        ]
        self.memory, self.launch = direct.memory, direct.launch
        self.take = direct.memory.take
        self.record = None if direct.stream is None else direct.stream.record

    def quick(self, specs: Sequence[ArraySpec]) -> EnqueuedArrays:
        """The program for calls with unchecked arguments."""
        return EnqueuedArrays(self.direct, self.results, self.runs_on, self.new, specs)

    def __call__(self, arrays: Sequence[Array]) -> list[Array] | None:
        """The results; None, with no effect, if the call has to be enqueued or converted."""
        runs_on, given = self.runs_on, self.given
        # Anything queued must come first: it may write what this program reads, or fail.
        if runs_on.tasks or runs_on.busy or runs_on.outside or len(arrays) != len(given):
            return None
        beside = runs_on.beside
        beside.append(None)
        try:
            key: list[int] = []
            for array, (kind, spec) in zip(arrays, given, strict=True):
                if spec is not None and (type(array) is not Array or array.spec is not spec):
                    return None
                held = array.held
                if held is None or held.kind is not kind:
                    return None
                key.append(held.address or held.locate())
            # An event is of the stream's end when something waits for it.
            event = None if self.record is None else self.record()
            memory, sub_axes, take = self.memory, self.sub_axes, self.take
            results: list[Array] = []
            for kind, shape, dtype, nbytes, owned, spec in self.made:
                address, raw = take(nbytes)
                buffer = DeviceBuffer(memory, MemoryBlock(memory, raw), 0, shape, dtype, nbytes)
                buffer.event = event
                key.append(address)
                results.append(Array.of(Stacked(buffer, sub_axes, owned, kind, address), spec))
            self.launch(tuple(key), self.new)
            return results
        except BaseException as error:  # noqa: BLE001  # re-raised when results are fetched
            explained = self.direct.code.explained(error, self.direct.call)
            return [Array.of(None, row[-1]).failed(explained) for row in self.made]
        finally:
            beside.pop()


class EnqueuedTensors:
    """A direct program on PyTorch tensors of its device, without arrays of them.

    `updated` arguments are written in place; the other results are new tensors. Nothing holds the
    arguments when a call returns: PyTorch's allocator reuses memory in the order of the stream.
    """

    def __init__(self, direct: DirectOnDevice, shapes: Sequence[tuple[int, ...]]) -> None:
        self.direct = direct
        memory: Any = direct.memory
        self.device, self.empty, self.aligned = memory.device, memory.empty, memory.aligned
        self.over = [*direct.over.items()]
        pairs = zip(shapes, direct.made, strict=True)
        # The shapes of PyTorch's results: kinds have leading dims.
        self.fresh = [
            (n, shape, memory.element_type(kind.dtype))
            for n, (shape, (kind, *_)) in enumerate(pairs)
            if n not in direct.over
        ]

    def __call__(self, tensors: Sequence[Any], new: Callable[[], SlotValues]) -> list[Any] | None:
        """The results that update no argument; None, with no effect, where one must be copied."""
        device, aligned = self.device, self.aligned
        addresses: list[int] = []
        for tensor in tensors:
            address = tensor.data_ptr()
            # Kernels are compiled for dense operands at aligned addresses.
            if address % aligned or tensor.device != device or not tensor.is_contiguous():
                return None
            if tensor.is_neg() or tensor.is_conj():  # flags of a view, which no kernel reads
                return None
            addresses.append(address)
        output_addresses = [0] * len(self.direct.made)
        for number, argument in self.over:
            output_addresses[number] = addresses[argument]
        arrays = []
        try:
            for number, shape, dtype in self.fresh:
                tensor = self.empty(shape, dtype)
                output_addresses[number] = tensor.data_ptr()
                arrays.append(tensor)
            self.direct.launch((*addresses, *output_addresses), new)
        except BaseException as error:
            self.direct.explain(error)
            raise
        return arrays


def direct_on_device(program: OneCall) -> DirectOnDevice | None:
    """The direct form of a program on a device, or None if it does not qualify."""
    calls = program.calls
    if calls.memory.is_host or not isinstance(calls.target.commands(), SupportsGraphs):
        return None
    slots = [slot for slot, _ in program.results]
    # Every output is one result, which is written by the kernels.
    if len({*slots}) < len(slots) or {*slots} != {output.slot for output in program.outputs}:
        return None
    return DirectOnDevice(program)
