"""A toy target whose kernels run on memory that numpy cannot read, on a stream of their own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.run.toy_target import ToyTarget
from weft.array.host import is_dense
from weft.array.memory import DeviceBuffer, DeviceMemory
from weft.array.stream import HostStream
from weft.array.torch_memory import torch_memory
from weft.ir.types import Array
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Kernel, Operand
from weft.target import Commands

APART = 1 << 60  # from a device's address to that of the bytes that stand for its memory
ALIGNED = 256
NEW, GONE = 0xA5, 0xC9


class ToyMemory(DeviceMemory):
    """Bytes at addresses that the host has nothing at; new ones are poisoned, and freed ones."""

    dlpack_device = (12, 0)  # what DLPack calls an extension device

    def __init__(self) -> None:
        self.stream: HostStream | None = None
        self.alive: dict[int, int] = {}  # bytes, by address
        self.raw: dict[int, Any] = {}  # kept for ever: what reads freed memory sees poison
        self.allocated = self.copied_in = self.copied_out = 0

    def reserve(self, nbytes: int) -> int:
        raw = (ctypes.c_uint8 * (nbytes + ALIGNED))()
        start = -(-ctypes.addressof(raw) // ALIGNED) * ALIGNED
        ctypes.memset(ctypes.addressof(raw), NEW, ctypes.sizeof(raw))
        self.raw[start + APART], self.alive[start + APART] = raw, nbytes
        self.allocated += 1
        return start + APART

    def free(self, block: int) -> None:
        """In the order of the stream: kernels that are enqueued still read it."""
        nbytes = self.alive.pop(block)
        if self.stream is None:
            ctypes.memset(block - APART, GONE, nbytes)

    def start(self, block: int) -> int:
        return block

    def copy(self, source: DeviceBuffer | Array, into: DeviceBuffer | Array) -> None:
        if self.stream is not None and not self.stream.is_inside:
            self.stream.synchronize()
        assert source.nbytes == into.nbytes and source.dtype == into.dtype
        self.copied_in += isinstance(source, np.ndarray)
        self.copied_out += isinstance(into, np.ndarray)
        ctypes.memmove(self._at(into), self._at(source), source.nbytes)

    def _at(self, held: DeviceBuffer | Array) -> int:
        if isinstance(held, np.ndarray):
            assert is_dense(held)
            return held.ctypes.data
        assert held.memory is self and held.block.raw in self.alive
        return self.address(held) - APART

    def array(self, address: int, operand: Operand) -> Array:
        """An operand of a kernel, where its bytes are really kept."""
        if not operand.nbytes:
            return np.empty(operand.shape, operand.dtype.numpy)
        inside = [at for at, size in self.alive.items() if at <= address < at + size]
        assert inside or self.stream is not None, "a kernel reads memory that is allocated"
        raw = (ctypes.c_uint8 * operand.nbytes).from_address(address - APART)
        return np.ndarray(operand.shape, operand.dtype.numpy, raw)


class Queue:
    """Kernels that are enqueued on a stream, or run at once where there is none."""

    def __init__(self, memory: ToyMemory) -> None:
        self.memory, self.listed, self.pointers = memory, list[Any](), np.empty(0, np.uint64)

    def kernel(self, loaded: Kernel, operands: Sequence[int]) -> int:
        start = len(self.pointers)
        self.listed.append((loaded, start, start + len(operands)))
        self.pointers = np.append(self.pointers, np.array(operands, np.uint64))
        return start

    def run(self) -> None:
        launches = [(k, self.pointers[a:b].tolist()) for k, a, b in self.listed]
        if self.memory.stream is None:
            Launches(self.memory, launches)()
        else:
            self.memory.stream.enqueue(Launches(self.memory, launches))


class Launches:
    """Launches with the addresses that they had when they were enqueued."""

    calls_host, is_ready = False, True

    def __init__(self, memory: ToyMemory, launches: Sequence[tuple[Kernel, list[int]]]) -> None:
        self.memory, self.launches = memory, launches

    def __call__(self) -> None:
        for kernel, addresses in self.launches:
            arrays = [*map(self.memory.array, addresses, kernel.operands)]
            pairs = [*zip(kernel.operands, arrays, strict=True)]
            made = interpret(kernel, [array for operand, array in pairs if not operand.output])
            for array, result in zip([a for o, a in pairs if o.output], made, strict=True):
                array[...] = result

    def abandon(self, error: BaseException) -> None:
        raise AssertionError("nothing interrupts it") from error


class DeviceTarget(ToyTarget):
    """Kernels on the memory of a device."""

    name = "device"
    memory = ToyMemory()
    stream: HostStream | None = None

    def commands(self) -> Commands:
        return Queue(self.memory)


class Enqueued(DeviceTarget):
    """The same, and kernels are enqueued."""

    name = "enqueued"
    memory = ToyMemory()
    memory.stream = stream = HostStream("toy device")


class TorchQueue(Queue):
    """Kernels on the memory of PyTorch's CPU tensors."""

    def run(self) -> None:
        for kernel, a, b in self.listed:
            pairs = [*zip(kernel.operands, self.pointers[a:b].tolist(), strict=True)]
            arrays = [_array_at(operand, address) for operand, address in pairs]
            known = [array for (o, _), array in zip(pairs, arrays, strict=True) if not o.output]
            room = [array for (o, _), array in zip(pairs, arrays, strict=True) if o.output]
            for array, result in zip(room, interpret(kernel, known), strict=True):
                array[...] = result


def _array_at(operand: Operand, address: int) -> Array:
    if not operand.nbytes:
        return np.empty(operand.shape, operand.dtype.numpy)
    raw = (ctypes.c_uint8 * operand.nbytes).from_address(address)
    return np.ndarray(operand.shape, operand.dtype.numpy, raw)


class TorchTarget(ToyTarget):
    """Kernels whose operands are PyTorch's, as those of the triton target; here on the CPU."""

    name = "tensors"

    @property
    def memory(self) -> Any:
        return torch_memory("cpu")

    def commands(self) -> Commands:
        return TorchQueue(None)  # type: ignore[arg-type]
