"""Kernels in memory: Triton functions compiled for the device, and calls of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from weft.array.torch_memory import tensor_at, torch_dtype, torch_memory
from weft.emit.triton.emit import emitted
from weft.emit.triton.emitted import EmittedPart, EmittedParts, GridLaunch, LibraryCall
from weft.emit.triton.runtime.driver import DeviceFunction, enter
from weft.emit.triton.source import compiled, function_of, gpu_target, is_interpreted
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Operand
from weft.records import dataclass

ALIGNED = 256  # bytes
_COMPILERS = 16  # threads that compile at a time


@dataclass(frozen=True, slots=True, eq=False)
class LoadedParts:
    """A kernel whose launches are ready, and its buffers' sizes."""

    name: str
    parts: tuple[Any, ...]  # in order: callables on addresses
    scratch: tuple[int, ...]  # bytes of scratch buffers, each aligned


class CompiledLaunch:
    """A launch of a compiled Triton function."""

    __slots__ = ("device", "function", "grid", "operands", "scratch")

    def __init__(self, launch: GridLaunch, function: DeviceFunction, device: Any) -> None:
        self.function, self.device = function, device
        self.operands, self.grid = launch.operands, launch.grid
        self.scratch = function.scratch * math.prod(launch.grid)

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Enqueue it on a stream."""
        scratch, at = None, 0
        if self.scratch:
            # PyTorch reuses it in the order of its stream, so that the launch may outlive it.
            scratch = torch_memory(str(self.device)).reserve(self.scratch)
            at = scratch.data_ptr()
        self.function.launch(self.grid, [addresses[n] for n in self.operands], stream, at)


class TensorCall:
    """A call on tensors of the operands' memory: of PyTorch, or of Triton's interpreter."""

    def __init__(self, part: EmittedPart, operands: Sequence[Operand], device: Any) -> None:
        self.part, self.device = part, device
        self.operands = [(n, operands[n]) for n in part.operands]
        self.known: dict[tuple[int, int], Any] = {}

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Run it on PyTorch's current stream."""
        tensors = [self._tensor(addresses[n], n, operand) for n, operand in self.operands]
        if isinstance(self.part, LibraryCall):
            self.part.run(*tensors)
        else:
            function = function_of(self.part.name, self.part.text)
            function[self.part.grid](*tensors)

    def _tensor(self, address: int, number: int, operand: Operand) -> Any:
        """The operand's elements, as one dim."""
        key = (number, address)
        tensor = self.known.get(key)
        if tensor is None:
            if len(self.known) > 64:
                self.known.clear()
            tensor = tensor_at(address, operand.nbytes, self.device)
            kind = operand.dtype.numpy
            if operand.dtype.kind != "bool" or isinstance(self.part, LibraryCall):
                tensor = tensor.view(torch_dtype(kind))
            self.known[key] = tensor
        return tensor


def load_parts(kernels: Sequence[AnyKernel], device: Any) -> list[LoadedParts]:
    """Load kernels: equal texts are compiled once, several at a time."""
    listed = [(kernel, emitted(kernel)) for kernel in kernels]
    ready: dict[GridLaunch, Any] = {}
    if not is_interpreted():
        wanted = {_same(p): p for _, e in listed for p in e.parts if isinstance(p, GridLaunch)}
        target, place = gpu_target(device), (device.index or 0,)

        def ready_one(launch: GridLaunch) -> DeviceFunction:
            return DeviceFunction.load(compiled(launch, target))

        # Threads, not processes: most of the time is spent in LLVM and ptxas, without the GIL.
        with ThreadPoolExecutor(_COMPILERS, initializer=enter, initargs=place) as pool:
            ready = dict(zip(wanted, pool.map(ready_one, wanted.values()), strict=True))
    return [_loaded(kernel, parts, ready, device) for kernel, parts in listed]


def _same(launch: GridLaunch) -> Any:
    """The key by which launches share a compiled function."""
    numbers = (launch.warps, launch.stages, launch.fused_multiply_add)
    return launch.text, launch.signature, numbers


def _loaded(kernel: AnyKernel, launches: EmittedParts, ready: Any, device: Any) -> LoadedParts:
    operands = (*kernel.operands, *launches.scratch)
    parts = [
        CompiledLaunch(part, ready[_same(part)], device)
        if isinstance(part, GridLaunch) and ready
        else TensorCall(part, operands, device)
        for part in launches.parts
    ]
    scratch = [-(-operand.nbytes // ALIGNED) * ALIGNED for operand in launches.scratch]
    return LoadedParts(kernel.name, tuple(parts), tuple(scratch))
