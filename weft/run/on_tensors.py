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

    def begun(*operands: Any) -> Any:
        return begin(*[TensorStack(memory.tensor(memory.place(value))) for value in operands])

    def finished(started: Any) -> Any:
        results = finish(started)
        if isinstance(results, tuple):
            return tuple([_buffer(one, memory) for one in results])
        return _buffer(results, memory)

    return in_two(begun, finished, kernel.reads_rows)


def _buffer(stack: TensorStack, memory: TorchMemory) -> DeviceBuffer:
    buffer = memory.adopt(stack.tensor)
    assert buffer is not None, "it is in this memory"
    return buffer
