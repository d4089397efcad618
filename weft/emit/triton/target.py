"""The triton target: kernels for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import MappingProxyType

from weft.array.torch_memory import TorchMemory, torch_memory
from weft.emit.triton.capable import unsupported_kernel, unsupported_op
from weft.emit.triton.emit import emitted
from weft.emit.triton.runtime.commands import GraphCommands
from weft.emit.triton.runtime.load import LoadedParts, load_parts
from weft.emit.triton.runtime.stream import TorchStream
from weft.emit.triton.schedule import schedule_of
from weft.emit.triton.source import is_interpreted
from weft.emit.triton.table import TABLE
from weft.emit.triton.tuning.candidates import GpuCandidates
from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Kernel, Schedule
from weft.target import Limits, Target

LIMITS = Limits(
    steps=160,
    near=1 << 16,
    chain=8,
    choices=6,
    row=1 << 15,
    rows=64,
    saved=1 << 62,  # a product's result is reduced by a kernel of its own
    lines=16,
    cut=128,
    prologues=False,  # the library's products of stored operands are faster
    shared=1 << 12,
    crossed=True,
    channels_last=True,
    unrolled=True,
    narrow=True,
)


class Triton(Target):
    """GPUs, through Triton and PyTorch; interpreted on the host with TRITON_INTERPRET=1."""

    name = "triton"
    limits = LIMITS
    table = MappingProxyType(TABLE)
    forms = MappingProxyType({"triton": "py"})

    def unsupported_op(
        self, op: Op, given: tuple[DType, ...], made: tuple[DType, ...]
    ) -> str | None:
        """Why no kernel computes an op on these types, or None if one does."""
        return unsupported_op(op, given, made)

    def unsupported_kernel(self, kernel: AnyKernel) -> str | None:
        """Why a whole kernel cannot be emitted, or None if it can."""
        return unsupported_kernel(kernel)

    def schedule(self, kernel: Kernel) -> Schedule:
        """The schedule of a kernel's loops."""
        return schedule_of(kernel)

    def candidates(self, kernel: AnyKernel) -> GpuCandidates | None:
        """Candidate schedules of a kernel of loops without options."""
        is_open = isinstance(kernel, Kernel) and not kernel.schedule.options
        return GpuCandidates(kernel) if is_open and isinstance(kernel, Kernel) else None

    @property
    def measures_apart(self) -> bool:
        """Candidates are timed in another process."""
        return True

    def text(self, kernel: AnyKernel, form: str = "triton") -> str:
        """The Triton functions of a kernel, and its calls of PyTorch."""
        return emitted(kernel).text

    @cached_property
    def memory(self) -> TorchMemory:
        """The memory of PyTorch's current device."""
        if is_interpreted():
            return torch_memory("cpu")
        import torch

        return torch_memory(f"cuda:{torch.cuda.current_device()}")

    @cached_property
    def stream(self) -> TorchStream | None:
        """PyTorch's current stream; None where kernels are interpreted."""
        memory = self.memory
        return None if memory.device.type == "cpu" else TorchStream(memory.device)

    def load(self, kernels: Sequence[AnyKernel]) -> Sequence[LoadedParts]:
        """Load kernels."""
        return load_parts(kernels, self.memory.device)

    def commands(self) -> GraphCommands:
        """An empty launch queue."""
        return GraphCommands(self.memory)
