"""Collectives on tensors: operands and results stay in the memory of a device."""

from __future__ import annotations

from typing import Any

from weft.array.memory import DeviceBuffer
from weft.array.tensor_stack import TensorStack
from weft.array.torch_memory import TorchMemory
from weft.kernels.host import HostKernel, in_two


def on_tensors(kernel: HostKernel, memory: TorchMemory) -> HostKernel:
    """A kernel of buffers in a device's memory; the host enqueues its work, and does not wait."""
    begin, finish = kernel.begin, kernel.finish
    assert begin is not None and finish is not None, "it communicates with other processes"

    def begun(*given: Any) -> Any:
        return begin(*[TensorStack(memory.tensor(memory.place(value))) for value in given])

    def finished(started: Any) -> Any:
        made = finish(started)
        if isinstance(made, tuple):
            return tuple([_buffer(one, memory) for one in made])
        return _buffer(made, memory)

    return in_two(begun, finished, kernel.reads_rows)


def _buffer(made: TensorStack, memory: TorchMemory) -> DeviceBuffer:
    found = memory.adopt(made.tensor)
    assert found is not None, "it is in this memory"
    return found
