"""The LLVM text of a kernel, by its schedule."""

from __future__ import annotations

import math

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.jit.processor import Processor, host
from weft.emit.llvm.loops.emit import emit_loops
from weft.emit.llvm.product.emit import emit_product
from weft.emit.llvm.product.product import supports
from weft.kernels.kernel import Kernel

_TINY = 256  # multiplications


def emit(kernel: Kernel, processor: Processor | None = None) -> Emitted:
    """Emit a kernel as LLVM IR: functions that run its tasks, and their calling convention."""
    processor = processor or host()
    if kernel.schedule.kind == "packed" and not is_tiny(kernel):
        return emit_product(kernel, processor)
    return emit_loops(kernel, processor)


def is_tiny(kernel: Kernel) -> bool:
    """Whether a contraction ends sooner as plain loops than its operands would be packed."""
    few = math.prod(f.size for f in kernel.factors) <= _TINY
    return few and not kernel.schedule.options and supports(kernel) is None
