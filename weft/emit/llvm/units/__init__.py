"""The instructions of a kernel, counted from its plan, for a machine's measured overheads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from weft.emit.llvm.emit import is_tiny
from weft.emit.llvm.jit.processor import Processor, has_llvm, host
from weft.emit.llvm.product.product import supports
from weft.emit.llvm.units.attention import attention_units
from weft.emit.llvm.units.loops import loop_units
from weft.emit.llvm.units.product import product_units
from weft.emit.llvm.units.single import single_units
from weft.kernels.attention import Attention
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Contract, Kernel
from weft.kernels.single_node import SingleNode

# Without LLVM a kernel's plan is that of a processor with vectors of 512 bits.
WIDE = Processor("x86_64-unknown-linux-gnu", "generic", "+avx512f,+avx512dq,+avx2,+avx")


@lru_cache(maxsize=4096)
def kernel_units(kernel: AnyKernel, processor: Processor | None = None) -> Mapping[str, float]:
    """The units of one launch, by the names of `weft.machine.OVERHEADS`."""
    processor = processor or (host() if has_llvm() else WIDE)
    if isinstance(kernel, Attention):
        return attention_units(kernel, processor)
    if isinstance(kernel, SingleNode):
        return single_units(kernel)
    if not isinstance(kernel, Kernel) or not math.prod([f.size for f in kernel.factors]):
        return {}
    packed = any(isinstance(step, Contract) for step in kernel.steps)
    if packed and supports(kernel) is None and not is_tiny(kernel):
        return product_units(kernel, processor)
    return loop_units(kernel, processor)
