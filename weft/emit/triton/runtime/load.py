"""Kernels in memory: Triton functions compiled for the device, and calls of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from weft.array.torch_memory import tensor_at, torch_dtype
from weft.emit.triton.emit import emitted
from weft.emit.triton.emitted import EmittedPart, EmittedParts, GridLaunch, LibraryCall
from weft.emit.triton.source import (
    compiled,
    function_of,
    is_interpreted,
    launcher_of,
    load_driver,
    use_allocator,
)
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Operand
from weft.records import dataclass

ALIGNED = 256  # bytes
_COMPILERS = 16  # threads that compile at a time
_LOADING = Lock()


@dataclass(frozen=True, slots=True, eq=False)
class LoadedParts:
    """A kernel whose launches are ready, and its buffers' sizes."""

    name: str
    parts: tuple[Any, ...]  # in order: callables on addresses
    scratch: tuple[int, ...]  # bytes of scratch buffers, each aligned


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """A compiled function in the device's memory, and the C function that launches it."""

    kernel: Any
    launcher: Any


class CompiledLaunch:
    """A launch of a compiled Triton function."""

    __slots__ = ("allocates", "function", "grid", "kernel", "operands", "packed", "run")

    def __init__(self, launch: GridLaunch, ready: _Ready) -> None:
        self.kernel = kernel = ready.kernel
        self.operands, self.grid, self.run = launch.operands, launch.grid, ready.launcher
        self.function, self.packed = kernel.function, kernel.packed_metadata
        # Tensor descriptors are built in memory of Triton's allocator.
        self.allocates = getattr(kernel.metadata, "global_scratch_size", 0) > 0

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Enqueue it on a stream."""
        if self.allocates:
            use_allocator()
        arguments = [addresses[n] for n in self.operands]
        # Triton's own C launcher, without the wrapper that looks at every argument: types and
        # alignment were fixed when it was compiled. The three Nones are the launch metadata and
        # hooks.
        self.run(*self.grid, stream, self.function, self.packed, None, None, None, *arguments)


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
        if (driver := load_driver()) is not None:
            driver.join()
        wanted = {_same(p): p for _, e in listed for p in e.parts if isinstance(p, GridLaunch)}
        # Threads, not processes: most of the time is spent in LLVM and ptxas, without the GIL.
        with _LOADING:
            with ThreadPoolExecutor(_COMPILERS, initializer=_use, initargs=(device,)) as pool:
                made = [*pool.map(_ready, wanted.values())]
            ready = {
                key: _Ready(one, launcher_of(one)) for key, one in zip(wanted, made, strict=True)
            }
    return [_loaded(kernel, parts, ready, device) for kernel, parts in listed]


def _use(device: Any) -> None:
    """Make a device this thread's: its modules are loaded there."""
    import torch

    torch.cuda.set_device(device)


def _ready(launch: GridLaunch) -> Any:
    """A function compiled and loaded, with its launcher, which a C compiler makes."""
    kernel = compiled(launch)
    _ = kernel.run
    return kernel


def _same(launch: GridLaunch) -> Any:
    """The key by which launches share a compiled function."""
    numbers = (launch.warps, launch.stages, launch.fused_multiply_add)
    return launch.text, launch.signature, numbers


def _loaded(kernel: AnyKernel, launches: EmittedParts, ready: Any, device: Any) -> LoadedParts:
    operands = (*kernel.operands, *launches.scratch)
    parts = [
        CompiledLaunch(part, ready[_same(part)])
        if isinstance(part, GridLaunch) and ready
        else TensorCall(part, operands, device)
        for part in launches.parts
    ]
    scratch = [-(-operand.nbytes // ALIGNED) * ALIGNED for operand in launches.scratch]
    return LoadedParts(kernel.name, tuple(parts), tuple(scratch))
