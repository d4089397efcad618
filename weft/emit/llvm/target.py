"""The llvm target: kernels for CPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from weft.emit.llvm.capable import unsupported_kernel, unsupported_op
from weft.emit.llvm.emitted import encode
from weft.emit.llvm.flow.interrupts import interruptions
from weft.emit.llvm.jit.engine import LoadedKernel, load
from weft.emit.llvm.jit.machine_code import assembly
from weft.emit.llvm.jit.packed import packed, text_identity
from weft.emit.llvm.jit.processor import has_llvm, host
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.schedule import schedule_of
from weft.emit.llvm.table import TABLE
from weft.emit.llvm.texts import adopt, emitted, recall, remember
from weft.emit.llvm.tuning.candidates import ProductCandidates
from weft.emit.llvm.units import kernel_units
from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.flow import ControlFlow
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Kernel, Schedule
from weft.target import Limits, Target

# Measured on several processors, whose caches are similar enough for these limits.
LIMITS = Limits(
    steps=160,
    near=1 << 16,
    chain=8,
    choices=6,
    row=1 << 16,
    rows=16,
    saved=1 << 15,
    lines=16,
    cut=128,
    block=(8, 32),
)


class LLVM(Target):
    """CPUs, through LLVM.

    Everything but `emitted`, `text`, `load` and `candidates` works without llvmlite.
    """

    name = "llvm"
    limits = LIMITS
    table = MappingProxyType(TABLE)
    forms = MappingProxyType({"llvm": "ll", "asm": "s"})

    def unsupported_op(
        self, op: Op, given: tuple[DType, ...], made: tuple[DType, ...]
    ) -> str | None:
        """Why no kernel computes an op on these types, or None if one does."""
        return unsupported_op(op, given, made)

    def unsupported_kernel(self, kernel: AnyKernel) -> str | None:
        """Why a whole kernel cannot be emitted, or None if it can."""
        if isinstance(kernel, ControlFlow) and not self.options.flows:
            return "flows are off"
        return unsupported_kernel(kernel)

    def schedule(self, kernel: Kernel) -> Schedule:
        """The schedule of a kernel's loops."""
        return schedule_of(kernel)

    def candidates(self, kernel: AnyKernel) -> ProductCandidates | None:
        """Candidate schedules of a contraction without options."""
        if not isinstance(kernel, Kernel) or not has_llvm():
            return None
        is_open = kernel.schedule.kind == "packed" and not kernel.schedule.options
        return ProductCandidates(kernel) if is_open else None

    def units(self, kernel: AnyKernel) -> Mapping[str, float]:
        """The instructions of a kernel by its plan."""
        return kernel_units(kernel)

    def text(self, kernel: AnyKernel, form: str = "llvm") -> str:
        """The LLVM IR of a kernel, or its assembly."""
        made = emitted(kernel).text
        return assembly(made) if form == "asm" else made

    @property
    def identity(self) -> str | None:
        """The processor that kernels are emitted for."""
        return repr(host()) if has_llvm() else None

    def remember(self, kernels: Sequence[AnyKernel], name: str) -> None:
        """Cache the texts of kernels under a name."""
        remember(kernels, name)

    def recall(self, kernels: Sequence[AnyKernel], name: str) -> None:
        """Load the texts of these kernels from the cache, if present."""
        recall(kernels, name)

    def packed(self, kernels: Sequence[AnyKernel]) -> dict[str, bytes]:
        """The packed form of kernels: text for this processor, and machine code."""
        made = [emitted(kernel) for kernel in kernels]
        text = text_identity().encode() + b"\n" + encode(made)
        return {"emitted": text, "code": packed(made)}

    def adopt(self, kernels: Sequence[AnyKernel], text: bytes) -> bool:
        """Use the texts of a trusted file, if this version would emit the same here."""
        made_for, _, rest = text.partition(b"\n")
        if made_for != text_identity().encode():
            return False
        adopt(kernels, rest)
        return True

    def load(self, kernels: Sequence[AnyKernel]) -> Sequence[LoadedKernel]:
        """Load kernels."""
        texts = [emitted(kernel) for kernel in kernels]
        if any(made.optimized for made in texts):
            interruptions()  # defines what their loops call
        return load(texts)

    def commands(self) -> CommandList:
        """An empty launch queue."""
        return CommandList()
